#include "snug/plan/problem.h"

#include "snug/base/error.h"
#include "snug/plan/chain_step.h"

namespace snug::plan {

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
