#include "snug/nn/stack.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <string>
#include <vector>

#include "snug/hooks/region.h"

namespace snug::nn {
namespace {

std::string here() {
  return hooks::region_name(hooks::current_region());
}

TEST(Stack, RunsItsPartsInOrderEachInItsRegion) {
  std::vector<std::string> visited;
  auto add_one = [&](const at::Tensor& x) {
    visited.push_back(here());
    return x + 1;
  };
  const Stack stack{.embed = add_one, .blocks = {add_one, add_one}, .head = add_one};
  EXPECT_EQ(stack.run(at::zeros({1})).item<float>(), 4.0f);
  EXPECT_EQ(visited, (std::vector<std::string>{"embed", "layers.0", "layers.1", "head"}));
  EXPECT_EQ(here(), "");
}

TEST(Stack, LetsGoOfEachBlocksInputOnceItIsUsed) {
  c10::weak_intrusive_ptr<c10::StorageImpl> first(c10::intrusive_ptr<c10::StorageImpl>{});
  bool gone = false;
  const Stack stack{
      .embed =
          [&](const at::Tensor& x) {
            at::Tensor y = x + 1;
            first = c10::weak_intrusive_ptr<c10::StorageImpl>(
                c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(y.storage().unsafeGetStorageImpl()));
            return y;
          },
      .blocks = {[](const at::Tensor& x) { return x + 1; }},
      .head =
          [&](const at::Tensor& x) {
            gone = first.expired();
            return x.sum();
          }};
  stack.run(at::zeros({4}));
  EXPECT_TRUE(gone) << "without a graph nothing else holds the embedding's output";
}

TEST(Stack, AnExceptionInABlockLeavesItsRegion) {
  auto pass = [](const at::Tensor& x) { return x; };
  const Stack stack{
      .embed = pass,
      .blocks = {[](const at::Tensor&) -> at::Tensor { throw std::runtime_error("a block failed"); }},
      .head = pass};
  EXPECT_THROW(stack.run(at::zeros({1})), std::runtime_error);
  EXPECT_EQ(here(), "");
}

TEST(Stack, BindsAModulesParametersToARegion) {
  torch::nn::Linear layer(2, 2);
  bind_to_region("layers.7", *layer);
  EXPECT_EQ(hooks::region_name(hooks::region_of_parameter(layer->weight)), "layers.7");
}

}  // namespace
}  // namespace snug::nn
