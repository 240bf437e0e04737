// Numbers as varints, lists and texts with their length before them.
#include "snug/trace/tape_codec.h"

#include <algorithm>
#include <utility>

namespace snug::trace {
namespace {

class Encoder {
 public:
  void number(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_.push_back(static_cast<char>(value | 0x80));
    bytes_.push_back(static_cast<char>(value));
  }
  void text(std::string_view value) {
    number(value.size());
    bytes_ += value;
  }
  void list(const std::vector<ValueIndex>& values) {
    number(values.size());
    for (const ValueIndex value : values) number(value);
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
  // Of things that take at least a byte each.
  std::size_t count() {
    const std::uint64_t value = number();
    return value <= rest_.size() ? static_cast<std::size_t>(value) : refuse();
  }
  ValueIndex index(std::size_t limit) {
    const std::uint64_t value = number();
    return static_cast<ValueIndex>(value < limit ? value : refuse());
  }
  std::string text() {
    const std::size_t size = count();
    std::string value(rest_.substr(0, size));
    rest_.remove_prefix(size);
    return value;
  }
  std::vector<ValueIndex> list(std::size_t limit) {
    std::vector<ValueIndex> values(count());
    for (ValueIndex& value : values) value = index(limit);
    return values;
  }
  bool is_whole() const { return !refused_ && rest_.empty(); }

 private:
  std::size_t refuse() {
    refused_ = true;
    rest_ = {};
    return 0;
  }
  std::string_view rest_;
  bool refused_ = false;
};

// Every operation reads what earlier ones made or what came from outside, and makes what says so.
bool is_in_order(const RegionTape& tape) {
  std::size_t made = 0;
  for (std::size_t i = 0; i < tape.operations.size(); ++i) {
    const TapeOperation& operation = tape.operations[i];
    const auto is_earlier = [&](ValueIndex value) {
      return tape.values[value].operation == TapeValue::kOutside || tape.values[value].operation < i;
    };
    const auto is_own = [&](ValueIndex value) { return tape.values[value].operation == i; };
    if (!std::ranges::all_of(operation.reads, is_earlier) || !std::ranges::all_of(operation.results, is_own))
      return false;
    for (const auto& write : operation.writes)
      if (!is_earlier(write.before) || !is_own(write.after)) return false;
    made += operation.results.size() + operation.writes.size();
  }
  const auto inside = std::ranges::count_if(
      tape.values, [](const TapeValue& value) { return value.operation != TapeValue::kOutside; });
  return made == static_cast<std::size_t>(inside);
}

}  // namespace

std::string encode(const RegionTape& tape) {
  Encoder out;
  out.text(tape.region);
  out.number(tape.values.size());
  for (const TapeValue& value : tape.values) {
    out.number(value.operation == TapeValue::kOutside ? 0 : value.operation + std::uint64_t{1});
    out.number(value.output);
    out.number(value.bytes);
    out.number(static_cast<std::uint64_t>(value.fate) << 1 | (value.parameter ? 1 : 0));
  }
  out.number(tape.operations.size());
  for (const TapeOperation& operation : tape.operations) {
    out.text(operation.name);
    out.number(operation.replayable ? 1 : 0);
    out.list(operation.reads);
    out.list(operation.results);
    out.number(operation.writes.size());
    for (const auto& write : operation.writes) {
      out.number(write.before);
      out.number(write.after);
    }
  }
  out.list(tape.saves);
  out.number(tape.unpacks.size());
  for (const auto& node : tape.unpacks) out.list(node);
  return out.take();
}

std::optional<RegionTape> decode(std::string_view bytes) {
  Decoder in(bytes);
  RegionTape tape;
  tape.region = in.text();
  tape.values.resize(in.count());
  for (TapeValue& value : tape.values) {
    const std::uint64_t operation = in.number();
    if (operation > TapeValue::kOutside) return std::nullopt;
    value.operation = operation == 0 ? TapeValue::kOutside : static_cast<std::uint32_t>(operation - 1);
    value.output = static_cast<std::uint32_t>(in.number());
    value.bytes = in.number();
    const std::uint64_t flags = in.number();
    if (flags >> 1 > static_cast<std::uint64_t>(Fate::Offload)) return std::nullopt;
    value.fate = static_cast<Fate>(flags >> 1);
    value.parameter = (flags & 1) != 0;
  }
  const std::size_t values = tape.values.size();
  tape.operations.resize(in.count());
  for (TapeOperation& operation : tape.operations) {
    operation.name = in.text();
    operation.replayable = in.number() != 0;
    operation.reads = in.list(values);
    operation.results = in.list(values);
    operation.writes.resize(in.count());
    for (auto& write : operation.writes) write = {in.index(values), in.index(values)};
  }
  tape.saves = in.list(values);
  tape.unpacks.resize(in.count());
  for (auto& node : tape.unpacks) node = in.list(values);
  if (!in.is_whole() || !is_in_order(tape)) return std::nullopt;
  return tape;
}

}  // namespace snug::trace
