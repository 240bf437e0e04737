#include "snug/plan/step_model.h"

#include <gtest/gtest.h>

#include "snug/base/error.h"
#include "snug/plan/bound.h"
#include "snug/plan/search.h"
#include "tests/plan/sketched_step.h"

namespace snug::plan {
namespace {

Hardware without_link(const char* name) {
  Hardware hardware = preset(name);
  hardware.to_host_rate = hardware.to_device_rate = 0;
  return hardware;
}

TEST(StepModel, EveryPointOfTheFrontierHasThePeakThatTheTimelineSays) {
  for (const char* name : kSketches) {
    const auto model = model_of(name, without_link("h200"), 2);
    const Frontier frontier = search(model->problem());
    ASSERT_GE(frontier.size(), 3u) << name;
    for (const Point& point : frontier) {
      EXPECT_EQ(model->peak_bytes(point.chosen), point.peak_bytes) << name;
      EXPECT_EQ(model->host_bytes(point.chosen), 0u);
      EXPECT_GE(point.seconds, lower_bound(model->problem(), point.peak_bytes));
    }
    EXPECT_EQ(model->seconds(model->all_kept()), frontier.back().seconds) << name;
  }
}

TEST(StepModel, RegionsOfOneKindShareTheirChoices) {
  const auto model = model_of("llama_on_cpu", without_link("cpu"), 2);
  const auto choices_of = [&](const std::string& name) {
    return std::ranges::find(model->regions(), name, &StepModel::Region::name)->choices;
  };
  EXPECT_EQ(choices_of("layers.1"), choices_of("layers.2"));
  EXPECT_NE(choices_of("layers.1"), choices_of("head"));
}

TEST(StepModel, WithoutOffloadTheSameValuesAreRecomputedAndTheRestStays) {
  Hardware hardware = preset("h200");
  hardware.matmul_flops_bf16 /= 100;  // so that moving values is worth it
  const auto model = model_of("llama_on_gpu", hardware);
  int moved = 0;
  for (const Point& point : search(model->problem())) {
    if (model->host_bytes(point.chosen) == 0) continue;
    ++moved;
    const auto here = model->without_offload(point.chosen);
    EXPECT_EQ(model->host_bytes(here), 0u);
    EXPECT_GE(model->peak_bytes(here), model->peak_bytes(point.chosen));
    const auto with = model->fates(point.chosen), without = model->fates(here);
    for (std::size_t call = 0; call < with.size(); ++call)
      for (std::size_t i = 0; i < with[call].size(); ++i)
        EXPECT_EQ(with[call][i] == Fate::Recompute, without[call][i] == Fate::Recompute);
  }
  EXPECT_GT(moved, 3);
}

TEST(StepModel, AStepWithoutRegionsIsRefused) {
  EXPECT_THROW(StepModel(Sketch{}, 1, [](const trace::Work&) { return 1.0; }), Error);
}

}  // namespace
}  // namespace snug::plan
