#define XXH_INLINE_ALL
#include "snug/io/checksum.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "snug/base/bytes.h"

namespace snug::io {

struct Checksum::State {
  XXH3_state_t state;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {
  XXH3_64bits_reset(&state_->state);
}

Checksum::~Checksum() = default;

void Checksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->state, bytes.data(), bytes.size());
}

std::string Checksum::value() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(&state_->state));
}

std::string checksum_of(const MappedFile& file) {
  constexpr std::size_t kPiece = 16_MiB;
  const auto bytes = file.bytes();
  Checksum sum;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kPiece) {
    const std::size_t count = std::min(kPiece, bytes.size() - begin);
    sum.add(bytes.subspan(begin, count));
    file.release(begin, count);
  }
  return sum.value();
}

std::string checksum_of(std::string_view text) {
  Checksum sum;
  sum.add(std::as_bytes(std::span(text)));
  return sum.value();
}

}  // namespace snug::io
