#include "snug/plan/search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>

#include "snug/base/error.h"
#include "snug/plan/chain_step.h"
#include "snug/plan/label.h"

namespace snug::plan {

namespace {

struct Step {
  Choice choice;
  std::uint32_t number = 0;  // in the region's choices
};

using Steps = std::vector<Step>;

// What any completion needs at least, from one region on, beyond what the regions before left behind.
struct Rest {
  std::uint64_t peak_bytes = 0;
  std::uint64_t own_bytes = 0;  // the next region's alone, on top of what is moving
};

bool is_dominated(const Step& step, const Step& by) {
  const Choice &a = by.choice, &b = step.choice;
  return a.kept_bytes <= b.kept_bytes && a.offloaded_bytes <= b.offloaded_bytes &&
         a.own_bytes() <= b.own_bytes() && a.forward_seconds <= b.forward_seconds &&
         a.backward_seconds <= b.backward_seconds;
}

class Search {
 public:
  Search(const Problem& problem, const SearchOptions& options)
      : problem_(problem), most_(options.most_labels) {
    check(most_ >= 2, "most_labels must be at least 2, got ", most_);
    for (std::size_t i = 0; i < problem.regions.size(); ++i)
      check(problem.regions[i] && !problem.regions[i]->empty(), "region ", i, " has no choice");
    for (const auto& choices : problem.regions) {
      auto [entry, fresh] = steps_of_.try_emplace(choices.get());
      if (fresh) entry->second = useful_steps(*choices);
      regions_.push_back(&entry->second);
    }
    look_ahead();
  }

  Frontier run() {
    layers_.push_back({Label{}});
    for (std::size_t i = 0; i + 1 < regions_.size(); ++i) {
      layers_.push_back(expand(i));
      drop_dominated(layers_.back());
      thin(layers_.back(), most_);
    }
    return finish_all();
  }

 private:
  Steps useful_steps(const Choices& choices) const {
    Steps all, useful;
    for (std::uint32_t i = 0; i < choices.size(); ++i) {
      check_choice(problem_, choices[i]);
      all.push_back({choices[i], i});
    }
    for (const Step& step : all) {
      const bool dominated = std::ranges::any_of(all, [&](const Step& other) {
        return is_dominated(step, other) && (other.number < step.number || !is_dominated(other, step));
      });
      if (!dominated) useful.push_back(step);
    }
    return useful;
  }

  void look_ahead() {
    rest_.resize(regions_.size() + 1);
    for (std::size_t i = regions_.size(); i-- > 0;) {
      constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
      rest_[i] = {kMost, kMost};
      for (const Step& step : *regions_[i]) {
        const Choice& choice = step.choice;
        rest_[i].peak_bytes = std::min(
            rest_[i].peak_bytes, std::max(choice.own_bytes(), choice.kept_bytes + rest_[i + 1].peak_bytes));
        rest_[i].own_bytes = std::min(rest_[i].own_bytes, choice.own_bytes());
      }
    }
  }

  // The peak that the rest makes certain counts at once: then peak and kept bytes mostly rise together, and
  // far fewer labels are worth keeping.
  std::vector<Label> expand(std::size_t region) const {
    const std::vector<Label>& before = layers_.back();
    const Rest& rest = rest_[region + 1];
    std::vector<Label> labels;
    labels.reserve(before.size() * regions_[region]->size());
    for (std::uint32_t parent = 0; parent < before.size(); ++parent) {
      for (std::uint32_t i = 0; i < regions_[region]->size(); ++i) {
        ChainState state = advance(problem_, before[parent].state, (*regions_[region])[i].choice);
        state.peak_bytes =
            std::max({state.peak_bytes, problem_.floor_bytes, state.kept_bytes + rest.peak_bytes,
                      state.kept_bytes + state.moving_bytes + rest.own_bytes});
        labels.push_back({state, parent, i});
      }
    }
    return labels;
  }

  struct End {
    Outcome outcome;
    std::uint32_t parent = 0;
    std::uint32_t step = 0;
  };

  Frontier finish_all() const {
    if (regions_.empty()) return {Point{problem_.floor_bytes, problem_.fixed_seconds, {}}};
    const std::vector<Label>& before = layers_.back();
    std::vector<End> ends;
    for (std::uint32_t parent = 0; parent < before.size(); ++parent) {
      for (std::uint32_t i = 0; i < regions_.back()->size(); ++i) {
        const Choice& last = (*regions_.back())[i].choice;
        ends.push_back({finish(problem_, advance(problem_, before[parent].state, last)), parent, i});
      }
    }
    std::ranges::sort(ends, {}, [](const End& end) {
      return std::tuple(end.outcome.peak_bytes, end.outcome.seconds, end.parent, end.step);
    });
    Frontier frontier;
    for (const End& end : ends)
      if (frontier.empty() || end.outcome.seconds < frontier.back().seconds)
        frontier.push_back({end.outcome.peak_bytes, end.outcome.seconds, chosen(end)});
    return frontier;
  }

  std::vector<std::uint32_t> chosen(const End& end) const {
    std::vector<std::uint32_t> numbers(regions_.size());
    numbers.back() = regions_.back()->at(end.step).number;
    std::uint32_t at = end.parent;
    for (std::size_t i = regions_.size() - 1; i-- > 0;) {
      const Label& label = layers_[i + 1][at];
      numbers[i] = regions_[i]->at(label.choice).number;
      at = label.parent;
    }
    return numbers;
  }

  const Problem& problem_;
  const std::size_t most_;
  std::map<const Choices*, Steps> steps_of_;
  std::vector<const Steps*> regions_;
  std::vector<Rest> rest_;                  // rest_[i]: from region i on
  std::vector<std::vector<Label>> layers_;  // layers_[i]: before region i; parents are in layers_[i - 1]
};

}  // namespace

Frontier search(const Problem& problem, const SearchOptions& options) {
  return Search(problem, options).run();
}

const Point* best(const Frontier& frontier, std::uint64_t budget_bytes) {
  const auto above = std::ranges::upper_bound(frontier, budget_bytes, {}, &Point::peak_bytes);
  return above == frontier.begin() ? nullptr : &*std::prev(above);
}

}  // namespace snug::plan
