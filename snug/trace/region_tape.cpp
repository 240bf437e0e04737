#include "snug/trace/region_tape.h"

#include <string_view>

namespace snug::trace {
namespace {

// FNV-1a, over numbers of eight bytes and over text.
class Hash {
 public:
  void add(std::string_view text) {
    add(text.size());
    for (const char c : text) mix(static_cast<unsigned char>(c));
  }
  void add(std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8) mix((number >> shift) & 0xFF);
  }
  void add(const std::vector<ValueIndex>& values) {
    add(values.size());
    for (const ValueIndex value : values) add(value);
  }
  std::uint64_t value() const { return state_; }

 private:
  void mix(std::uint64_t byte) { state_ = (state_ ^ byte) * 0x100000001B3ull; }
  std::uint64_t state_ = 0xCBF29CE484222325ull;
};

}  // namespace

std::uint64_t RegionTape::structure_hash() const {
  Hash hash;
  for (const TapeOperation& operation : operations) {
    hash.add(operation.name);
    hash.add(operation.reads);
    hash.add(operation.results);
    for (const auto& write : operation.writes) {
      hash.add(write.before);
      hash.add(write.after);
    }
  }
  hash.add(saves);
  return hash.value();
}

}  // namespace snug::trace
