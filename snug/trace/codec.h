// Plain data as bytes: numbers as varints, lists and texts with their length before them. Internal to trace.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace snug::trace {

class Encoder {
 public:
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  // Round ones are short: their last bytes, which are zeros, come first.
  void real(double value) { number(__builtin_bswap64(std::bit_cast<std::uint64_t>(value))); }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  void list(const std::vector<std::uint32_t>& values) {
    number(values.size());
    for (const std::uint32_t value : values) number(value);
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// After the first contradiction every number is 0.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto part = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(part & 0x7F) << shift;
      if (part < 0x80) return value;
    }
    return refuse();
  }
  double real() { return std::bit_cast<double>(__builtin_bswap64(number())); }
  // Of things that take at least a byte each.
  std::size_t count() {
    const std::uint64_t value = number();
    return value <= rest_.size() ? static_cast<std::size_t>(value) : refuse();
  }
  std::uint32_t index(std::uint64_t limit) {
    const std::uint64_t value = number();
    return static_cast<std::uint32_t>(value < limit ? value : refuse());
  }
  std::string text() {
    const std::size_t size = count();
    std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  std::vector<std::uint32_t> list(std::uint64_t limit) {
    std::vector<std::uint32_t> values(count());
    for (std::uint32_t& value : values) value = index(limit);
    return values;
  }
  bool is_whole() const { return !refused_ && rest_.empty(); }
  std::size_t refuse() {
    refused_ = true;
    rest_ = {};
    return 0;
  }

 private:
  std::string_view rest_;
  bool refused_ = false;
};

}  // namespace snug::trace
