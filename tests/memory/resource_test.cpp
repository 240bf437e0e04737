#include "snug/memory/resource.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/memory/limiting_allocator.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/tracker.h"
#include "snug/memory/tracking_allocator.h"

namespace snug::memory {
namespace {

// Lent to an allocator that does not outlive it.
template <class Observer>
std::shared_ptr<BlockObserver> lend(Observer& observer) {
  return {std::shared_ptr<void>(), &observer};
}

struct Books : BlockObserver {
  void on_alloc(void* address, std::size_t bytes) noexcept override {
    std::lock_guard lock(mutex);
    ++allocated;
    doubled += blocks.contains(address);
    blocks[address] = bytes;
    live += bytes;
  }
  void on_free(void* address, std::size_t bytes) noexcept override {
    std::lock_guard lock(mutex);
    wrong += !blocks.contains(address) || blocks[address] != bytes;
    blocks.erase(address);
    live -= bytes;
  }
  std::mutex mutex;
  std::map<void*, std::size_t> blocks;
  std::size_t live = 0;
  int allocated = 0, doubled = 0, wrong = 0;
};

// What every Resource must do, whatever it wraps and whichever device it serves.
struct Kind {
  const char* name;
  c10::DeviceType device;
  std::shared_ptr<Resource> (*make)(Books&);
};

class ResourceContract : public testing::TestWithParam<Kind> {
 protected:
  at::Tensor tensor(std::int64_t bytes) {
    return at::empty({bytes}, at::TensorOptions(at::kByte).device(GetParam().device));
  }
  Books books;
  std::shared_ptr<Resource> resource = GetParam().make(books);
};

TEST_P(ResourceContract, GivesDistinctLiveAddresses) {
  void* a = resource->allocate(100);
  void* b = resource->allocate(100);
  EXPECT_NE(a, nullptr);
  EXPECT_NE(a, b);
  resource->deallocate(a, 100);
  resource->deallocate(b, 100);
}

TEST_P(ResourceContract, ServesTensorsInsideItsScopeOnly) {
  at::Tensor before = tensor(64);
  at::Tensor inside;
  {
    ResourceScope scope(GetParam().device, resource);
    EXPECT_EQ(current_resource(GetParam().device), resource);
    inside = tensor(1000);
    EXPECT_EQ(books.live, 1000u);
    before.reset();
  }
  EXPECT_NE(current_resource(GetParam().device), resource);
  at::Tensor after = tensor(64);
  inside.reset();  // outlived the scope, and goes back to where it came from
  EXPECT_EQ(books.live, 0u);
  EXPECT_EQ(books.wrong, 0);
}

TEST_P(ResourceContract, FreesFromAnotherThreadAreTheSame) {
  ResourceScope scope(GetParam().device, resource);
  std::vector<at::Tensor> tensors;
  for (int i = 1; i <= 200; ++i) tensors.push_back(tensor(i));
  EXPECT_EQ(books.live, 200u * 201 / 2);
  std::thread([moved = std::move(tensors)]() mutable { moved.clear(); }).join();
  EXPECT_EQ(books.live, 0u);
  EXPECT_EQ(books.wrong + books.doubled, 0);
}

TEST_P(ResourceContract, ManyThreadsAtOnceKeepTheBooksRight) {
  ResourceScope scope(GetParam().device, resource);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([this, t] {
      std::vector<at::Tensor> held;
      for (int i = 0; i < 2000; ++i) {
        held.push_back(tensor(1 + (i * 7 + t) % 5000));
        if (i % 3 == 0) held.erase(held.begin());
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(books.allocated, 4 * 2000);
  EXPECT_EQ(books.live, 0u);
  EXPECT_EQ(books.wrong + books.doubled, 0);
}

TEST_P(ResourceContract, AnEmptyTensorTakesNothing) {
  ResourceScope scope(GetParam().device, resource);
  at::Tensor empty = tensor(0);
  EXPECT_EQ(books.blocks.size(), 0u);
}

template <c10::DeviceType device>
std::shared_ptr<Resource> tracked(Books& books) {
  return std::make_shared<TrackingAllocator>(default_resource(device), lend(books));
}
template <c10::DeviceType device>
std::shared_ptr<Resource> limited(Books& books) {
  return std::make_shared<LimitingAllocator>(tracked<device>(books), 1_GiB);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ResourceContract,
                         testing::Values(Kind{"TrackedCpu", c10::kCPU, tracked<c10::kCPU>},
                                         Kind{"LimitedCpu", c10::kCPU, limited<c10::kCPU>},
                                         Kind{"TrackedMeta", c10::kMeta, tracked<c10::kMeta>},
                                         Kind{"LimitedMeta", c10::kMeta, limited<c10::kMeta>}),
                         [](const auto& info) { return info.param.name; });

TEST(Resource, TrackingSeesTheBytesOfATensorExactly) {
  Books books;
  ResourceScope scope(c10::kCPU,
                      std::make_shared<TrackingAllocator>(default_resource(c10::kCPU), lend(books)));
  at::Tensor x = at::empty({10, 7}, at::kFloat);
  EXPECT_EQ(books.live, 280u);
  x.resize_({20, 7});
  EXPECT_EQ(books.live, 560u);
  at::Tensor view = x.slice(0, 1, 3);
  x.reset();
  EXPECT_EQ(books.live, 560u) << "a view keeps the storage";
  view.reset();
  EXPECT_EQ(books.live, 0u);
}

TEST(Resource, MemoryThatIsNotTorchsIsNotSeen) {
  Books books;
  ResourceScope scope(c10::kCPU,
                      std::make_shared<TrackingAllocator>(default_resource(c10::kCPU), lend(books)));
  std::vector<float> mine(100);
  { at::Tensor wrapped = at::from_blob(mine.data(), {100}); }
  EXPECT_EQ(books.live, 0u);
  EXPECT_EQ(books.wrong, 0);
}

TEST(Resource, RawBlocksOlderThanTheScopeAreFreedWhereTheyCameFrom) {
  Books books;
  void* older = c10::GetAllocator(c10::kCPU)->raw_allocate(128);
  void* torchs = c10::GetDefaultCPUAllocator()->raw_allocate(128);  // as before snug was in the slot
  ResourceScope scope(c10::kCPU,
                      std::make_shared<TrackingAllocator>(default_resource(c10::kCPU), lend(books)));
  ASSERT_NE(c10::GetAllocator(c10::kCPU), c10::GetDefaultCPUAllocator());
  c10::GetAllocator(c10::kCPU)->raw_deallocate(older);
  c10::GetAllocator(c10::kCPU)->raw_deallocate(torchs);
  EXPECT_EQ(books.wrong, 0);
}

TEST(Resource, AMachineWithoutThatMuchMemorySaysWhatWasAlive) {
  auto unlimited = std::make_shared<LimitingAllocator>(default_resource(c10::kCPU), 1ull << 62);
  ResourceScope scope(c10::kCPU, unlimited);
  at::Tensor kept = at::empty({1000}, at::kByte);
  try {
    at::empty({std::int64_t{1} << 60}, at::kByte);
    FAIL() << "an exbibyte was found";
  } catch (const OutOfBudget& error) {
    EXPECT_FALSE(error.budget_bytes());
    EXPECT_EQ(error.alive().total, 1000u);
    EXPECT_EQ(std::string(error.what()).find("out of memory: "), 0u) << error.what();
  }
  EXPECT_EQ(unlimited->live_bytes(), 1000u);
}

TEST(Resource, TheLimitIsExactToTheByte) {
  auto limit = std::make_shared<LimitingAllocator>(default_resource(c10::kCPU), 1000);
  ResourceScope scope(c10::kCPU, limit);
  at::Tensor most = at::empty({1000}, at::kByte);
  EXPECT_EQ(limit->live_bytes(), 1000u);
  EXPECT_THROW(at::empty({1}, at::kByte), OutOfBudget);
  EXPECT_EQ(limit->live_bytes(), 1000u) << "a refusal leaves no trace";
  most.reset();
  at::Tensor again = at::empty({1000}, at::kByte);
}

TEST(Resource, ARefusalIsAlsoTorchsOutOfMemoryError) {
  ResourceScope scope(c10::kCPU, std::make_shared<LimitingAllocator>(default_resource(c10::kCPU), 10));
  EXPECT_THROW(at::ones({100}), c10::OutOfMemoryError);
}

TEST(Resource, LimitsNest) {
  auto outer = std::make_shared<LimitingAllocator>(default_resource(c10::kCPU), 1000);
  ResourceScope outer_scope(c10::kCPU, outer);
  {
    ResourceScope inner_scope(c10::kCPU, std::make_shared<LimitingAllocator>(outer, 100));
    EXPECT_THROW(at::empty({101}, at::kByte), OutOfBudget);
    at::Tensor fits = at::empty({100}, at::kByte);
    EXPECT_EQ(outer->live_bytes(), 100u);
  }
  at::Tensor fits = at::empty({1000}, at::kByte);
}

TEST(Resource, ScopesEndInAnyOrderAndBlocksGoBackToTheirOwnSource) {
  Books first_books, second_books;
  auto tracked = [](Books& books) {
    return std::make_shared<TrackingAllocator>(default_resource(c10::kCPU), lend(books));
  };
  auto first = std::make_unique<ResourceScope>(c10::kCPU, tracked(first_books));
  auto watching = std::make_unique<Tracker>();
  at::Tensor of_first = at::empty({100}, at::kByte);
  const auto second_source = tracked(second_books);
  auto second = std::make_unique<ResourceScope>(c10::kCPU, second_source);
  at::Tensor of_second = at::empty({10}, at::kByte);
  first.reset();
  EXPECT_EQ(current_resource(c10::kCPU), second_source);
  second.reset();
  at::Tensor of_none = at::empty({1}, at::kByte);
  EXPECT_EQ(watching->live_bytes(), 101u);
  EXPECT_EQ(first_books.live, 100u);
  EXPECT_EQ(second_books.live, 10u);
  of_first.reset();
  of_second.reset();
  EXPECT_EQ(watching->live_bytes(), 1u);
  EXPECT_EQ(first_books.live + second_books.live, 0u);
  EXPECT_EQ(first_books.wrong + second_books.wrong, 0);
  watching.reset();
  EXPECT_EQ(current_resource(c10::kCPU), default_resource(c10::kCPU));
}

TEST(Resource, WhatWasBuiltOnATrackerIsNotLimitedByItOnceItIsGone) {
  auto tracker = std::make_unique<Tracker>(TrackerOptions{.budget_bytes = 1000});
  ResourceScope scope(c10::kCPU, std::make_shared<LimitingAllocator>(current_resource(c10::kCPU), 2000));
  EXPECT_THROW(at::empty({1001}, at::kByte), OutOfBudget);
  tracker.reset();
  at::empty({2000}, at::kByte);
  EXPECT_THROW(at::empty({2001}, at::kByte), OutOfBudget);
}

TEST(Resource, CudaHasNoResource) {
  EXPECT_THROW(default_resource(c10::kCUDA), snug::Error);
}

}  // namespace
}  // namespace snug::memory
