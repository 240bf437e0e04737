// What the search says of random steps, and the leanest plan that is offered, against every plan there is.
#include <gtest/gtest.h>

#include <limits>
#include <memory>

#include "snug/plan/planner.h"
#include "tests/plan/random_problem.h"
#include "tests/plan/random_sketch.h"

namespace snug::plan {
namespace {

constexpr unsigned kSteps = 300;
constexpr std::size_t kMostAssignments = 5000;

struct Case {
  bool skips, on_device, linked;
};
constexpr Case kSettings[] = {{false, false, false}, {false, false, true}, {false, true, false},
                              {false, true, true},   {true, false, false}, {true, false, true},
                              {true, true, false},   {true, true, true}};

std::shared_ptr<const StepModel> random_model(unsigned seed, const Case& setting) {
  RandomSketch step(seed, setting.skips);
  if (setting.on_device) step.run_on_a_device();
  const Links links = setting.linked ? Links{1e6, 1e6, 0.05, std::uint64_t{1} << 40} : Links{};
  return std::make_shared<const StepModel>(
      std::move(step.sketch), 1, [](const trace::Work& work) { return work.bytes; }, links);
}

// Calls see(model) for random steps, in words where it fails.
template <class See>
void for_each_step(const Case& setting, See see) {
  for (unsigned seed = 0; seed < kSteps; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", skips " << setting.skips << ", on a device "
                                      << setting.on_device << ", with a link " << setting.linked);
    see(random_model(seed, setting));
  }
}

bool is_small(const StepModel& model) {
  std::size_t assignments = 1;
  for (const auto& region : model.regions()) assignments *= region.choices->size();
  return assignments <= kMostAssignments;
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
  for (const Case& setting : kSettings)
    for_each_step(setting, [&](const std::shared_ptr<const StepModel>& model) {
      const Planner planner({{.model = model}});
      const std::uint64_t leanest = planner.offers().front().tensor_bytes;
      EXPECT_LE(leanest, lean_peak(*model, Fate::Keep));
      EXPECT_LE(leanest, lean_peak(*model, setting.linked ? Fate::Offload : Fate::Keep));
    });
}

TEST(Leanest, TheSearchNeverCountsTooLittle) {
  for (const Case& setting : kSettings)
    for_each_step(setting, [](const std::shared_ptr<const StepModel>& model) {
      if (!is_small(*model)) return;
      for_each_assignment(model->problem(), [&](const auto& chosen, const Outcome& outcome) {
        ASSERT_GE(outcome.peak_bytes, model->peak_bytes(chosen));
      });
    });
}

// Exactly so for a step as it ran on a device, if nothing is read by more regions than the next.
TEST(Leanest, IsTheLeastOfAllAssignments) {
  for (const Case& setting : kSettings) {
    int missed = 0, all = 0;
    for_each_step(setting, [&](const std::shared_ptr<const StepModel>& model) {
      if (!is_small(*model)) return;
      std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
      for_each_assignment(model->problem(), [&](const auto& chosen, const Outcome&) {
        least = std::min(least, model->peak_bytes(chosen));
      });
      ++all;
      const bool is_missed = Planner({{.model = model}}).offers().front().tensor_bytes > least;
      EXPECT_FALSE(is_missed && setting.on_device && !setting.skips);
      missed += is_missed;
    });
    EXPECT_LE(10 * missed, all) << missed;
  }
}

}  // namespace
}  // namespace snug::plan
