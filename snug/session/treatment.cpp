#include "snug/session/treatment.h"

#include "snug/session/planned_fates.h"

namespace snug {

namespace {

tape::Fates fates_by_hand(const ByHand& by_hand) {
  return tape::Fates([=](const tape::ValueInfo& value) {
    if (!value.region.starts_with(by_hand.regions)) return trace::Fate::Keep;
    const bool is_kept = by_hand.recompute == Recompute::None || value.ordinal == tape::ValueInfo::kInput ||
                         (by_hand.recompute == Recompute::Cheap && tape::is_expensive(value.operation));
    if (!is_kept) return trace::Fate::Recompute;
    return by_hand.offload ? trace::Fate::Offload : trace::Fate::Keep;
  });
}

}  // namespace

std::unique_ptr<tape::Recording> make_recording(const Treatment& treatment, tape::RecordingOptions options) {
  if (treatment.is_nothing() && !options.describe && !options.verify) return nullptr;
  options.rest = treatment.plan.has_value();
  if (treatment.plan)
    return std::make_unique<tape::Recording>(session::planned_fates(*treatment.plan), options);
  if (treatment.by_hand.offload) options.offload = *treatment.by_hand.offload;
  return std::make_unique<tape::Recording>(fates_by_hand(treatment.by_hand), options);
}

}  // namespace snug
