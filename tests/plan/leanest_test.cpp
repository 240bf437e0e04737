// Of random steps, the leanest plan that is offered against a step that keeps nothing.
#include <gtest/gtest.h>

#include <memory>

#include "snug/plan/planner.h"
#include "tests/plan/random_sketch.h"

namespace snug::plan {
namespace {

constexpr unsigned kSteps = 300;

struct Kind {
  bool skips, on_device, linked;
};
constexpr Kind kKinds[] = {{false, false, false}, {false, false, true}, {false, true, false},
                           {false, true, true},   {true, false, false}, {true, false, true},
                           {true, true, false},   {true, true, true}};

std::shared_ptr<const StepModel> random_model(unsigned seed, const Kind& kind) {
  RandomSketch step(seed, kind.skips);
  if (kind.on_device) step.run_on_a_device();
  const Links links = kind.linked ? Links{.to_host_rate = 1e6,
                                          .to_device_rate = 1e6,
                                          .copy_slowdown = 0.05,
                                          .host_bytes = std::uint64_t{1} << 40}
                                  : Links{};
  return std::make_shared<const StepModel>(
      std::move(step.sketch), 1, [](const trace::Work& work) { return work.bytes; }, links);
}

// Calls see(model) for random steps, in words where it fails.
template <class See>
void for_each_step(const Kind& kind, See see) {
  for (unsigned seed = 0; seed < kSteps; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", skips " << kind.skips << ", on a device "
                                      << kind.on_device << ", with a link " << kind.linked);
    see(random_model(seed, kind));
  }
}

// Nothing kept that can be recomputed; what comes in is on the device, or on the host where it may be.
std::uint64_t lean_peak(const StepModel& model, Fate of_inputs) {
  const Timeline& timeline = model.timeline();
  std::vector<Profile> profiles;
  for (std::size_t call = 0; call < model.sketch().calls.size(); ++call) {
    std::vector<Fate> fates;
    for (const trace::TapeValue& value : model.sketch().calls[call].tape.values)
      fates.push_back(value.operation == trace::TapeValue::kOutside ? of_inputs : Fate::Recompute);
    profiles.push_back(timeline.profile(call, timeline.allowed(call, std::move(fates))));
  }
  std::vector<const Profile*> all;
  for (const Profile& profile : profiles) all.push_back(&profile);
  return timeline.peak(all);
}

TEST(Leanest, NoOfferIsBeatenByAStepThatKeepsNothing) {
  for (const Kind& kind : kKinds)
    for_each_step(kind, [&](const std::shared_ptr<const StepModel>& model) {
      const Planner planner({{.model = model}});
      const std::uint64_t leanest = planner.offers().front().tensor_bytes;
      EXPECT_LE(leanest, lean_peak(*model, Fate::Keep));
      EXPECT_LE(leanest, lean_peak(*model, kind.linked ? Fate::Offload : Fate::Keep));
    });
}

}  // namespace
}  // namespace snug::plan
