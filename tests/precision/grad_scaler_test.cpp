#include "snug/precision/grad_scaler.h"

#include "snug/base/error.h"
#include "tests/precision/scaler_cases.h"
#include "tests/support/temporary_folder.h"

namespace snug {
namespace {

using namespace snug::testing;

TEST(GradScalerTest, SkipsExactlyTheOverflow) {
  expect_it_skips_exactly_the_overflow(c10::kCPU);
}

TEST(GradScalerTest, EachOptimizerIsSkippedForItsOwnOverflow) {
  expect_each_optimizer_is_skipped_for_its_own_overflow(c10::kCPU);
}

TEST(GradScalerTest, OurOptimizersTakeHalf) {
  expect_our_optimizers_take_half(c10::kCPU);
}

TEST(GradScalerTest, UnscaledGradientsCanBeClipped) {
  GradScaler scaler(c10::kCPU, {.init_scale = 1024});
  at::Tensor weight = fp32_weight(c10::kCPU);
  torch::optim::SGD optimizer({weight}, 1);
  give_gradient(scaler, weight, 3);
  EXPECT_TRUE(at::equal(weight.grad(), at::full({4}, 3072.0)));
  scaler.unscale_(optimizer);
  EXPECT_TRUE(at::equal(weight.grad(), at::full({4}, 3.0)));
  weight.mutable_grad().mul_(0.5);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(at::equal(weight.detach(), at::full({4}, -0.5)));
}

TEST(GradScalerTest, TakesBf16Gradients) {
  GradScaler scaler(c10::kCPU, {.init_scale = 3});  // whose inverse is no bf16
  at::Tensor weight = at::ones({4}, at::kBFloat16).requires_grad_();
  torch::optim::SGD optimizer({weight}, 1);
  weight.mutable_grad() = at::full({4}, 3.0, at::kBFloat16);
  scaler.unscale_(optimizer);
  EXPECT_TRUE(at::equal(weight.grad(), at::ones({4}, at::kBFloat16)));
  scaler.update();
  weight.mutable_grad()[2] = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(scaler.step(optimizer));
}

TEST(GradScalerTest, AFailedStepMayBeTriedAgain) {
  GradScaler scaler(c10::kCPU, {.init_scale = 2});
  std::vector<at::Tensor> weights{at::ones({4}).requires_grad_(), at::ones({0}).requires_grad_()};
  optim::Sgd optimizer(weights, {.lr = 0.5});
  EXPECT_THROW(scaler.step(optimizer), Error) << "no gradients";
  for (at::Tensor& weight : weights) weight.mutable_grad() = at::full_like(weight.detach(), 2.0);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(at::equal(weights[0].detach(), at::full({4}, 0.5)));
}

TEST(GradScalerTest, HasTheStateOfTorchs) {
  GradScaler scaler(c10::kCPU);
  EXPECT_EQ(scaler.state().dump(),
            R"({"scale":65536.0,"growth_factor":2.0,"backoff_factor":0.5,"growth_interval":2000,)"
            R"("_growth_tracker":0})");
  at::Tensor weight = fp32_weight(c10::kCPU);
  torch::optim::SGD optimizer({weight}, 0.5);
  give_gradient(scaler, weight, 1);
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(scaler.state()["_growth_tracker"], 1);

  GradScaler other(c10::kCPU, {.init_scale = 2});
  other.load_state(scaler.state());
  EXPECT_EQ(other.state(), scaler.state());
  const std::string missing = message_of<Error>([&] { other.load_state(Json::object()); });
  EXPECT_NE(missing.find("\"scale\""), std::string::npos) << missing;
  EXPECT_TRUE(GradScaler(c10::kCPU, {.enabled = false}).state().empty());
}

TEST(GradScalerTest, ADisabledOnePassesThrough) {
  GradScaler scaler(c10::kCPU, {.enabled = false});
  at::Tensor weight = fp32_weight(c10::kCPU);
  torch::optim::SGD optimizer({weight}, 0.5);
  give_gradient(scaler, weight, 1);
  EXPECT_TRUE(at::equal(weight.grad(), at::ones({4})));
  EXPECT_EQ(scaler.inverse_scale().item<float>(), 1.0F);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_TRUE(at::equal(weight.detach(), at::full({4}, 0.5)));
}

TEST(GradScalerTest, SaysWhatIsOutOfOrder) {
  GradScaler scaler(c10::kCPU);
  at::Tensor weight = fp32_weight(c10::kCPU);
  torch::optim::SGD optimizer({weight}, 0.5);
  const auto says = [](const auto& run, const char* what) {
    const std::string message = message_of<Error>(run);
    EXPECT_NE(message.find(what), std::string::npos) << message;
  };
  says([&] { scaler.update(); }, "update() without a step()");
  says([&] { scaler.unscale_(optimizer); }, "no gradients");
  give_gradient(scaler, weight, 1);
  scaler.unscale_(optimizer);
  says([&] { scaler.unscale_(optimizer); }, "twice");
  scaler.step(optimizer);
  says([&] { scaler.step(optimizer); }, "step() was called twice");
  says([&] { scaler.unscale_(optimizer); }, "after step()");
  says([&] { scaler.update(0); }, "above 0");
  says([&] { scaler.update(1e300); }, "fit fp32");
  scaler.update(16);
  EXPECT_EQ(scaler.get_scale(), 16);

  at::Tensor half = at::ones({4}, at::kHalf).requires_grad_();
  torch::optim::SGD of_half({half}, 0.5);
  half.mutable_grad() = at::ones({4}, at::kHalf);
  says([&] { scaler.unscale_(of_half); }, "fp16");
  says([] { GradScaler(c10::kCPU, {.growth_factor = 1}); }, "growth_factor");
  says([] { GradScaler(c10::kCPU, {.backoff_factor = 1}); }, "backoff_factor");
}

}  // namespace
}  // namespace snug
