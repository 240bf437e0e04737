#include "snug/plan/problem.h"

#include <algorithm>

#include "snug/base/error.h"
#include "snug/plan/chain_step.h"

namespace snug::plan {

bool is_shifted(const Problem& a, const Problem& b) {
  const std::uint64_t shift = b.floor_bytes - a.floor_bytes;  // modulo 2^64, as all that follow
  const auto choices_are = [&](const Choice& one, const Choice& other) {
    return one.kept_bytes == other.kept_bytes && one.offloaded_bytes == other.offloaded_bytes &&
           one.forward_bytes + shift == other.forward_bytes &&
           one.backward_bytes + shift == other.backward_bytes &&
           one.forward_seconds == other.forward_seconds && one.backward_seconds == other.backward_seconds &&
           one.forward_in_bytes == other.forward_in_bytes &&
           one.backward_in_bytes == other.backward_in_bytes &&
           one.backward_out_bytes == other.backward_out_bytes;
  };
  return a.passes == b.passes && a.to_host_rate == b.to_host_rate && a.to_device_rate == b.to_device_rate &&
         a.both_ways_rate == b.both_ways_rate && a.copy_slowdown == b.copy_slowdown &&
         std::ranges::equal(a.regions, b.regions, [&](const auto& one, const auto& other) {
           return std::ranges::equal(*one, *other, choices_are);
         });
}

Outcome evaluate(const Problem& problem, std::span<const std::uint32_t> chosen) {
  check(chosen.size() == problem.regions.size(), "a problem of ", problem.regions.size(),
        " regions needs as many choices, got ", chosen.size());
  ChainState state;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const Choices& choices = *problem.regions[i];
    check(chosen[i] < choices.size(), "region ", i, " has ", choices.size(), " choices, got number ",
          chosen[i]);
    check_choice(problem, choices[chosen[i]]);
    state = advance(problem, state, choices[chosen[i]]);
  }
  return finish(problem, state);
}

}  // namespace snug::plan
