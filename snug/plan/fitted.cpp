#include "snug/plan/fitted.h"

#include <algorithm>
#include <optional>

#include "snug/base/error.h"
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

CachingAllocator replayed(const StepModel& model, std::span<const std::uint32_t> chosen, const Gpu& gpu,
                          std::optional<std::uint64_t> limit_bytes) {
  const CachingAllocatorOptions options{
      .expandable_segments = true, .limit_bytes = limit_bytes, .device_bytes = gpu.memory_bytes};
  AllocatorReplay replay = gpu.held ? AllocatorReplay(options, gpu.held(model)) : AllocatorReplay(options);
  replay_steps(model.timeline(), model.fates(chosen), {.first = gpu.held ? 1 : 0, .count = 2}, replay);
  return replay.allocator();
}

// The highest that is reserved under a cap, under which the allocator may empty its cache; none if that does
// not help, or if the last page it takes lies beyond the cap.
std::optional<std::uint64_t> reserved_under(const StepModel& model, std::span<const std::uint32_t> chosen,
                                            const Gpu& gpu, std::uint64_t limit_bytes) try {
  const std::uint64_t bytes = replayed(model, chosen, gpu, limit_bytes).peak_reserved_bytes();
  return bytes <= limit_bytes ? std::optional(bytes) : std::nullopt;
} catch (const Error&) {
  return std::nullopt;
}

}  // namespace

Reserved reserved(const StepModel& model, std::span<const std::uint32_t> chosen, const Gpu& gpu) {
  const CachingAllocator allocator = replayed(model, chosen, gpu, std::nullopt);
  return {allocator.peak_reserved_bytes(), allocator.needed_limit_bytes()};
}

Decision decide_within(Planner& planner, std::uint64_t budget_bytes, const Gpu& gpu) {
  if (gpu.memory_bytes == 0) return planner.decide(budget_bytes);
  fit_plain(planner, gpu);
  Overhead overhead = planner.overhead();
  overhead.share = 0;
  planner.set_overhead(overhead);
  const auto& offers = planner.offers();
  auto fastest = std::ranges::upper_bound(offers, budget_bytes, {}, &Offer::peak_bytes);
  if (fastest != offers.begin()) --fastest;
  auto offer = fastest;
  Reserved found = reserved(*planner.candidate(*offer).model, offer->chosen, gpu);
  const auto outside = [&] { return overhead.outside_with(offer->host_bytes); };
  const auto is_too_much = [&] {
    return outside() + std::max(found.needed_limit, found.bytes) > budget_bytes;
  };
  while (is_too_much() && offer != offers.begin()) {
    --offer;
    found = reserved(*planner.candidate(*offer).model, offer->chosen, gpu);
  }
  bool empties_cache = false;
  for (auto other = fastest + 1; gpu.may_empty_cache && is_too_much() && other != offers.begin();) {
    --other;
    const std::uint64_t beside = overhead.outside_with(other->host_bytes);
    if (beside >= budget_bytes) continue;
    const auto bytes =
        reserved_under(*planner.candidate(*other).model, other->chosen, gpu, budget_bytes - beside);
    if (!bytes) continue;
    offer = other;
    found = {*bytes, *bytes};
    empties_cache = true;
  }
  overhead.share = share_beside(offer->tensor_bytes, found.bytes);
  planner.set_overhead(overhead);
  Decision decision = planner.about(*offer, budget_bytes);
  decision.empties_cache = empties_cache;
  return decision;
}

}  // namespace snug::plan
