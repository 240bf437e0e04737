// The link of a real GPU. Skips loudly where there is none.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/host/link.h"

namespace snug::host {
namespace {

class CudaLink : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: the link was not tested";
    link = Link::open({c10::kCUDA, 0});
    arena.emplace(ArenaOptions{.pinned = true, .budget_bytes = 1_GiB});
    arena->reserve(256_MiB);
    heavy = at::rand({4096, 4096}, at::kCUDA);
  }

  // Some milliseconds of the current stream: what is asked for next is far ahead of the device.
  void keep_busy(int times = 10) {
    for (int i = 0; i < times; ++i) heavy = at::mm(heavy, heavy).div_(4096);
  }
  static at::Tensor ints(std::int64_t count, int value) {
    return at::full({count}, value, at::TensorOptions(at::kInt).device(at::kCUDA));
  }
  CopyPtr send(const at::Tensor& from, Slot& to) { return link->to_host(from.data_ptr(), to, from.nbytes()); }
  CopyPtr fetch(const at::Tensor& to, Slot& from) {
    return link->to_device(to.data_ptr(), from, to.nbytes());
  }
  static bool all_are(const Slot& slot, int value) {
    const auto* const begin = static_cast<const int*>(slot.data());
    return std::all_of(begin, begin + slot.bytes() / sizeof(int), [=](int at) { return at == value; });
  }
  static bool all_are(const at::Tensor& tensor, int value) { return tensor.eq(value).all().item<bool>(); }

  static constexpr std::int64_t kCount = 8 << 20;  // 32 MiB
  static constexpr std::uint64_t kBytes = kCount * sizeof(int);

  std::shared_ptr<Link> link;
  std::optional<Arena> arena;
  at::Tensor heavy;
};

TEST_F(CudaLink, RoundTrip) {
  const at::Tensor there = at::randint(1 << 30, {kCount}, at::TensorOptions(at::kInt).device(at::kCUDA));
  Slot slot = arena->take(kBytes);
  send(there, slot)->finish();
  EXPECT_TRUE(at::equal(at::from_blob(slot.data(), {kCount}, at::kInt), there.cpu()));
  const at::Tensor back = ints(kCount, 0);
  fetch(back, slot)->wait();
  EXPECT_TRUE(at::equal(back, there));
}

TEST_F(CudaLink, ACopySeesTheValueAsOfWhenItWasAskedFor) {
  at::Tensor there = ints(kCount, 0);
  Slot slot = arena->take(kBytes);
  keep_busy();
  there.fill_(1);  // far from done when the copy is asked for
  const CopyPtr sent = send(there, slot);
  sent->wait();
  there.fill_(2);  // must not be seen, nor tear the copy
  sent->finish();
  EXPECT_TRUE(all_are(slot, 1));
  EXPECT_TRUE(all_are(there, 2));
}

TEST_F(CudaLink, MemoryFreedAfterTheWaitMayBeUsedAgain) {
  std::vector<Slot> slots;
  std::vector<CopyPtr> sent;
  for (int i = 0; i < 6; ++i) {
    keep_busy(3);
    const at::Tensor there = ints(kCount, i);  // in the place of the one before
    slots.push_back(arena->take(kBytes));
    sent.push_back(send(there, slots.back()));
    sent.back()->wait();
  }
  for (int i = 0; i < 6; ++i) {
    sent[i]->finish();
    EXPECT_TRUE(all_are(slots[i], i));
  }
}

TEST_F(CudaLink, ACopyIntoMemoryComesAfterWhatTheStreamStillDoesWithIt) {
  Slot slot = arena->take(kBytes);
  send(ints(kCount, 3), slot)->wait();
  at::Tensor there = ints(kCount, 0);
  keep_busy();
  there.fill_(1);
  const at::Tensor before = there.clone();
  fetch(there, slot)->wait();
  const at::Tensor after = there.clone();
  there.fill_(2);
  EXPECT_TRUE(all_are(before, 1));
  EXPECT_TRUE(all_are(after, 3));
  EXPECT_TRUE(all_are(there, 2));
}

TEST_F(CudaLink, OneSlotReusedUnderLoad) {
  constexpr int kRounds = 40;
  std::vector<at::Tensor> back;
  void* place = nullptr;
  for (int i = 0; i < kRounds; ++i) {
    if (i % 8 == 0) keep_busy(3);
    Slot slot = arena->take(kBytes);
    if (!place) place = slot.data();
    EXPECT_EQ(slot.data(), place);
    const at::Tensor there = ints(kCount, i);
    const CopyPtr sent = send(there, slot);
    back.push_back(ints(kCount, -1));
    const CopyPtr fetched = fetch(back.back(), slot);
    slot = Slot();  // the next round writes into it
    sent->wait();
    fetched->wait();
  }
  for (int i = 0; i < kRounds; ++i) EXPECT_TRUE(all_are(back[i], i)) << i;
}

// As OneSlotReusedUnderLoad, but the compute stream waits only at the end: the links' queues run full.
TEST_F(CudaLink, SlotsReusedWhileTheQueuesRunFull) {
  constexpr int kRounds = 60;
  std::vector<at::Tensor> there, back;
  for (int i = 0; i < kRounds; ++i) {
    there.push_back(ints(kCount, i));
    back.push_back(ints(kCount, -1));
  }
  std::vector<CopyPtr> copies;
  keep_busy(3);
  for (int i = 0; i < kRounds; ++i) {
    Slot slot = arena->take(kBytes);
    copies.push_back(send(there[i], slot));
    copies.push_back(fetch(back[i], slot));
  }
  EXPECT_EQ(arena->peak_bytes(), kBytes);
  for (const CopyPtr& copy : copies) copy->wait();
  for (int i = 0; i < kRounds; ++i) EXPECT_TRUE(all_are(back[i], i)) << i;
}

TEST_F(CudaLink, TheCurrentStreamIsTheOneThatCounts) {
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  Slot slot = arena->take(kBytes);
  at::Tensor there, back;
  CopyPtr sent;
  {
    const c10::cuda::CUDAStreamGuard guard(side);
    there = ints(kCount, 0);
    back = ints(kCount, 0);
    keep_busy();
    there.fill_(5);
    sent = send(there, slot);
    EXPECT_EQ(c10::cuda::getCurrentCUDAStream(), side) << "the caller's stream is as it was";
    fetch(back, slot)->wait();
    EXPECT_TRUE(all_are(back, 5));
  }
  sent->finish();
  EXPECT_TRUE(all_are(slot, 5));
}

TEST_F(CudaLink, RandomTraffic) {
  constexpr int kSources = 16, kSlots = 10;
  std::vector<at::Tensor> sources;
  for (int i = 0; i < kSources; ++i) sources.push_back(ints(1000 + i * 300'000, i));
  struct Held {
    Slot slot;
    int source = 0;
  };
  std::mt19937 random(5);
  std::vector<Held> held(kSlots);
  std::vector<std::pair<int, at::Tensor>> back;
  std::vector<CopyPtr> copies;
  for (int i = 0; i < 1200; ++i) {
    if (i % 100 == 0) keep_busy(2);
    Held& at = held[random() % kSlots];
    switch (random() % 4) {
      case 0:
        at.slot = Slot();
        break;
      case 1:
        if (!at.slot) break;
        back.emplace_back(at.source, at::empty_like(sources[at.source]));
        copies.push_back(fetch(back.back().second, at.slot));
        if (random() % 2) copies.back()->wait();
        break;
      default:
        at.source = static_cast<int>(random() % kSources);
        if (!at.slot || at.slot.bytes() < sources[at.source].nbytes())
          at.slot = arena->take(sources[at.source].nbytes());
        copies.push_back(send(sources[at.source], at.slot));
    }
  }
  for (const CopyPtr& copy : copies) copy->wait();
  for (const auto& [source, tensor] : back) ASSERT_TRUE(all_are(tensor, source));
}

TEST_F(CudaLink, ASlotJustTakenIsTheHostsAfterFinish) {
  {
    Slot slot = arena->take(kBytes);
    keep_busy();
    send(ints(kCount, 1), slot)->wait();
  }
  Slot slot = arena->take(kBytes);
  slot.finish();
  std::fill_n(static_cast<int*>(slot.data()), kCount, 9);
  const at::Tensor back = ints(kCount, 0);
  fetch(back, slot)->wait();
  EXPECT_TRUE(all_are(back, 9));
}

TEST_F(CudaLink, TheArenaGoesWhileCopiesAreUnderWay) {
  const at::Tensor back = ints(kCount, 0);
  CopyPtr fetched;
  {
    Arena own({.pinned = true, .budget_bytes = 64_MiB});
    Slot slot = own.take(kBytes);
    keep_busy();
    send(ints(kCount, 4), slot)->wait();
    fetched = fetch(back, slot);
  }
  fetched->wait();
  EXPECT_TRUE(all_are(back, 4));
}

TEST_F(CudaLink, IsOnePerDevice) {
  EXPECT_EQ(Link::open({c10::kCUDA, 0}), link);
  EXPECT_EQ(Link::open(c10::kCUDA), link);
  EXPECT_EQ(link->device(), c10::Device(c10::kCUDA, 0));
}

TEST_F(CudaLink, RefusesSlotsThatAreNotForIt) {
  const at::Tensor there = ints(10, 1);
  Arena pageable({.budget_bytes = 2_MiB});
  Slot slot = pageable.take(there.nbytes());
  EXPECT_THROW(send(there, slot), Error);
  Slot pinned = arena->take(there.nbytes());
  send(there, pinned)->finish();
  int here = 0;
  EXPECT_THROW(Link::open(c10::kCPU)->to_host(&here, pinned, sizeof here), Error);
}

TEST_F(CudaLink, PinnedMemoryIsAccountedAsAnyOther) {
  Arena own({.pinned = true, .budget_bytes = 100_MiB});
  own.reserve(10_MiB);
  Slot a = own.take(8_MiB), b = own.take(20_MiB);
  EXPECT_EQ(own.reserved_bytes(), 74_MiB);
  EXPECT_EQ(own.growths(), 1);
  EXPECT_TRUE(at::from_blob(b.data(), {100}, at::kInt).is_pinned());
}

}  // namespace
}  // namespace snug::host
