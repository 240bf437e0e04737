// Random small steps as a sketch has them: a chain of regions with what lies between them, outputs that their
// own region saves, and values that later regions read too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "snug/plan/timeline.h"

namespace snug::plan {

class RandomSketch {
 public:
  // With `skips`, what a region made may be read by the one after the next, too.
  explicit RandomSketch(unsigned seed, bool skips) : random_(seed), skips_(skips) {
    if (below(2)) allocate();  // a parameter, say
    sketch.begin = sketch.moments;
    const int regions = below(3) + 2;
    made_.push_back(allocate());
    for (int i = 0; i < regions; ++i) add_forward(i);
    std::uint32_t gradient = allocate();
    free(made_.back());
    for (auto call = sketch.calls.rbegin(); call != sketch.calls.rend(); ++call)
      gradient = add_backward(*call, gradient);
    free(gradient);
    sketch.operators_of_passes = static_cast<std::uint32_t>(sketch.operators.size());
    allocate();  // an optimizer's
    free(static_cast<std::uint32_t>(sketch.blocks.size() - 1));
  }

  // As where it really ran, with nothing kept: what recomputing needs was there.
  void run_on_a_device() {
    std::vector<Profile> lean;
    const Timeline timeline(sketch);
    for (std::size_t call = 0; call < sketch.calls.size(); ++call) {
      const std::size_t values = sketch.calls[call].tape.values.size();
      lean.push_back(
          timeline.profile(call, timeline.allowed(call, std::vector<Fate>(values, Fate::Recompute))));
    }
    for (const Profile& profile : lean)
      for (const auto& kept : profile.kept)
        sketch.blocks[kept.block].death = std::max(sketch.blocks[kept.block].death, kept.until);
  }

  Sketch sketch;

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }

  std::uint32_t allocate() {
    constexpr std::uint64_t kUnit = 64 * 1024;  // what is smaller is never offloaded
    sketch.blocks.push_back(
        {.bytes = kUnit * (1 + static_cast<std::uint64_t>(below(20))), .birth = sketch.moments++});
    return static_cast<std::uint32_t>(sketch.blocks.size() - 1);
  }
  void free(std::uint32_t block) { sketch.blocks[block].death = sketch.moments; }
  std::uint32_t add_operator() {
    sketch.operators.push_back({.name = "op", .bytes = 1.0 + below(20)});
    return static_cast<std::uint32_t>(sketch.operators.size() - 1);
  }
  template <class Things>
  std::size_t one_of(const Things& things) {
    return static_cast<std::size_t>(below(static_cast<int>(things.size())));
  }

  // Reads what the region before made, and now and then what an older one did.
  void add_forward(int number) {
    Sketch::Call call{.forward_begin = sketch.moments};
    call.tape.region = "r" + std::to_string(number);
    call.forward.begin = static_cast<std::uint32_t>(sketch.operators.size());
    std::vector<std::size_t> inputs{made_.size() - 1};
    if (made_.size() > 1 && sketch.blocks[made_.end()[-2]].death == Sketch::kNever)
      inputs.push_back(made_.size() - 2);
    for (const std::size_t input : inputs) add_value(call, trace::TapeValue::kOutside, made_[input]);
    const int operations = below(4) + 1;
    for (int i = 0; i < operations; ++i) add_operation(call, i + 1 == operations);
    const auto output = call.blocks.back();
    for (std::size_t value = inputs.size(); value + 1 < call.blocks.size(); ++value) {
      const auto is_read = [&](const trace::TapeOperation& operation) {
        return std::ranges::count(operation.reads, static_cast<trace::ValueIndex>(value)) > 0;
      };
      Moment last = call.ends[call.tape.values[value].operation];
      for (std::size_t i = 0; i < call.ends.size(); ++i)
        if (is_read(call.tape.operations[i])) last = call.ends[i];
      sketch.blocks[call.blocks[value]].death = last;
    }
    call.forward_end = sketch.moments;
    call.forward.end = static_cast<std::uint32_t>(sketch.operators.size());
    for (std::size_t i = 0; i < made_.size(); ++i)  // x = region(x), unless somebody may read it once more
      if (i + 1 < made_.size() || !skips_ || below(2)) free_once(made_[i]);
    made_.push_back(output);
    sketch.calls.push_back(std::move(call));
    if (below(3) == 0) free(allocate());  // between two regions
  }

  void free_once(std::uint32_t block) {
    if (sketch.blocks[block].death == Sketch::kNever) free(block);
  }

  void add_value(Sketch::Call& call, std::uint32_t operation, std::uint32_t block) {
    call.tape.values.push_back({.operation = operation, .bytes = sketch.blocks[block].bytes});
    call.blocks.push_back(block);
  }

  void add_operation(Sketch::Call& call, bool is_last) {
    const auto number = static_cast<std::uint32_t>(call.tape.operations.size());
    trace::TapeOperation operation{.name = "op", .replayable = below(8) > 0};
    for (int i = below(2); i >= 0; --i)
      operation.reads.push_back(
          static_cast<trace::ValueIndex>(i == 0 ? call.tape.values.size() - 1 : one_of(call.tape.values)));
    call.begins.push_back(sketch.moments);
    const bool has_scratch = below(3) == 0;
    const std::uint32_t made = allocate();
    operation.peak_bytes = sketch.blocks[made].bytes;
    if (has_scratch) {
      const std::uint32_t scratch = allocate();
      free(scratch);
      operation.peak_bytes += sketch.blocks[scratch].bytes;
    }
    call.ends.push_back(sketch.moments);
    call.operators.push_back(add_operator());
    add_value(call, number, made);
    operation.results.push_back(static_cast<trace::ValueIndex>(call.tape.values.size() - 1));
    const auto save = [&](trace::ValueIndex value) {
      call.tape.saves.push_back(value);
      call.saved_at.push_back(number + 1);
    };
    if (below(2)) save(operation.reads.front());
    if (below(3) == 0 || (is_last && call.tape.saves.empty())) save(operation.results.front());
    call.tape.operations.push_back(std::move(operation));
  }

  // A node per operation that saved something.
  std::uint32_t add_backward(Sketch::Call& call, std::uint32_t gradient) {
    call.backward.begin = static_cast<std::uint32_t>(sketch.operators.size());
    call.releases.resize(call.tape.saves.size());
    for (std::size_t last = call.tape.saves.size(); last > 0;) {
      std::size_t first = last;
      while (first > 0 && call.saved_at[first - 1] == call.saved_at[last - 1]) --first;
      auto& asked = call.tape.unpacks.emplace_back();
      Sketch::Node& node = call.nodes.emplace_back();
      for (std::size_t i = first; i < last; ++i) {
        asked.push_back(call.tape.saves[i]);
        node.unpacks.push_back(sketch.moments++);
      }
      if (below(3) == 0) allocate();  // a parameter's gradient
      const std::uint32_t next = allocate();
      free(gradient);
      gradient = next;
      node.end = sketch.moments;
      for (std::size_t i = first; i < last; ++i) call.releases[i] = sketch.moments;
      add_operator();
      last = first;
    }
    call.backward.end = static_cast<std::uint32_t>(sketch.operators.size());
    call.backward_begin = call.nodes.front().unpacks.front();
    call.backward_end = sketch.moments;
    return gradient;
  }

  std::mt19937 random_;
  const bool skips_;
  std::vector<std::uint32_t> made_;  // blocks that regions hand on
};

}  // namespace snug::plan
