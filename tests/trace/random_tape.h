// A region's tape of random operations: several results, writes, some that cannot run again; saves, and the
// order in which a backward asks for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "snug/trace/fate.h"
#include "snug/trace/region_tape.h"

namespace snug::trace {

class RandomTape {
 public:
  explicit RandomTape(unsigned seed, int most_operations = 25) : random_(seed) {
    for (int i = below(3) + 1; i > 0; --i) {
      current_.push_back(static_cast<ValueIndex>(tape.values.size()));
      tape.values.push_back({.bytes = bytes()});
    }
    for (int i = below(most_operations) + 1; i > 0; --i) add_operation();
    for (ValueIndex value = 0; value < tape.values.size(); ++value) {
      fates.push_back(below(2) ? Fate::Keep : Fate::Recompute);
      for (int i = below(3); i > 0; --i) tape.saves.push_back(value);
    }
    std::vector<ValueIndex> order = tape.saves;
    std::ranges::shuffle(order, random_);
    while (!order.empty()) {
      tape.unpacks.emplace_back();
      for (int i = below(3); i >= 0 && !order.empty(); --i) {
        tape.unpacks.back().push_back(order.back());
        order.pop_back();
      }
    }
  }

  RegionTape tape;
  std::vector<Fate> fates;

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  std::uint64_t bytes() { return static_cast<std::uint64_t>(below(1000)) + 1; }
  ValueIndex make(std::uint64_t size) {
    tape.values.push_back({.operation = static_cast<std::uint32_t>(tape.operations.size()), .bytes = size});
    return static_cast<ValueIndex>(tape.values.size() - 1);
  }

  void add_operation() {
    TapeOperation operation{.name = "op", .replayable = below(8) > 0};
    for (int i = below(3) + 1; i > 0; --i)
      operation.reads.push_back(current_[static_cast<std::size_t>(below(static_cast<int>(current_.size())))]);
    if (below(4) == 0) {  // writes what later operations may read, and nothing that it reads
      const std::size_t place = static_cast<std::size_t>(below(static_cast<int>(current_.size())));
      const ValueIndex before = current_[place];
      if (std::ranges::find(operation.reads, before) == operation.reads.end()) {
        const ValueIndex after = make(tape.values[before].bytes);
        operation.writes.push_back({before, after});
        current_[place] = after;
      }
    }
    for (int i = operation.writes.empty() ? below(2) + 1 : below(2); i > 0; --i) {
      operation.results.push_back(make(bytes()));
      current_.push_back(operation.results.back());
    }
    tape.operations.push_back(std::move(operation));
  }

  std::mt19937 random_;
  std::vector<ValueIndex> current_;
};

}  // namespace snug::trace
