// What writer and reader of Note [Trace file] (trace.h) share: limits, record codes, and the coding of
// numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace snug::trace::format {

inline constexpr std::string_view kMagic = "SNUGTRC1";  // the digit is the version
inline constexpr std::size_t kChunkBytes =
    16 << 10;  // the writer ends a chunk once it is this long: what a kill can cost
inline constexpr std::size_t kMaxName = 64 << 10;
inline constexpr std::size_t kMaxPayload = 1 << 20;  // a chunk, one event and its names past the end included
inline constexpr std::size_t kMaxHeader = 1 << 20;

// Low half of a record's first byte: an EventKind or one of these. The high half is an event's category.
inline constexpr std::uint8_t kNameRecord = 8;   // length, text: the name with the next number
inline constexpr std::uint8_t kEndRecord = 9;    // number of events
inline constexpr std::uint8_t kTapeRecord = 10;  // 1 if the tape ends here, length, the next bytes of a tape
inline constexpr std::size_t kTapePiece = 8 << 10;
inline constexpr std::size_t kMaxTape = 256 << 20;

// Second byte of an event: which fields follow, in this order. Region and time, left out, are those of the
// event before; name, block and bytes are zero. Time is a difference from the event before, block from the
// last one given.
enum Field : std::uint8_t { kRegion = 1, kName = 2, kBlock = 4, kBytes = 8, kTime = 16, kAllFields = 31 };

// Signed numbers as small unsigned ones: 0, -1, 1, -2, ...
constexpr std::uint64_t zigzag(std::uint64_t difference) {
  return difference << 1 ^ (difference >> 63 != 0 ? ~std::uint64_t{0} : 0);
}
constexpr std::uint64_t unzigzag(std::uint64_t coded) {
  return coded >> 1 ^ ((coded & 1) != 0 ? ~std::uint64_t{0} : 0);
}

inline void put_u32(std::string& out, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift & 0xFF));
}
inline std::uint32_t get_u32(const char* at) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(static_cast<unsigned char>(at[i])) << 8 * i;
  return value;
}

}  // namespace snug::trace::format
