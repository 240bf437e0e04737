// A process held to its share of a GPU. Skips loudly where there is no GPU.
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/host/arena.h"
#include "snug/memory/budget.h"
#include "snug/plan/planner.h"

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

class BudgetCuda : public testing::Test {
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

TEST_F(BudgetCuda, CapsWhatTensorsGet) {
  const Budget budget(kDevice, outside_ + 2_GiB, outside_);
  EXPECT_NO_THROW(on_device(1_GiB));
  EXPECT_THROW(on_device(3_GiB), c10::OutOfMemoryError);
}

TEST_F(BudgetCuda, LeavesNoCapBehind) {
  { const Budget budget(kDevice, outside_ + 1_GiB, outside_); }
  EXPECT_NO_THROW(on_device(2_GiB));
}

TEST_F(BudgetCuda, PutsBackTheCapThatWas) {
  cap_cuda_allocator(0, 0.5);
  { const Budget budget(kDevice, outside_ + 1_GiB, outside_); }
  EXPECT_NEAR(cuda_allocator_share(0), 0.5, 1e-6);
  cap_cuda_allocator(0, 1);
}

TEST_F(BudgetCuda, ALowerCapStaysInForce) {
  const auto device = static_cast<double>(cuda_device(0).memory_bytes);
  cap_cuda_allocator(0, static_cast<double>(1_GiB) / device);
  {
    Budget budget(kDevice, outside_ + 4_GiB, outside_);
    EXPECT_THROW(on_device(2_GiB), c10::OutOfMemoryError);
    const Outside library(64_MiB);
    budget.recheck();
    EXPECT_THROW(on_device(2_GiB), c10::OutOfMemoryError);
  }
  cap_cuda_allocator(0, 1);
}

TEST_F(BudgetCuda, ABudgetBelowWhatCudaTakesIsAnError) {
  EXPECT_THROW(Budget(kDevice, outside_ / 2, outside_), Error);
}

TEST_F(BudgetCuda, WhatLibrariesTakeLaterIsTakenFromTensors) {
  Budget budget(kDevice, outside_ + 2_GiB, outside_);
  const Outside library(1_GiB);
  EXPECT_EQ(budget.recheck(), "") << "it still fits";
  EXPECT_THROW(on_device(1_GiB + 512_MiB), c10::OutOfMemoryError);
}

TEST_F(BudgetCuda, ABudgetThatIsPassedIsSaidOnce) {
  Budget budget(kDevice, outside_ + 2_GiB, outside_);
  const at::Tensor tensor = on_device(1_GiB + 512_MiB);
  const Outside library(1_GiB);
  const std::string trouble = budget.recheck();
  EXPECT_NE(trouble.find("more than expected"), std::string::npos) << trouble;
  EXPECT_EQ(budget.recheck(), "");
}

TEST_F(BudgetCuda, AStepThatOthersLeaveNoRoomForIsRefused) {
  const Budget budget(kDevice, std::nullopt);
  const CudaDevice device = cuda_device(0);
  EXPECT_NO_THROW(budget.require(device.free_bytes));
  EXPECT_THROW(budget.require(device.memory_bytes + 1), RunError);
}

// As it is seen from outside: 2 MiB per GiB on an H200, none of it named as this process's.
TEST_F(BudgetCuda, PageTablesOfPinnedMemoryCount) {
  const std::uint64_t process = process_memory(kDevice).process_bytes, free = cuda_device(0).free_bytes;
  host::Arena arena({.pinned = true, .budget_bytes = 4_GiB});
  arena.reserve(4_GiB);
  const std::uint64_t taken = free - cuda_device(0).free_bytes,
                      counted = process_memory(kDevice).process_bytes - process;
  EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(taken), static_cast<double>(1_MiB));
  const plan::Overhead overhead = plan::overhead_of(plan::preset("h200"));
  EXPECT_LE(taken, overhead.outside_with(4_GiB) - overhead.outside_bytes) << "what plans expect";
  RecordProperty("page_table_bytes", static_cast<int>(taken));
}

TEST_F(BudgetCuda, WithoutAnIndexItIsTheCurrentDevice) {
  if (torch::cuda::device_count() < 2) GTEST_SKIP() << "ONE GPU: another current device was not tested";
  c10::cuda::CUDAGuard guard(1);
  at::empty({1}, at::TensorOptions(c10::kCUDA));
  const std::uint64_t outside = process_memory(c10::kCUDA).outside_bytes();
  const Budget budget(c10::kCUDA, outside + 1_GiB, outside);
  EXPECT_LT(cuda_allocator_share(1), 1);
  EXPECT_EQ(cuda_allocator_share(0), 1);
}

}  // namespace
}  // namespace snug::memory
