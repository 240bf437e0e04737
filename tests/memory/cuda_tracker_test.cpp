// The tracker on a real GPU. Skips loudly where there is none.
#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/optim/adamw.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/hooks/operators.h"
#include "snug/hooks/region.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/tracker.h"
#include "tests/support/mlp.h"

namespace snug::memory {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::TraceEntry;
using trace::Category;

std::uint64_t allocated() {
  return static_cast<std::uint64_t>(allocator::getDeviceStats(0).allocated_bytes[0].current);
}

// torch's own word at every entry: before an allocation is counted, after a free is.
struct Witness {
  std::mutex mutex;
  bool on = false;
  std::vector<std::pair<TraceEntry::Action, std::uint64_t>> entries;
};
Witness& witness() {
  static Witness instance;
  return instance;
}

struct Collect : trace::EventSink {
  void write(const trace::Event& event, const trace::NameTable&) override { events.push_back(event); }
  std::vector<trace::Event> events;
};

class CudaTracker : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!torch::cuda::is_available()) return;
    at::globalContext().lazyInitDevice(at::kCUDA);
    allocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
      auto& all = witness();
      std::lock_guard lock(all.mutex);
      if (all.on && (entry.action_ == TraceEntry::ALLOC || entry.action_ == TraceEntry::FREE_REQUESTED))
        all.entries.emplace_back(entry.action_, allocated());
    });
  }
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the CUDA tracker was not tested";
  }
};

std::shared_ptr<Mlp> mlp_on_gpu() {
  auto model = std::make_shared<Mlp>(300, 1111, 77);
  model->to(at::kCUDA);
  return model;
}

TEST_F(CudaTracker, LedgerEqualsAllocatedBytesAtEveryEventOfATrainingStep) {
  at::Tensor older = at::ones({12345}, at::kCUDA);
  Collect collect;
  Tracker tracker({.device = {at::kCUDA, 0}, .sink = &collect});
  EXPECT_EQ(tracker.live_bytes(), allocated()) << "blocks older than the tracker";
  witness().entries.clear();
  witness().on = true;
  const std::size_t before = collect.events.size();
  {
    auto model = mlp_on_gpu();
    torch::optim::AdamW optimizer(model->parameters());
    for (int step = 0; step < 3; ++step) {
      model->loss(at::randn({512 + step, 300}, at::kCUDA)).backward();
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(tracker.live_bytes(), allocated());
    }
  }
  witness().on = false;
  tracker.live_bytes();
  trace::Ledger ledger;
  std::size_t i = 0;
  for (std::size_t k = 0; k < collect.events.size(); ++k) {
    const auto& event = collect.events[k];
    const std::uint64_t live_before = ledger.live_bytes();
    ledger.apply(event);
    if (k < before || (event.kind != trace::EventKind::Alloc && event.kind != trace::EventKind::Free))
      continue;
    ASSERT_LT(i, witness().entries.size());
    const auto [action, torchs] = witness().entries[i++];
    ASSERT_EQ(action == TraceEntry::ALLOC, event.kind == trace::EventKind::Alloc);
    ASSERT_EQ(torchs, action == TraceEntry::ALLOC ? live_before : ledger.live_bytes()) << "at event " << i;
  }
  EXPECT_EQ(i, witness().entries.size()) << "no event was dropped";
  EXPECT_GT(i, 100u);
}

TEST_F(CudaTracker, TheWorkerThreadOfTheBackwardIsWatched) {
  Tracker tracker({.device = {at::kCUDA, 0}});
  auto model = mlp_on_gpu();
  tracker.adopt(model->parameters(), Category::Parameter);
  at::Tensor loss = model->loss(at::randn({512, 300}, at::kCUDA));
  const auto forward = tracker.live();
  EXPECT_GT(forward[Category::Activation], 512u * 1111 * 4 * 2);
  EXPECT_EQ(forward[Category::Gradient], 0u);
  loss.backward();
  loss.reset();
  const auto backward = tracker.live();
  EXPECT_GE(backward[Category::Gradient], (300u * 1111 + 1111 + 1111 * 77 + 77) * 4)
      << "in torch's blocks, so rounded up";
  EXPECT_EQ(backward[Category::Activation], 0u);
  bool found = false;
  for (const auto& region : backward.regions)
    if (region.name == "second") found = region.bytes[static_cast<std::size_t>(Category::Gradient)] > 0;
  EXPECT_TRUE(found) << "gradients made on autograd's thread carry their region";
}

TEST_F(CudaTracker, OperatorsOfTheBackwardAreSeenOnItsThread) {
  struct Count : hooks::OperatorListener {
    void on_operator(hooks::OperatorCall& call) override {
      call.proceed();
      if (std::this_thread::get_id() != caller) ++elsewhere;
    }
    std::thread::id caller = std::this_thread::get_id();
    std::atomic<int> elsewhere = 0;
  } count;
  auto model = mlp_on_gpu();
  hooks::OperatorListenerGuard guard(count);
  model->loss(at::randn({64, 300}, at::kCUDA)).backward();
  EXPECT_GT(count.elsewhere, 5);
}

TEST_F(CudaTracker, FreesByAnotherThreadAreSeen) {
  Tracker tracker({.device = {at::kCUDA, 0}});
  const std::uint64_t before = tracker.live_bytes();
  at::Tensor x = at::ones({1000}, at::kCUDA);
  EXPECT_EQ(tracker.live_bytes(), before + 4096);
  std::thread([moved = std::move(x)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(tracker.live_bytes(), before);
}

TEST_F(CudaTracker, BlocksTooSmallToSplitCountWhole) {
  allocator::emptyCache();
  { at::Tensor big = at::empty({30 << 20}, at::TensorOptions(at::kByte).device(at::kCUDA)); }
  Tracker tracker({.device = {at::kCUDA, 0}});
  const std::uint64_t before = allocated();
  at::Tensor nearly = at::empty({(30 << 20) - 600000}, at::TensorOptions(at::kByte).device(at::kCUDA));
  EXPECT_EQ(tracker.live_bytes(), allocated());
  EXPECT_GE(allocated() - before, (30u << 20) - 600000u);
}

TEST_F(CudaTracker, ARefusalIsKeptWithWhatWasAlive) {
  Tracker tracker({.device = {at::kCUDA, 0}});
  at::Tensor kept = at::ones({1 << 20}, at::kCUDA);
  tracker.adopt({kept}, Category::Parameter);
  EXPECT_FALSE(tracker.last_refusal());
  EXPECT_THROW(at::empty({std::int64_t{1} << 45}, at::TensorOptions(at::kByte).device(at::kCUDA)),
               c10::OutOfMemoryError);
  ASSERT_TRUE(tracker.last_refusal());
  EXPECT_GE(tracker.last_refusal()->requested_bytes, std::uint64_t{1} << 45);
  EXPECT_EQ(tracker.last_refusal()->alive[Category::Parameter], 4u << 20);
}

TEST_F(CudaTracker, ManyThreadsAllocateWhileTheAccountIsRead) {
  Tracker tracker({.device = {at::kCUDA, 0}});
  std::atomic<bool> stop = false;
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k)
    threads.emplace_back([&stop, k] {
      std::vector<at::Tensor> kept;
      for (std::int64_t i = 0; !stop; ++i) {
        kept.push_back(
            at::empty({1 + (i * 7919 + k * 104729) % 300000}, at::kCUDA));  // sizes that are rounded
        if (kept.size() > 20) kept.erase(kept.begin() + i % 20);
      }
    });
  for (int i = 0; i < 2000; ++i) EXPECT_GE(tracker.peak_bytes(), tracker.live_bytes());
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(tracker.live_bytes(), allocated()) << "every block was counted in its own size";
}

TEST_F(CudaTracker, ATrackerComesAndGoesWhileAnotherThreadAllocates) {
  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> rounds = 0;
  std::mutex between;  // held while the other thread allocates and frees, so that both counts can be read
  std::thread other([&] {
    at::Tensor kept;
    while (!stop) {
      std::lock_guard lock(between);
      kept = at::empty({1 + (++rounds * 7919) % 300000}, at::kCUDA);
    }
  });
  for (int i = 0; i < 300; ++i) {
    Tracker tracker({.device = {at::kCUDA, 0}});
    const std::int64_t now = rounds;
    while (rounds < now + 3) std::this_thread::yield();
    std::lock_guard lock(between);
    ASSERT_EQ(tracker.live_bytes(), allocated()) << "tracker " << i;
  }
  stop = true;
  other.join();
}

TEST_F(CudaTracker, OneAtATime) {
  Tracker tracker({.device = {at::kCUDA, 0}});
  EXPECT_THROW(Tracker({.device = {at::kCUDA, 0}}), Error);
}

TEST_F(CudaTracker, AllocatedReservedAndOutsideAddUp) {
  at::Tensor x = at::ones({1 << 20}, at::kCUDA);
  const auto memory = process_memory({at::kCUDA, 0});
  EXPECT_EQ(memory.allocated_bytes, allocated());
  EXPECT_GE(memory.reserved_bytes, memory.allocated_bytes);
  EXPECT_GT(memory.outside_bytes(), 100_MiB) << "a context takes several hundred MiB: " << memory.source;
  RecordProperty("outside_bytes", static_cast<int>(memory.outside_bytes() >> 20));
}

}  // namespace
}  // namespace snug::memory
