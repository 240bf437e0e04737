#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "snug/base/error.h"
#include "snug/capture/meta_kernels.h"
#include "tests/optim/placements.h"
#include "tests/support/allocation_log.h"
#include "tests/support/temporary_folder.h"

namespace snug::optim {
namespace {

using testing::message_of;

class Placements : public ::testing::TestWithParam<testing::PlacedCase> {};
INSTANTIATE_TEST_SUITE_P(All, Placements, ::testing::ValuesIn(testing::placed_cases()));

TEST_P(Placements, HaveTheSameBits) {
  testing::expect_same_bits_on_the_host(at::kCPU, GetParam(), 8);
}

TEST_P(Placements, TakeTheMemoryOnMetaThatTheyTakeHere) {
  capture::register_meta_kernels();
  testing::expect_same_allocations([](at::Device device) {
    const auto store = device.is_meta()
                           ? nullptr
                           : std::make_shared<host::Store>(device, host::StoreOptions{.budget_bytes = 1_GiB});
    std::vector<at::Tensor> parameters;
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{1200, 2900}, {129, 130}, {64}}) {
      parameters.push_back(at::ones(shape, at::TensorOptions(device).dtype(GetParam().dtype)));
      parameters.back().mutable_grad() = at::ones_like(parameters.back());
    }
    return [=] { testing::make_placed(GetParam(), parameters, GetParam().placement(store))->step(); };
  });
}

TEST(Placement, StatesThatWereLoadedAreThoseOfTheNextStep) {
  const testing::PlacedCase some{at::kBFloat16, Master::Split, true, 1};
  auto first = testing::placed_parameters(at::kCPU, some.dtype);
  auto second = testing::placed_parameters(at::kCPU, some.dtype);
  const auto store = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 1_GiB});
  const auto device = testing::make_placed(some, first, {});
  const auto host = testing::make_placed(some, second, {1, store});
  testing::take_steps(first, *device, 3);
  at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < first.size(); ++i) second[i].copy_(first[i]);
  const auto from = device->state(), to = host->state();
  for (std::size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
  testing::take_steps(first, *device, 2);
  testing::take_steps(second, *host, 2);
  for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(at::equal(first[i], second[i])) << i;
}

class Deferral : public ::testing::Test {
 protected:
  void give_gradients() {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::ones_like(parameter);
  }
  std::vector<at::Tensor> parameters = testing::placed_parameters(at::kCPU, at::kFloat);
  const std::shared_ptr<host::Store> store =
      std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 1_GiB});
  const AdamWOptions options{.placement = {1, store, UpdateTime::BeforeForward}};
};

TEST_F(Deferral, AnUpdateComesWithItsRegionAndHoldsItsGradientUntilThen) {
  AdamW optimizer(parameters, options);
  give_gradients();
  const at::Tensor gradient = parameters[0].grad();
  const at::Tensor before = parameters[0].detach().clone(), other = parameters[1].detach().clone();
  optimizer.step();
  EXPECT_FALSE(parameters[0].grad().defined());
  EXPECT_EQ(gradient.use_count(), 2);
  EXPECT_TRUE(parameters[2].grad().defined())
      << "too small to leave: updated in step(), freed by zero_grad()";
  { const hooks::RegionScope scope(testing::region_of_placed(0)); }
  EXPECT_FALSE(at::equal(parameters[0], before));
  EXPECT_EQ(gradient.use_count(), 1);
  optimizer.finish();
  EXPECT_FALSE(at::equal(parameters[1], other));
}

TEST_F(Deferral, ARegionWaitsForAllItsParametersWhereverTheyStand) {
  constexpr int kRegions = 6;
  parameters.clear();
  for (int i = 0; i <= kRegions; ++i) {
    parameters.push_back(at::randn({130, 130}).requires_grad_());
    hooks::bind_parameters(hooks::region_id(testing::region_of_placed(i % kRegions)), parameters.back());
  }
  AdamW optimizer(parameters, options);
  give_gradients();
  const at::Tensor before = parameters.back().detach().clone();
  optimizer.step();
  { const hooks::RegionScope scope(testing::region_of_placed(0)); }
  EXPECT_FALSE(at::equal(parameters.back(), before));
}

TEST_F(Deferral, TheLastOneIsNotLostWithTheOptimizer) {
  const at::Tensor before = parameters[0].detach().clone();
  {
    AdamW optimizer(parameters, options);
    give_gradients();
    optimizer.step();
  }
  EXPECT_FALSE(at::equal(parameters[0], before));
}

TEST_F(Deferral, AParameterThatIsUsedWithoutItsUpdateIsAnError) {
  AdamW optimizer(parameters, options);
  give_gradients();
  optimizer.step();
  std::thread([&] { const hooks::RegionScope scope(testing::region_of_placed(0)); }).join();
  give_gradients();
  const std::string message = message_of<Error>([&] { optimizer.step(); });
  EXPECT_NE(message.find("its last update still waits for region \"placed.0\": bind"), std::string::npos)
      << message;
}

TEST(Placement, OnTheHostNeedsHostMemory) {
  const auto parameters = testing::placed_parameters(at::kCPU, at::kFloat);
  EXPECT_NE(
      message_of<Error>([&] { AdamW(parameters, {.placement = {.on_host = 1}}); }).find("none was given"),
      std::string::npos);
  EXPECT_NE(
      message_of<Error>([&] { AdamW(parameters, {.placement = {.on_host = 1.5}}); }).find("between 0 and 1"),
      std::string::npos);
  const auto small = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 1_MiB});
  EXPECT_NE(message_of<Error>([&] {
              AdamW(parameters, {.placement = {1, small}});
            }).find("host"),
            std::string::npos);
}

}  // namespace
}  // namespace snug::optim
