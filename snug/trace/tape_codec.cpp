#include "snug/trace/tape_codec.h"

#include <algorithm>

#include "snug/trace/codec.h"

namespace snug::trace {
namespace {

constexpr std::uint64_t kHeld = 8;  // among a value's flags, above its fate

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
    out.number((value.held ? kHeld : 0) | static_cast<std::uint64_t>(value.fate) << 1 |
               (value.parameter ? 1 : 0));
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
    std::uint64_t flags = in.number();
    value.held = (flags & kHeld) != 0;
    flags &= ~kHeld;
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
