// Optimizers and clipping take and free the same memory on Meta as on the CPU: it can be predicted.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <vector>

#include "snug/capture/meta_kernels.h"
#include "snug/optim/adamw.h"
#include "snug/optim/clip.h"
#include "snug/optim/sgd.h"
#include "tests/support/allocation_log.h"

namespace snug::optim {
namespace {

using testing::expect_same_allocations;

std::vector<at::Tensor> trainable(at::Device device, at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{64, 32}, {100}, {48, 16}}) {
    parameters.push_back(at::ones(shape, at::TensorOptions(device).dtype(dtype)).requires_grad_());
    parameters.back().mutable_grad() = at::ones(shape, at::TensorOptions(device).dtype(dtype));
  }
  return parameters;
}

class MetaOptim : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { capture::register_meta_kernels(); }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, MetaOptim, ::testing::Values(at::kFloat, at::kBFloat16));

TEST_P(MetaOptim, AdamWTakesTheMemoryOfTheCpu) {
  expect_same_allocations([](at::Device device) {
    return [parameters = trainable(device, GetParam())] {
      AdamW optimizer(parameters, {.weight_decay = 0.1, .decay_matrices_only = true});
      optimizer.step();
    };
  });
}

TEST_P(MetaOptim, SgdTakesTheMemoryOfTheCpu) {
  expect_same_allocations([](at::Device device) {
    return [parameters = trainable(device, GetParam())] {
      Sgd optimizer(parameters, {.momentum = 0.9, .weight_decay = 0.1});
      optimizer.step();
    };
  });
}

TEST(MetaClip, TakesTheMemoryOfTheCpu) {
  expect_same_allocations([](at::Device device) {
    const Sgd holder(trainable(device, at::kFloat));
    return [gradients = holder.gradients()] { clip_grad_norm_(gradients, 1.0); };
  });
}

}  // namespace
}  // namespace snug::optim
