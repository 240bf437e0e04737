#include "snug/plan/fitted.h"

#include <algorithm>

#include "snug/plan/allocator_replay.h"
#include "snug/plan/step_allocations.h"

namespace snug::plan {

namespace {

double share_beside(std::uint64_t tensors, std::uint64_t held) {
  return static_cast<double>(held) / static_cast<double>(tensors) - 1;
}

// The plain step has gaps of its own, whatever is chosen instead of it.
void fit_plain(Planner& planner, const Gpu& gpu) {
  const StepModel& model = *planner.candidates().front().model;
  Overhead overhead = planner.overhead();
  overhead.share =
      share_beside(model.peak_bytes(model.all_kept()), reserved(model, model.all_kept(), gpu).bytes);
  planner.set_plain_overhead(overhead);
}

}  // namespace

Reserved reserved(const StepModel& model, std::span<const std::uint32_t> chosen, const Gpu& gpu) {
  const CachingAllocatorOptions options{.expandable_segments = true, .device_bytes = gpu.memory_bytes};
  AllocatorReplay replay = gpu.held ? AllocatorReplay(options, gpu.held(model)) : AllocatorReplay(options);
  replay_steps(model.timeline(), model.fates(chosen),
               {.first = gpu.held ? 1 : 0,
                .count = steps_to_settle(model.streamed().leaves_gradients()),
                .is_new = !gpu.held},
               replay);
  return {replay.allocator().peak_reserved_bytes(), replay.allocator().needed_limit_bytes()};
}

Decision decide_within(Planner& planner, std::uint64_t budget_bytes, const Gpu& gpu) {
  if (gpu.memory_bytes == 0) return planner.decide(budget_bytes);
  fit_plain(planner, gpu);
  Overhead overhead = planner.overhead();
  overhead.share = 0;
  planner.set_overhead(overhead);
  const auto& offers = planner.offers();
  auto offer = std::ranges::upper_bound(offers, budget_bytes, {}, &Offer::peak_bytes);
  if (offer != offers.begin()) --offer;
  Reserved found = reserved(*planner.candidate(*offer).model, offer->chosen, gpu);
  const auto is_too_much = [&] {
    return overhead.outside_with(offer->host_bytes) + std::max(found.needed_limit, found.bytes) >
           budget_bytes;
  };
  while (is_too_much() && offer != offers.begin()) {
    --offer;
    found = reserved(*planner.candidate(*offer).model, offer->chosen, gpu);
  }
  overhead.share = share_beside(offer->tensor_bytes, found.bytes);
  planner.set_overhead(overhead);
  return planner.about(*offer, budget_bytes);
}

}  // namespace snug::plan
