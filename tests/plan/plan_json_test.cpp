#include <gtest/gtest.h>

#include "snug/base/error.h"
#include "snug/plan/planner.h"
#include "tests/plan/sketched_step.h"
#include "tests/support/temporary_folder.h"

namespace snug::plan {
namespace {

// One that recomputes, moves and keeps.
Plan written_plan() {
  Hardware hardware = preset("h200");
  hardware.matmul_flops_bf16 /= 100;
  const auto model = model_of("llama_on_gpu", hardware, 2);
  const Planner planner({{{.levers = {{kMicroBatch.name, 4}}, .accumulation = 2}, model}},
                        overhead_of(hardware));
  const auto moves = [](const Offer& offer) { return offer.host_bytes > 0; };
  const Offer& offer = *std::ranges::find_if(planner.offers(), moves);
  return planner.write_down(planner.about(offer, offer.peak_bytes), {{"model", "a llama"}});
}

TEST(PlanJson, IsReadAsItWasWritten) {
  Plan plan = written_plan();
  const auto has = [&](std::vector<ValueName> RegionPlan::*fate) {
    return std::ranges::any_of(plan.regions,
                               [&](const RegionPlan& region) { return !(region.*fate).empty(); });
  };
  EXPECT_TRUE(has(&RegionPlan::recompute));
  EXPECT_TRUE(has(&RegionPlan::offload));
  EXPECT_EQ(plan_from_json(to_json(plan), "a plan"), plan);
  EXPECT_FALSE(to_json(plan).contains("products")) << "nothing ran yet";
  plan.products = {{"NVIDIA H200, cublasLt 130200, 8 x 8", 3}};
  const testing::TemporaryFolder folder;
  save_plan(plan, folder / "plan.json");
  EXPECT_EQ(load_plan(folder / "plan.json"), plan);
}

TEST(PlanJson, APlanIsForTheTapesItWasMadeFrom) {
  const Plan plan = written_plan();
  const Sketch sketch = load_step("llama_on_gpu");
  for (std::size_t i = 0; i < plan.regions.size(); ++i) {
    const trace::RegionTape& tape = sketch.calls[i].tape;
    EXPECT_NO_THROW(check_matches(plan, tape));
    Plan other = plan;
    other.regions[i].structure ^= 1;
    EXPECT_THROW(check_matches(other, tape), Error);
    other.regions.push_back(plan.regions[i]);  // of several the one that has its structure
    EXPECT_NO_THROW(check_matches(other, tape));
    other = plan;
    other.regions[i].bytes -= 1;
    EXPECT_THROW(check_matches(other, tape), Error);
    other = plan;
    other.regions[i].recompute.push_back({999, 0, "aten::mul.Tensor"});
    EXPECT_THROW(check_matches(other, tape), Error);
    other = plan;
    other.regions[i].region = "another";
    EXPECT_THROW(check_matches(other, tape), Error);
  }
}

TEST(PlanJson, WhatIsWrongIsSaidWithItsPlace) {
  const Json good = to_json(written_plan());
  const auto refuses = [&](const std::function<void(Json&)>& edit, const std::string& says) {
    Json edited = good;
    edit(edited);
    const std::string message =
        testing::message_of<Error>([&] { plan_from_json(std::move(edited), "plan.json"); });
    EXPECT_TRUE(message.starts_with("plan.json")) << message;
    EXPECT_NE(message.find(says), std::string::npos) << message;
  };
  refuses([](Json& plan) { plan["version"] = 99; }, "version 99");
  refuses([](Json& plan) { plan.erase("micro_batch"); }, "micro_batch");
  refuses([](Json& plan) { plan["micro_batch"] = -1; }, "micro_batch");
  refuses([](Json& plan) { plan["head_chunks"] = -1; }, "head_chunks");
  refuses([](Json& plan) { plan["step"] = 3; }, "step");
  refuses([](Json& plan) { plan["unknown"] = 1; }, "unknown");
  refuses([](Json& plan) { plan["products"] = 1; }, "\"products\" must be an object");
  refuses([](Json& plan) { plan["products"] = {{"8 x 8", "fast"}}; }, "the number of an algorithm");
  refuses([](Json& plan) { plan["predicted"]["peak_bytes"] = "much"; }, "peak_bytes");
  refuses([](Json& plan) { plan["levers"][0]["saved_bytes"] = 0.5; }, "saved_bytes");
  refuses([](Json& plan) { plan["fates"][0]["structure"] = "xyz"; }, "structure");
  refuses([](Json& plan) { plan["fates"][0]["recompute"].push_back("first aten::mul"); }, "first aten::mul");
  refuses([](Json& plan) { plan["fates"].push_back(plan["fates"][0]); }, "planned twice");
}

}  // namespace
}  // namespace snug::plan
