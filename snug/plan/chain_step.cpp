#include "snug/plan/chain_step.h"

#include <algorithm>
#include <cmath>

#include "snug/base/error.h"

namespace snug::plan {

namespace {

std::uint64_t moved_bytes(double rate, double seconds) {
  constexpr double kMost = 0x1p62;  // more than there ever is, and far from overflow
  return static_cast<std::uint64_t>(std::min(rate * seconds, kMost));
}

std::uint64_t reduced(std::uint64_t bytes, std::uint64_t by) {
  return bytes - std::min(bytes, by);
}

bool is_time(double seconds) {
  return std::isfinite(seconds) && seconds >= 0;
}

}  // namespace

ChainStep chain_step(const Problem& problem, const Choice& choice) {
  check(choice.offloaded_bytes == 0 || (problem.to_host_rate > 0 && problem.to_device_rate > 0),
        "a choice offloads ", choice.offloaded_bytes,
        " bytes, which needs a link with rates above 0 in both directions, got ", problem.to_host_rate,
        " and ", problem.to_device_rate);
  check(is_time(choice.forward_seconds) && is_time(choice.backward_seconds),
        "the times of a choice must be finite and at least 0, got ", choice.forward_seconds, " and ",
        choice.backward_seconds);
  return {.choice = choice,
          .sent_bytes = moved_bytes(problem.to_host_rate, choice.forward_seconds),
          .fetched_bytes = moved_bytes(problem.to_device_rate, choice.backward_seconds),
          .seconds = choice.forward_seconds + choice.backward_seconds};
}

ChainState advance(const ChainState& before, const ChainStep& step) {
  const Choice& choice = step.choice;
  const std::uint64_t forward = before.kept_bytes + before.queued_bytes + choice.forward_bytes;
  const std::uint64_t backward = before.kept_bytes + before.lead_bytes + choice.backward_bytes;
  return {.kept_bytes = before.kept_bytes + choice.kept_bytes,
          .queued_bytes = reduced(before.queued_bytes + choice.offloaded_bytes, step.sent_bytes),
          .lead_bytes = reduced(before.lead_bytes, step.fetched_bytes) + choice.offloaded_bytes,
          .peak_bytes = std::max({before.peak_bytes, forward, backward}),
          .seconds = before.seconds + step.seconds};
}

Outcome finish(const Problem& problem, const ChainState& end, const ChainStep& last) {
  const std::uint64_t lead = end.lead_bytes - last.choice.offloaded_bytes;
  const std::uint64_t turn = end.kept_bytes + std::max(end.queued_bytes, lead);
  return {.peak_bytes = std::max({problem.floor_bytes, end.peak_bytes, turn}),
          .seconds = problem.fixed_seconds + problem.passes * end.seconds};
}

}  // namespace snug::plan
