#include "snug/plan/chain_step.h"

#include <algorithm>
#include <cmath>

#include "snug/base/error.h"
#include "snug/trace/moves.h"

namespace snug::plan {

namespace {

bool is_time(double seconds) {
  return std::isfinite(seconds) && seconds >= 0;
}

double copy_seconds(std::uint64_t bytes, double rate) {
  return bytes == 0 ? 0 : static_cast<double>(bytes) / rate;
}

// By which computing is slower while these are copied, there and back.
double slowdown_seconds(const Problem& problem, std::uint64_t bytes) {
  return problem.copy_slowdown *
         (copy_seconds(bytes, problem.to_host_rate) + copy_seconds(bytes, problem.to_device_rate));
}

// How long computing, slowed down, waits for the copies beside it.
double wait_seconds(const Problem& problem, double computing, std::uint64_t out, std::uint64_t in) {
  const double sending = copy_seconds(out, problem.to_host_rate),
               fetching = copy_seconds(in, problem.to_device_rate);
  double copying = std::max(sending, fetching);
  if (out > 0 && in > 0)
    copying = problem.both_ways_rate > 0 ? std::max(copying, copy_seconds(out + in, problem.both_ways_rate))
                                         : sending + fetching;
  return std::max(0.0, copying - (computing + problem.copy_slowdown * copying));
}

}  // namespace

void check_choice(const Problem& problem, const Choice& choice) {
  check(choice.offloaded_bytes == 0 || (problem.to_host_rate > 0 && problem.to_device_rate > 0),
        "a choice offloads ", choice.offloaded_bytes,
        " bytes, which needs a link with rates above 0 in both directions, got ", problem.to_host_rate,
        " and ", problem.to_device_rate);
  check(is_time(choice.forward_seconds) && is_time(choice.backward_seconds),
        "the times of a choice must be finite and at least 0, got ", choice.forward_seconds, " and ",
        choice.backward_seconds);
}

// Beside a region's computing runs what the regions before it move: see Note [One region ahead].
static_assert(trace::copies_beside(1) == 0u, "a ChainState holds what one region moves");

ChainState advance(const Problem& problem, const ChainState& before, const Choice& choice) {
  const std::uint64_t there = before.kept_bytes + before.moving_bytes;
  const double waiting =
      wait_seconds(problem, choice.forward_seconds, before.moving_bytes, choice.forward_in_bytes) +
      wait_seconds(problem, choice.backward_seconds, choice.backward_out_bytes,
                   before.moving_bytes + choice.backward_in_bytes);
  return {.kept_bytes = before.kept_bytes + choice.kept_bytes,
          .moving_bytes = choice.offloaded_bytes,
          .peak_bytes = std::max(before.peak_bytes, there + choice.own_bytes()),
          .seconds = before.seconds + choice.forward_seconds + choice.backward_seconds +
                     slowdown_seconds(problem, choice.offloaded_bytes) + waiting};
}

Outcome finish(const Problem& problem, const ChainState& end) {
  return {.peak_bytes = std::max({problem.floor_bytes, end.peak_bytes, end.kept_bytes + end.moving_bytes}),
          .seconds = problem.fixed_seconds +
                     problem.passes * (end.seconds - slowdown_seconds(problem, end.moving_bytes))};
}

}  // namespace snug::plan
