// Sizes as people write them: 12GiB, 12GB (10^9), 12G (= GiB), 800MiB, plain bytes. Case matters.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "snug/base/export.h"

namespace snug {

// Throws Error for anything but a positive, finite size below 2^63; the message shows the accepted forms.
SNUG_API std::uint64_t parse_bytes(std::string_view text);

// "1.50 GiB" from 1 GiB on, "12.3 MiB" from 1 MiB on, "4.0 KiB" from 1 KiB on, else "17 bytes".
// Exact figures belong in JSON.
SNUG_API std::string format_bytes(std::uint64_t bytes);

inline namespace literals {
constexpr std::uint64_t operator""_KiB(unsigned long long n) {
  return n << 10;
}
constexpr std::uint64_t operator""_MiB(unsigned long long n) {
  return n << 20;
}
constexpr std::uint64_t operator""_GiB(unsigned long long n) {
  return n << 30;
}
}  // namespace literals

}  // namespace snug
