#include "snug/session/known_plans.h"

#include <algorithm>
#include <utility>

#include "snug/base/error.h"

namespace snug::session {

namespace {

constexpr double kBucket = 1.25;  // a plan for steps so many times as large wastes too much

bool is_alike(const plan::Plan& a, const plan::Plan& b) {
  return std::ranges::equal(a.regions, b.regions, [](const auto& one, const auto& other) {
    return one.region == other.region && one.structure == other.structure && one.passes == other.passes;
  });
}

std::uint64_t bytes(const plan::Plan& plan) {
  std::uint64_t sum = 0;
  for (const plan::RegionPlan& region : plan.regions) sum += region.bytes;
  return sum;
}

}  // namespace

const KnownPlan& KnownPlans::add(plan::Plan plan, const StepSize& size) {
  std::erase_if(plans_, [&](const KnownPlan& known) {
    return known.size.pass == size.pass && is_alike(known.plan, plan) && bytes(known.plan) <= bytes(plan);
  });
  return plans_.emplace_back(std::move(plan), size);
}

const KnownPlan* KnownPlans::covering(const StepSize& size, bool is_one_pass, const KnownPlan& like,
                                      std::uint64_t budget_bytes) const {
  const KnownPlan* best = nullptr;
  for (const KnownPlan& known : plans_) {
    const std::int64_t pass = known.size.pass;
    const bool is_large_enough =
        pass >= size.pass && static_cast<double>(pass) <= kBucket * static_cast<double>(size.pass);
    if (is_large_enough && (is_one_pass || known.plan.setting.accumulation != 1) &&
        is_alike(known.plan, like.plan) &&
        known.plan.predicted.peak_bytes + known.more_bytes(size) <= budget_bytes &&
        (!best || pass < best->size.pass))
      best = &known;
  }
  return best;
}

const KnownPlan& KnownPlans::largest_like(const KnownPlan& known) const {
  const KnownPlan* largest = &known;
  for (const KnownPlan& other : plans_)
    if (is_alike(other.plan, known.plan) && bytes(other.plan) > bytes(largest->plan)) largest = &other;
  return *largest;
}

const KnownPlan* KnownPlans::for_step(std::span<const trace::RegionTape> tapes) const {
  const auto found = std::ranges::find_if(
      plans_, [&](const KnownPlan& known) { return difference(known.plan, tapes).empty(); });
  return found == plans_.end() ? nullptr : &*found;
}

std::uint64_t made_bytes(std::span<const trace::RegionTape> tapes) {
  std::uint64_t sum = 0;
  for (const trace::RegionTape& tape : tapes) sum += plan::made_bytes(tape);
  return sum;
}

std::string difference(const plan::Plan& plan, std::span<const trace::RegionTape> tapes) try {
  for (const trace::RegionTape& tape : tapes)
    if (!tape.unpacks.empty())  // else no backward: an evaluation, or a step that threw
      plan::check_matches(plan, tape);
  return "";
} catch (const Error& error) {
  return error.what();
}

}  // namespace snug::session
