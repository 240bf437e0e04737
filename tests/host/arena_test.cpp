#include "snug/host/arena.h"

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "tests/host/hand_copy.h"

namespace snug::host {
namespace {

template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::ptrdiff_t distance(const Slot& from, const Slot& to) {
  return static_cast<std::byte*>(to.data()) - static_cast<std::byte*>(from.data());
}

TEST(Arena, ReserveAddsWhatIsMissing) {
  Arena arena({.budget_bytes = 64_MiB});
  EXPECT_EQ(arena.reserved_bytes(), 0u);
  arena.reserve(3_MiB);
  EXPECT_EQ(arena.reserved_bytes(), 4_MiB) << "in units of 2 MiB";
  arena.reserve(4_MiB);
  EXPECT_EQ(arena.reserved_bytes(), 4_MiB);
  arena.reserve(5_MiB);
  EXPECT_EQ(arena.reserved_bytes(), 6_MiB);
  EXPECT_EQ(arena.growths(), 0);
}

TEST(Arena, ReserveUpToABudgetThatIsNoMultipleOfAnything) {
  Arena arena({.budget_bytes = 3'000'001});
  arena.reserve(3'000'001);
  EXPECT_EQ(arena.reserved_bytes(), 3'000'001u);
  Slot slot = arena.take(3'000'001 / 512 * 512);
  std::memset(slot.data(), 1, slot.bytes());
  EXPECT_EQ(arena.growths(), 0);
}

TEST(Arena, SlotsAreAlignedAndTheBytesAreThere) {
  Arena arena({.budget_bytes = 4_MiB});
  arena.reserve(2_MiB);
  Slot a = arena.take(1), b = arena.take(513), c = arena.take(1_MiB);
  for (const Slot* slot : {&a, &b, &c}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slot->data()) % 512, 0u);
    std::memset(slot->data(), 7, slot->bytes());
  }
  EXPECT_EQ(b.bytes(), 513u);
  EXPECT_EQ(distance(a, b), 512);
  EXPECT_EQ(distance(b, c), 1024);
}

TEST(Arena, CountsUsedPeakAndGrowths) {
  Arena arena({.budget_bytes = 200_MiB});
  arena.reserve(2_MiB);
  {
    Slot a = arena.take(1_MiB), b = arena.take(1);
    EXPECT_EQ(arena.used_bytes(), 1_MiB + 512);
    EXPECT_EQ(arena.growths(), 0);
    Slot c = arena.take(1_MiB);
    EXPECT_EQ(arena.growths(), 1);
    EXPECT_EQ(arena.reserved_bytes(), 66_MiB) << "grows by 64 MiB at least";
    Slot d = arena.take(70_MiB);
    EXPECT_EQ(arena.growths(), 2);
    EXPECT_EQ(arena.reserved_bytes(), 136_MiB);
    Slot e = arena.take(63_MiB + 512);
    EXPECT_EQ(arena.reserved_bytes(), 200_MiB);
  }
  EXPECT_EQ(arena.used_bytes(), 0u);
  EXPECT_EQ(arena.peak_bytes(), 135_MiB + 1024);
  Slot f = arena.take(512);
  arena.reset_peak();
  EXPECT_EQ(arena.peak_bytes(), 512u);
}

TEST(Arena, GrowsByExactlyWhatIsNeededWhereTheBudgetAllowsNoMore) {
  Arena arena({.budget_bytes = 10_MiB + 512});
  Slot a = arena.take(10_MiB);
  EXPECT_EQ(arena.reserved_bytes(), 10_MiB);
  Slot b = arena.take(100);
  EXPECT_EQ(arena.reserved_bytes(), 10_MiB + 512);
  EXPECT_EQ(arena.growths(), 2);
}

TEST(Arena, FirstFitAndNeighboursMergeInAnyOrder) {
  Arena arena({.budget_bytes = 2_MiB});
  arena.reserve(2_MiB);
  std::vector<int> order{0, 1, 2, 3};
  do {
    std::vector<Slot> slots;
    for (int i = 0; i < 4; ++i) slots.push_back(arena.take(512_KiB));
    void* const first = slots[0].data();
    for (int i : order) slots[i] = Slot();
    Slot all = arena.take(2_MiB);
    EXPECT_EQ(all.data(), first);
  } while (std::ranges::next_permutation(order).found);

  Slot a = arena.take(4_KiB), b = arena.take(1_KiB), c = arena.take(1_KiB), d = arena.take(2_KiB),
       e = arena.take(512);
  void* const place_a = a.data();
  void* const place_c = c.data();
  c = Slot();
  a = Slot();
  Slot small = arena.take(512);
  EXPECT_EQ(small.data(), place_a) << "the first that is large enough, not the best";
  Slot large = arena.take(4_KiB);
  EXPECT_EQ(distance(e, large), 512);
  b = Slot();
  d = Slot();
  Slot joined = arena.take(7_KiB + 512);
  EXPECT_EQ(distance(small, joined), 512);
  EXPECT_NE(joined.data(), place_c);
}

TEST(Arena, APieceNeverSpansSlabs) {
  Arena arena({.budget_bytes = 8_MiB});
  for (std::uint64_t bytes = 2_MiB; bytes <= 8_MiB; bytes += 2_MiB) arena.reserve(bytes);
  EXPECT_TRUE(has(error_of([&] { arena.take(2_MiB + 1); }), "largest free piece is 2.0 MiB"));
  std::vector<Slot> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(arena.take(2_MiB));
  EXPECT_EQ(arena.growths(), 0);
}

// The same takes and returns on two arenas: the same places, counted from the first slot of each slab.
TEST(Arena, SamePlacesForTheSameSequence) {
  const auto places = [] {
    Arena arena({.budget_bytes = 64_MiB});
    arena.reserve(64_MiB);
    Slot origin = arena.take(512);
    std::mt19937 random(17);
    std::vector<Slot> slots(60);
    std::vector<std::ptrdiff_t> offsets;
    for (int i = 0; i < 4000; ++i) {
      Slot& slot = slots[random() % slots.size()];
      if (slot) {
        slot = Slot();
      } else {
        slot = arena.take(1 + random() % 1_MiB);
        offsets.push_back(distance(origin, slot));
      }
    }
    return offsets;
  };
  EXPECT_EQ(places(), places());
}

TEST(Arena, SlotsDoNotOverlapAndAllComesBack) {
  Arena arena({.budget_bytes = 256_MiB});
  std::mt19937 random(3);
  std::vector<Slot> slots(50);
  std::vector<std::uint8_t> marks(slots.size());
  std::uint64_t used = 0;
  const auto rounded = [](const Slot& slot) { return (slot.bytes() + 511) / 512 * 512; };
  for (int i = 0; i < 3000; ++i) {
    const std::size_t at = random() % slots.size();
    if (slots[at]) {
      const auto* bytes = static_cast<const std::uint8_t*>(slots[at].data());
      ASSERT_TRUE(bytes[0] == marks[at] && std::memcmp(bytes, bytes + 1, slots[at].bytes() - 1) == 0);
      used -= rounded(slots[at]);
      slots[at] = Slot();
    } else {
      slots[at] = arena.take(1 + random() % 256_KiB);
      used += rounded(slots[at]);
      marks[at] = static_cast<std::uint8_t>(random());
      std::memset(slots[at].data(), marks[at], slots[at].bytes());
    }
    ASSERT_EQ(arena.used_bytes(), used);
  }
  slots.clear();
  EXPECT_EQ(arena.used_bytes(), 0u);
  EXPECT_EQ(arena.growths(), 1);
  Slot whole = arena.take(arena.reserved_bytes());
  EXPECT_EQ(arena.growths(), 1);
}

TEST(Arena, ManyThreads) {
  Arena arena({.budget_bytes = 64_MiB});
  arena.reserve(64_MiB);
  std::atomic<int> torn = 0;
  {
    std::vector<std::jthread> threads;
    for (int id = 0; id < 8; ++id)
      threads.emplace_back([&, id] {
        std::mt19937 random(id);
        std::vector<Slot> slots(8);
        for (int i = 0; i < 500; ++i) {
          Slot& slot = slots[random() % slots.size()];
          if (slot) {
            const auto* bytes = static_cast<const std::uint8_t*>(slot.data());
            torn += bytes[0] != id || std::memcmp(bytes, bytes + 1, slot.bytes() - 1) != 0;
            slot = Slot();
          } else {
            slot = arena.take(1 + random() % 64_KiB);
            std::memset(slot.data(), id, slot.bytes());
          }
        }
      });
  }
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(arena.used_bytes(), 0u);
  Slot whole = arena.take(64_MiB);
  EXPECT_EQ(arena.growths(), 0);
}

TEST(Arena, MovedSlotsGoBackOnce) {
  Arena arena({.budget_bytes = 2_MiB});
  Slot a = arena.take(1_KiB);
  void* const place = a.data();
  Slot b = std::move(a);
  EXPECT_FALSE(a);
  EXPECT_EQ(a.bytes(), 0u);
  EXPECT_EQ(b.data(), place);
  a = arena.take(512);
  a = std::move(b);
  EXPECT_EQ(arena.used_bytes(), 1_KiB);
  a = Slot();
  EXPECT_EQ(arena.used_bytes(), 0u);
}

TEST(Arena, ASlotMayBeDroppedAfterItsArena) {
  Slot slot;
  {
    Arena arena({.budget_bytes = 4_MiB});
    slot = arena.take(1_MiB);
    Slot other = arena.take(1_MiB);
  }
  std::memset(slot.data(), 1, slot.bytes());
}

TEST(Arena, SaysWhatTheBudgetLacks) {
  Arena arena({.budget_bytes = 10_MiB});
  std::string text = error_of([&] { arena.reserve(12_MiB); });
  EXPECT_TRUE(
      has(text, "12.0 MiB (12582912 bytes) more is wanted; of the budget of 10.0 MiB 0 bytes is reserved"))
      << text;
  EXPECT_TRUE(has(text, "`host_budget`")) << text;
  EXPECT_EQ(arena.reserved_bytes(), 0u);

  Slot a = arena.take(4_MiB), b = arena.take(1_MiB), c = arena.take(5_MiB);
  a = Slot();
  c = Slot();
  text = error_of([&] { arena.take(6_MiB); });
  EXPECT_TRUE(
      has(text,
          "6.0 MiB (6291456 bytes) more is wanted; of the budget of 10.0 MiB 10.0 MiB is reserved, of that "
          "1.0 MiB is in "
          "use and the largest free piece is 5.0 MiB"))
      << text;
  EXPECT_EQ(arena.growths(), 3);
  EXPECT_EQ(arena.used_bytes(), 1_MiB);

  Arena none({});
  EXPECT_TRUE(has(error_of([&] { none.take(1); }), "`host_budget`"));
  EXPECT_TRUE(has(error_of([&] { none.take(0); }), "0 bytes"));
}

TEST(Arena, SaysWhatTheMachineLacks) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  Arena arena({.budget_bytes = kMost});
  for (std::uint64_t bytes : {std::uint64_t{1} << 50, kMost}) {
    for (const std::string& text :
         {error_of([&] { arena.reserve(bytes); }), error_of([&] { arena.take(bytes); })}) {
      EXPECT_TRUE(has(text, "the machine (or its container) has ")) << text;
      EXPECT_TRUE(has(text, "`host_budget`")) << text;
    }
  }
  EXPECT_EQ(arena.reserved_bytes(), 0u);
  EXPECT_EQ(arena.take(10).bytes(), 10u);
}

TEST(Arena, PinnedMemoryNeedsAGpu) {
  if (torch::cuda::is_available()) GTEST_SKIP() << "there is a GPU";
  const std::string text = error_of([] { Arena arena({.pinned = true, .budget_bytes = 2_MiB}); });
  EXPECT_TRUE(has(text, "pinned host memory")) << text;
  EXPECT_TRUE(has(text, "SNUG_CUDA=ON") || has(text, "there is none here")) << text;
}

// Note [Free pieces remember copies]
class ArenaCopies : public ::testing::Test {
 protected:
  ArenaCopies() { arena->reserve(2_MiB); }
  ~ArenaCopies() override { link.finish_all(); }
  HandLink link;
  std::optional<Arena> arena{ArenaOptions{.budget_bytes = 2_MiB}};
};

TEST_F(ArenaCopies, WhoWritesNextWaitsForTheLastReader) {
  {
    Slot slot = arena->take(1_KiB);
    link.send(slot);
    link.fetch(slot);
    link.fetch(slot);
    EXPECT_EQ(link.to_host[0].before, nullptr);
    EXPECT_EQ(link.to_device[0].before, link.to_host[0].copy);
    EXPECT_EQ(link.to_device[1].before, link.to_host[0].copy);
  }
  Slot first = arena->take(512), second = arena->take(512);
  link.send(second);
  EXPECT_EQ(link.to_host[1].before, link.to_device[1].copy);
  link.send(first);
  EXPECT_EQ(link.to_host[2].before, link.to_device[1].copy) << "both halves remember it";
}

TEST_F(ArenaCopies, MergedPiecesRememberTheLaterCopy) {
  for (const bool ascending : {true, false}) {
    Slot a = arena->take(512), b = arena->take(512), c = arena->take(512);
    for (Slot* slot : {&a, &b, &c}) link.send(*slot);
    for (Slot* slot : {&b, &c, &a}) link.fetch(*slot);
    const CopyPtr last = link.to_device.back().copy;
    for (Slot* slot : ascending ? std::vector{&a, &b, &c} : std::vector{&c, &b, &a}) *slot = Slot();
    Slot all = arena->take(1536);
    link.send(all);
    EXPECT_EQ(link.to_host.back().before, last);
  }
}

TEST_F(ArenaCopies, AnInheritedReaderIsPassedOn) {
  Slot slot = arena->take(512);
  link.fetch(slot);
  slot = Slot();
  slot = arena->take(512);
  slot = Slot();
  slot = arena->take(512);
  link.send(slot);
  EXPECT_EQ(link.to_host[0].before, link.to_device[0].copy);
}

TEST_F(ArenaCopies, TheHostWaitsForCopiesOfThePlacesOwnerBefore) {
  Slot slot = arena->take(512);
  link.send(slot);
  link.fetch(slot);
  slot = Slot();
  Slot next = arena->take(512);
  link.finish_all();
  next.finish();
  EXPECT_TRUE(link.to_host[0].copy->asked());
  EXPECT_TRUE(link.to_device[0].copy->asked());
}

TEST_F(ArenaCopies, TheArenaWaitsForCopiesBeforeItGoes) {
  Slot gone = arena->take(512), stays = arena->take(512);
  link.send(gone);
  link.fetch(gone);
  link.send(stays);
  gone = Slot();
  std::jthread other([this] { link.finish_all(); });
  arena.reset();
  EXPECT_TRUE(link.to_host[0].copy->asked());
  EXPECT_TRUE(link.to_device[0].copy->asked());
  stays = Slot();  // the last: unmaps, after its own copy
  EXPECT_TRUE(link.to_host[1].copy->asked());
}

TEST_F(ArenaCopies, ACopyThatFailedDoesNotKeepTheMemory) {
  struct Broken final : Copy {
    void wait() override {}
    void finish() override { throw std::runtime_error("lost the device"); }
    std::uint64_t number() const override { return 1; }
  };
  struct BrokenLink final : Link {
    BrokenLink() : Link(c10::kCPU) {}
    CopyPtr copy_to_host(const void*, void*, std::uint64_t, const CopyPtr&, const CopyPtr&) override {
      return std::make_shared<Broken>();
    }
    CopyPtr copy_to_device(void*, const void*, std::uint64_t, const CopyPtr&, const CopyPtr&) override {
      return nullptr;
    }
  } broken;
  Slot slot = arena->take(512);
  broken.to_host(slot.data(), slot, 1);
  slot = Slot();
  arena.reset();  // warns
}

}  // namespace
}  // namespace snug::host
