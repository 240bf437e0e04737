// The optimizers and clipping on a GPU, against the same on the CPU.
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "snug/hooks/region.h"
#include "snug/host/store.h"
#include "snug/optim/adamw.h"
#include "snug/optim/clip.h"
#include "snug/optim/sgd.h"
#include "tests/optim/placements.h"
#include "tests/optim/there_net.h"
#include "tests/optim/trajectory.h"

namespace snug::optim {
namespace {

using testing::give_gradients;
using testing::random_parameters;

class OptimCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "NO GPU: optimizers on CUDA were not tested";
  }
};

std::vector<at::Tensor> on_gpu(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().to(at::kCUDA).requires_grad_());
  return copies;
}

template <class Kind, class Options>
void expect_same_on_gpu(at::ScalarType dtype, const Options& options) {
  auto cpu_parameters = random_parameters(dtype);
  auto gpu_parameters = on_gpu(cpu_parameters);
  Kind cpu(cpu_parameters, options), gpu(gpu_parameters, options);
  for (int step = 0; step < 20; ++step) {
    give_gradients(cpu_parameters, step);
    for (std::size_t i = 0; i < cpu_parameters.size(); ++i) {
      gpu_parameters[i].mutable_grad() = cpu_parameters[i].grad().to(at::kCUDA);
    }
    // One gradient in another layout: the fused kernel refuses it, the optimizer must not.
    gpu_parameters[0].mutable_grad() = gpu_parameters[0].grad().t().contiguous().t();
    cpu.step();
    gpu.step();
  }
  const double tolerance = dtype == at::kFloat ? 1e-5 : 1e-2;
  for (std::size_t i = 0; i < cpu_parameters.size(); ++i) {
    EXPECT_TRUE(at::allclose(gpu_parameters[i].cpu(), cpu_parameters[i], tolerance, 1e-6))
        << dtype << ", parameter " << i;
    EXPECT_TRUE(at::allclose(gpu.exact(i).cpu(), cpu.exact(i), 1e-5, 1e-6)) << dtype << ", parameter " << i;
  }
  EXPECT_EQ(gpu.state_bytes(), cpu.state_bytes());
}

TEST_F(OptimCuda, AdamWFollowsTheCpu) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_same_on_gpu<AdamW>(dtype,
                              AdamWOptions{.lr = 1e-2, .weight_decay = 0.1, .decay_matrices_only = true});
  }
}

TEST_F(OptimCuda, SgdFollowsTheCpu) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    expect_same_on_gpu<Sgd>(dtype, SgdOptions{.lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1});
  }
}

TEST_F(OptimCuda, StatesOnTheHostHaveTheSameBits) {
  for (const testing::PlacedCase& some : testing::placed_cases())
    testing::expect_same_bits_on_the_host(at::Device(at::kCUDA, 0), some);
}

// What the device computes some milliseconds after the host asked for it.
at::Tensor late(const at::Tensor& value) {
  at::Tensor busy = at::full({4096, 4096}, 1e-4, at::TensorOptions(value.device()).dtype(at::kBFloat16));
  for (int i = 0; i < 100; ++i) busy = busy.mm(busy);
  return value + busy[0][0] * 0;
}

// The device is behind the host by more than any copy takes: whatever does not wait for gradients, or for
// weights that are updated, is early.
TEST_F(OptimCuda, UpdatesBesideTheDeviceWaitForIt) {
  const at::Device device(at::kCUDA, 0);
  const auto store = host::Store::shared(device);
  const auto run = [&](const Placement& placement) {
    at::manual_seed(1);
    std::vector<at::Tensor> weights;
    for (int i = 0; i < 3; ++i)
      weights.push_back(
          at::randn({2048, 2048}, at::TensorOptions(device).dtype(at::kBFloat16)).requires_grad_());
    for (std::size_t i = 0; i < weights.size(); ++i)
      hooks::bind_parameters(hooks::region_id("late." + std::to_string(i)), {weights[i]});
    AdamW optimizer(weights, {.lr = 1e-2, .placement = placement});
    std::vector<at::Tensor> losses;
    for (int step = 0; step < 3; ++step) {
      at::Tensor x = late(at::full({2048, 1}, 1e-2, weights[0].options().requires_grad(false)));
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const hooks::RegionScope scope("late." + std::to_string(i));
        x = weights[i].mm(x);
      }
      const at::Tensor loss = late(x.sum());
      optimizer.last_pass(1e-2);
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      losses.push_back(loss.detach());
    }
    optimizer.finish();
    for (const at::Tensor& weight : weights) losses.push_back(weight.detach().clone());
    return losses;
  };
  const std::vector<at::Tensor> expected = run({});
  for (const UpdateTime update : {UpdateTime::InStep, UpdateTime::BeforeForward, UpdateTime::InBackward})
    for (const double stepped : {0.0, 0.5}) {
      const auto got = run({.on_host = 1, .store = store, .update = update, .stepped_there = stepped});
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::equal(got[i], expected[i])) << static_cast<int>(update) << " " << stepped << " " << i;
    }
}

TEST_F(OptimCuda, HalfKeepsWhatItsWeightCannot) {
  std::vector<at::Tensor> parameters{
      at::ones({100}, at::TensorOptions(at::kCUDA).dtype(at::kHalf)).requires_grad_()};
  Sgd optimizer(parameters, {.lr = 1e-5});
  for (int step = 0; step < 10; ++step) {
    parameters[0].mutable_grad() = at::ones_like(parameters[0].detach());
    optimizer.step();
  }
  // The next number of fp16 is 1 - 2^-11.
  EXPECT_TRUE(at::equal(parameters[0].detach().cpu(), at::ones({100}, at::kHalf)));
  EXPECT_TRUE(at::allclose(optimizer.exact(0).cpu(), at::full({100}, 1 - 1e-4), 0, 1e-6));
}

TEST_F(OptimCuda, ClippingFollowsTheCpuAndKeepsItsFactorInFp32) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::manual_seed(5);
    const std::vector<at::Tensor> cpu{at::randn({300, 200}).to(dtype), at::randn({77}).to(dtype),
                                      at::ones({}, dtype)};
    std::vector<at::Tensor> gpu;
    for (const at::Tensor& gradient : cpu) gpu.push_back(gradient.to(at::kCUDA));
    const float expected = clip_grad_norm_(cpu, 1.0).item<float>();
    EXPECT_NEAR(clip_grad_norm_(gpu, 1.0).item<float>(), expected, 1e-5 * expected);
    for (std::size_t i = 0; i < cpu.size(); ++i) {
      EXPECT_TRUE(at::allclose(gpu[i].cpu(), cpu[i], dtype == at::kFloat ? 1e-5 : 1e-2, 0)) << "tensor " << i;
    }
    if (dtype == at::kFloat) continue;
    // A factor rounded to 16 bits would move many elements to the next place; the norms' rounding moves few.
    const auto moved = gpu[0].cpu().ne(cpu[0]).sum().item<std::int64_t>();
    EXPECT_LE(moved, cpu[0].numel() / 100);
  }
}

TEST_F(OptimCuda, UpdatesInTheBackwardHaveTheBitsOfThoseInStep) {
  testing::expect_bits_of_updates_in_step(at::Device(at::kCUDA, 0));
}

TEST_F(OptimCuda, ParametersOnTheHostHaveTheBitsOfThoseThatStay) {
  testing::expect_bits_of_parameters_that_stay(at::Device(at::kCUDA, 0));
}

}  // namespace
}  // namespace snug::optim
