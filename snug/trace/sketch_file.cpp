#include "snug/trace/sketch_file.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "snug/base/error.h"
#include "snug/base/mapped_file.h"
#include "snug/base/output_file.h"
#include "snug/trace/codec.h"
#include "snug/trace/crc32.h"
#include "snug/trace/event.h"
#include "snug/trace/tape_codec.h"
#include "snug/trace/trace_format.h"

namespace snug::trace {
namespace {

constexpr std::string_view kSketchMagic = "SNUGSKT1";

// kNever and kNoBlock, which are the largest number, as 0.
std::uint64_t after(std::uint32_t number) {
  return static_cast<std::uint32_t>(number + 1);
}
std::uint32_t before(std::uint64_t coded) {
  return static_cast<std::uint32_t>(coded - 1);
}

void encode(const Sketch::Call& call, Encoder& out) {
  out.text(encode(call.tape));
  for (const TapeOperation& operation : call.tape.operations) out.number(operation.peak_bytes);
  for (const std::uint32_t block : call.blocks) out.number(after(block));
  for (const auto* list : {&call.operators, &call.begins, &call.ends, &call.saved_at, &call.releases})
    out.list(*list);
  for (const Sketch::Node& node : call.nodes) {
    out.list(node.unpacks);
    out.number(after(node.end));
  }
  for (const std::uint32_t number :
       {call.forward.begin, call.forward.end, call.backward.begin, call.backward.end, call.forward_begin,
        call.forward_end, call.backward_begin, call.backward_end})
    out.number(number);
}

void encode(const std::vector<Work>& operators, Encoder& out) {
  NameTable names;
  for (const Work& work : operators) names.intern(work.name);
  out.number(names.size());
  for (NameId id = 0; id < names.size(); ++id) out.text(names[id]);
  out.number(operators.size());
  for (const Work& work : operators) {
    out.number(names.intern(work.name));
    out.real(work.flops);
    out.real(work.bytes);
    out.number((work.low_precision ? 1 : 0) | (work.is_attention ? 2 : 0));
  }
}

std::string encode(const Sketch& sketch) {
  Encoder out;
  for (const std::uint32_t number : {sketch.moments, sketch.begin, sketch.operators_of_passes})
    out.number(number);
  out.number(sketch.blocks.size());
  for (const Sketch::Block& block : sketch.blocks) {
    out.number(block.bytes);
    out.number(block.birth);
    out.number(after(block.death));
    out.number(block.stays ? 1 : 0);
    out.number(after(block.replaces));
  }
  encode(sketch.operators, out);
  out.number(sketch.calls.size());
  for (const Sketch::Call& call : sketch.calls) encode(call, out);
  return out.take();
}

class SketchDecoder {
 public:
  explicit SketchDecoder(std::string_view bytes) : in_(bytes) {}

  std::optional<Sketch> decode() {
    sketch_.moments = in_.index(Sketch::kNever);
    sketch_.begin = moment();
    sketch_.operators_of_passes = in_.index(Sketch::kNever);
    sketch_.blocks.resize(in_.count());
    for (Sketch::Block& block : sketch_.blocks) decode(block);
    decode_operators();
    if (sketch_.operators_of_passes > sketch_.operators.size()) in_.refuse();
    sketch_.calls.resize(in_.count());
    for (Sketch::Call& call : sketch_.calls) decode(call);
    const bool is_in_order = std::ranges::adjacent_find(sketch_.blocks, std::greater_equal(),
                                                        &Sketch::Block::birth) == sketch_.blocks.end();
    if (!in_.is_whole() || !is_in_order) return std::nullopt;
    return std::move(sketch_);
  }

 private:
  Moment moment() { return in_.index(std::uint64_t{sketch_.moments} + 1); }
  std::vector<Moment> moments() { return in_.list(std::uint64_t{sketch_.moments} + 1); }
  // Or kNever, or kNoBlock.
  std::uint32_t index_or_none(std::uint64_t limit) { return before(in_.index(limit + 1)); }
  void require(bool holds) {
    if (!holds) in_.refuse();
  }

  void decode(Sketch::Block& block) {
    block.bytes = in_.number();
    block.birth = in_.index(sketch_.moments);
    block.death = index_or_none(std::uint64_t{sketch_.moments} + 1);
    block.stays = in_.index(2) == 1;
    block.replaces = index_or_none(sketch_.blocks.size());
    require(block.death > block.birth);
  }

  void decode_operators() {
    std::vector<std::string> names(in_.count());
    for (std::string& name : names) name = in_.text();
    sketch_.operators.resize(in_.count());
    for (Work& work : sketch_.operators) {
      const std::uint32_t name = in_.index(names.size());
      if (name < names.size()) work.name = names[name];
      work.flops = in_.real();
      work.bytes = in_.real();
      const std::uint32_t flags = in_.index(4);
      work.low_precision = (flags & 1) != 0;
      work.is_attention = (flags & 2) != 0;
    }
  }

  void decode(Sketch::Call& call) {
    auto tape = trace::decode(in_.text());
    require(tape.has_value());
    if (!tape) return;
    call.tape = std::move(*tape);
    const std::size_t operations = call.tape.operations.size(), saves = call.tape.saves.size();
    for (TapeOperation& operation : call.tape.operations) operation.peak_bytes = in_.number();
    call.blocks.resize(call.tape.values.size());
    for (std::uint32_t& block : call.blocks) block = index_or_none(sketch_.blocks.size());
    call.operators = in_.list(sketch_.operators.size());
    call.begins = moments();
    call.ends = moments();
    call.saved_at = in_.list(operations + 1);
    call.releases = moments();
    require(call.operators.size() == operations && call.begins.size() == operations &&
            call.ends.size() == operations && call.saved_at.size() == saves && call.releases.size() == saves);
    for (const auto& node : call.tape.unpacks) decode(call.nodes.emplace_back(), node.size());
    decode_ranges(call);
  }

  void decode(Sketch::Node& node, std::size_t unpacks) {
    node.unpacks = in_.list(sketch_.moments);
    node.end = index_or_none(std::uint64_t{sketch_.moments} + 1);
    require(unpacks > 0 && node.unpacks.size() == unpacks);
  }

  void decode_ranges(Sketch::Call& call) {
    for (Sketch::Call::Operators* range : {&call.forward, &call.backward}) {
      range->begin = in_.index(sketch_.operators.size() + 1);
      range->end = in_.index(sketch_.operators.size() + 1);
    }
    call.forward_begin = moment();
    call.forward_end = moment();
    call.backward_begin = moment();
    call.backward_end = moment();
    require(call.forward_begin <= call.forward_end && call.backward_begin <= call.backward_end);
  }

  Decoder in_;
  Sketch sketch_;
};

}  // namespace

void save_sketch(const Sketch& sketch, const std::filesystem::path& path) {
  const std::string payload = encode(sketch);
  check(payload.size() <= UINT32_MAX, "a sketch must be at most ", UINT32_MAX, " bytes long, got ",
        payload.size());
  std::string bytes(kSketchMagic);
  format::put_u32(bytes, static_cast<std::uint32_t>(payload.size()));
  format::put_u32(bytes, crc32(payload));
  OutputFile file(path);
  file.write(bytes + payload);
  file.close();
}

Sketch load_sketch(const std::filesystem::path& path) {
  constexpr std::size_t kHeader = kSketchMagic.size() + 8;
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const std::string name = path.string();
  const std::string_view family = kSketchMagic.substr(0, kSketchMagic.size() - 1);
  check(bytes.starts_with(family) && bytes.size() > family.size(), name, ": not a snug sketch");
  check(bytes.starts_with(kSketchMagic), name, ": a snug sketch of version ", bytes[family.size()],
        ", this snug reads version ", kSketchMagic.back());
  check(bytes.size() >= kHeader && bytes.size() - kHeader >= format::get_u32(bytes.data() + kHeader - 8),
        name, ": damaged sketch: the file was cut short");
  const std::string_view payload = bytes.substr(kHeader);
  check(payload.size() == format::get_u32(bytes.data() + kHeader - 8), name,
        ": damaged sketch: data after the end");
  check(crc32(payload) == format::get_u32(bytes.data() + kHeader - 4), name,
        ": damaged sketch: wrong checksum");
  auto sketch = SketchDecoder(payload).decode();
  check(sketch.has_value(), name, ": damaged sketch: it contradicts itself");
  return std::move(*sketch);
}

}  // namespace snug::trace
