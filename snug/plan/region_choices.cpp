#include "snug/plan/region_choices.h"

#include <algorithm>
#include <set>

#include "snug/plan/min_cut.h"

namespace snug::plan {

namespace {

using trace::RegionTape;
using trace::TapeValue;
using trace::ValueIndex;

// The operations that are run again, and what that costs.
struct Cut {
  std::vector<bool> again;  // by operation
  double bytes = 0;         // kept
  double seconds = 0;
};

class Cuts {
 public:
  Cuts(const Timeline& timeline, std::size_t call, std::span<const double> seconds)
      : call_(timeline.sketch().calls[call]),
        tape_(call_.tape),
        seconds_(seconds),
        saved_(tape_.values.size()) {
    for (const ValueIndex saved : tape_.saves) saved_[saved] = true;
    for (std::size_t i = 0; i < tape_.values.size(); ++i) {
      const std::uint32_t block = call_.blocks[i];
      const bool is_there_anyway =
          tape_.values[i].parameter || block == Sketch::kNoBlock || timeline.death(block) > call_.forward_end;
      weights_.push_back(is_there_anyway ? 0 : static_cast<double>(tape_.values[i].bytes));
    }
    for (std::size_t i = 0; i < tape_.operations.size(); ++i) can_run_again_.push_back(can_run_again(i));
  }

  // The cheapest at this price of a byte in seconds.
  Cut at(double price) const {
    MinCut graph;
    const auto source = graph.add_node(), sink = graph.add_node();
    // On the source's side: the operation is run again; the value is needed.
    std::vector<MinCut::Node> operations, values;
    for (std::size_t i = 0; i < tape_.operations.size(); ++i) operations.push_back(graph.add_node());
    for (std::size_t i = 0; i < tape_.values.size(); ++i) values.push_back(graph.add_node());
    for (std::size_t i = 0; i < operations.size(); ++i) {
      graph.add_edge(operations[i], sink, can_run_again_[i] ? seconds_[i] : MinCut::kForever);
      if (is_forced(i)) graph.add_edge(source, operations[i], MinCut::kForever);
      for (const ValueIndex read : tape_.operations[i].reads)
        graph.add_edge(operations[i], values[read], MinCut::kForever);
      for (const auto& write : tape_.operations[i].writes) {
        graph.add_edge(operations[i], values[write.before], MinCut::kForever);
        if (const auto before = tape_.values[write.before].operation; before != TapeValue::kOutside)
          graph.add_edge(operations[i], operations[before], MinCut::kForever);
      }
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto maker = tape_.values[i].operation;
      graph.add_edge(values[i], maker == TapeValue::kOutside ? sink : operations[maker], price * weights_[i]);
      if (saved_[i]) graph.add_edge(source, values[i], MinCut::kForever);
    }
    const std::vector<bool> side = graph.solve(source, sink);
    Cut cut;
    for (const MinCut::Node node : operations) cut.again.push_back(side[node]);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto maker = tape_.values[i].operation;
      const bool recomputed = maker != TapeValue::kOutside && cut.again[maker];
      if (side[values[i]] && !recomputed) cut.bytes += weights_[i];
    }
    for (std::size_t i = 0; i < operations.size(); ++i)
      if (cut.again[i]) cut.seconds += seconds_[i];
    return cut;
  }

  bool is_free(std::size_t operation) const { return can_run_again_[operation] && !is_forced(operation); }

  std::vector<Fate> fates(const std::vector<bool>& again) const {
    std::vector<Fate> fates;
    for (const TapeValue& value : tape_.values)
      fates.push_back(value.operation != TapeValue::kOutside && again[value.operation] ? Fate::Recompute
                                                                                       : Fate::Keep);
    return fates;
  }

 private:
  bool can_run_again(std::size_t operation) const {
    if (!tape_.operations[operation].replayable) return false;
    return std::ranges::none_of(tape_.operations[operation].writes, [&](const auto& write) {
      return tape_.values[write.before].operation == TapeValue::kOutside;
    });
  }
  // Made by empty(): there is nothing to keep.
  bool is_forced(std::size_t operation) const {
    return std::ranges::any_of(tape_.operations[operation].results, [&](ValueIndex result) {
      return tape_.values[result].fate == Fate::Recompute;
    });
  }

  const Sketch::Call& call_;
  const RegionTape& tape_;
  std::span<const double> seconds_;
  std::vector<bool> saved_;
  std::vector<double> weights_;  // by value: the bytes that keeping it costs
  std::vector<bool> can_run_again_;
};

// All corners of the lower hull of (bytes, seconds) between two of them.
void between(const Cuts& cuts, const Cut& lean, const Cut& fast, std::vector<Cut>& found) {
  if (lean.bytes >= fast.bytes || lean.seconds <= fast.seconds) return;
  const double price = (lean.seconds - fast.seconds) / (fast.bytes - lean.bytes);
  Cut cut = cuts.at(price);
  const double cost = cut.seconds + price * cut.bytes, chord = fast.seconds + price * fast.bytes;
  if (cost >= chord * (1 - 1e-9)) return;
  between(cuts, cut, fast, found);
  found.push_back(cut);
  between(cuts, lean, cut, found);
}

}  // namespace

std::vector<std::vector<Fate>> region_choices(const Timeline& timeline, std::size_t call,
                                              std::span<const double> seconds) {
  const Cuts cuts(timeline, call, seconds);
  const Cut fast = cuts.at(0), lean = cuts.at(1e6);  // nobody pays a million seconds for a byte
  std::vector<Cut> hull{fast};
  between(cuts, lean, fast, hull);
  hull.push_back(lean);

  std::vector<std::vector<Fate>> choices;
  std::set<std::vector<bool>> seen;
  const auto add = [&](const std::vector<bool>& again) {
    if (seen.insert(again).second) choices.push_back(timeline.allowed(call, cuts.fates(again)));
  };
  for (const Cut& cut : hull) {
    add(cut.again);
    for (std::size_t i = 0; i < cut.again.size(); ++i) {
      if (!cuts.is_free(i)) continue;
      std::vector<bool> neighbour = cut.again;
      neighbour[i] = !neighbour[i];
      if (&cut != &hull.back()) add(neighbour);
    }
  }
  return choices;
}

}  // namespace snug::plan
