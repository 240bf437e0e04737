// A process held to its share of a GPU. Skips loudly where there is no GPU.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "snug/base/error.h"
#include "snug/memory/device_budget.h"

namespace snug::memory {
namespace {

const c10::Device kDevice(c10::kCUDA, 0);

at::Tensor on_device(std::uint64_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(kDevice).dtype(at::kByte));
}

// Beside torch's allocator, as a library does.
class Outside {
 public:
  explicit Outside(std::uint64_t bytes) { EXPECT_EQ(cudaMalloc(&memory_, bytes), cudaSuccess); }
  ~Outside() { cudaFree(memory_); }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

 private:
  void* memory_ = nullptr;
};

class DeviceBudgetCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the budget of a device was not tested";
    note_memory_before_context(0);
    on_device(1);
    outside_ = process_memory(kDevice).outside_bytes();
  }
  void TearDown() override {
    if (torch::cuda::is_available()) empty_cuda_cache();
  }
  std::uint64_t outside_ = 0;
};

TEST_F(DeviceBudgetCuda, CapsWhatTensorsGet) {
  const DeviceBudget budget(kDevice, outside_ + 2_GiB, outside_);
  EXPECT_NO_THROW(on_device(1_GiB));
  EXPECT_THROW(on_device(3_GiB), c10::OutOfMemoryError);
}

TEST_F(DeviceBudgetCuda, LeavesNoCapBehind) {
  { const DeviceBudget budget(kDevice, outside_ + 1_GiB, outside_); }
  EXPECT_NO_THROW(on_device(2_GiB));
}

TEST_F(DeviceBudgetCuda, ABudgetBelowWhatCudaTakesIsAnError) {
  EXPECT_THROW(DeviceBudget(kDevice, outside_ / 2, outside_), Error);
}

TEST_F(DeviceBudgetCuda, WhatLibrariesTakeLaterIsTakenFromTensors) {
  DeviceBudget budget(kDevice, outside_ + 2_GiB, outside_);
  const Outside library(1_GiB);
  EXPECT_EQ(budget.recheck(), "") << "it still fits";
  EXPECT_THROW(on_device(1_GiB + 512_MiB), c10::OutOfMemoryError);
}

TEST_F(DeviceBudgetCuda, ABudgetThatIsPassedIsSaidOnce) {
  DeviceBudget budget(kDevice, outside_ + 2_GiB, outside_);
  const at::Tensor tensor = on_device(1_GiB + 512_MiB);
  const Outside library(1_GiB);
  const std::string trouble = budget.recheck();
  EXPECT_NE(trouble.find("more than was reckoned with"), std::string::npos) << trouble;
  EXPECT_EQ(budget.recheck(), "");
}

TEST_F(DeviceBudgetCuda, AStepThatOthersLeaveNoRoomForIsRefused) {
  const DeviceBudget budget(kDevice, std::nullopt);
  const CudaDevice device = cuda_device(0);
  EXPECT_NO_THROW(budget.require(device.free_bytes));
  EXPECT_THROW(budget.require(device.memory_bytes + 1), RunError);
}

}  // namespace
}  // namespace snug::memory
