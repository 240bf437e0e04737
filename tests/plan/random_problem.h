// Random planning problems of a given size, and every assignment of one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "snug/plan/problem.h"

namespace snug::plan {

inline std::shared_ptr<const Choices> share(Choices choices) {
  return std::make_shared<const Choices>(std::move(choices));
}

class RandomProblem {
 public:
  explicit RandomProblem(std::uint64_t seed) : random_(seed) {}

  // Few distinct numbers in some of them, so that ties and plateaus come up. `most` bounds the assignments.
  Problem draw(std::uint64_t most) {
    range_ = one_of(2) ? 12 : 1000;
    offload_ = one_of(2) == 0;
    Problem problem{.fixed_seconds = 0.25 * static_cast<double>(one_of(3)),
                    .passes = static_cast<double>(1 + one_of(3)),
                    .copy_slowdown = 0.05 * static_cast<double>(one_of(2))};
    if (offload_ || one_of(2)) problem.to_host_rate = rate(), problem.to_device_rate = rate();
    if (one_of(3) == 0) problem.floor_bytes = one_of(4 * range_);
    const std::uint64_t regions = most >= kAll ? 6 : 1 + one_of(6);
    std::uint64_t assignments = 1;
    for (std::uint64_t i = 0; i < regions; ++i) {
      const std::uint64_t room = std::min<std::uint64_t>(8, most / assignments);
      const std::uint64_t choices = most >= kAll ? 8 : 1 + one_of(room);
      assignments *= choices;
      problem.regions.push_back(region(choices));
    }
    return problem;
  }

  static constexpr std::uint64_t kAll = 8 * 8 * 8 * 8 * 8 * 8;

 private:
  std::uint64_t one_of(std::uint64_t n) { return random_() % n; }
  double rate() { return static_cast<double>(1 + one_of(range_)) / 3; }
  double seconds() { return static_cast<double>(one_of(range_)) / static_cast<double>(range_); }

  std::shared_ptr<const Choices> region(std::uint64_t count) {
    Choices choices(count);
    for (Choice& choice : choices) {
      choice = {.kept_bytes = one_of(range_),
                .forward_bytes = one_of(2 * range_),
                .backward_bytes = one_of(3 * range_),
                .forward_seconds = seconds(),
                .backward_seconds = 2 * seconds()};
      if (offload_ && one_of(2)) choice.offloaded_bytes = one_of(range_);
    }
    return share(std::move(choices));
  }

  std::mt19937_64 random_;
  std::uint64_t range_ = 0;
  bool offload_ = false;
};

// Calls see(chosen, outcome) for every assignment.
template <class See>
void for_each_assignment(const Problem& problem, See see) {
  std::vector<std::uint32_t> chosen(problem.regions.size());
  std::size_t at = 0;
  while (at < chosen.size() || chosen.empty()) {
    see(chosen, evaluate(problem, chosen));
    for (at = 0; at < chosen.size(); ++at) {
      if (++chosen[at] < problem.regions[at]->size()) break;
      chosen[at] = 0;
    }
    if (chosen.empty()) return;
  }
}

}  // namespace snug::plan
