// The link of the CPU, and what every link does with its slots.
#include "snug/host/link.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "tests/host/hand_copy.h"

namespace snug::host {
namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes random_bytes(std::uint64_t bytes, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes all(bytes);
  for (auto& byte : all) byte = static_cast<std::uint8_t>(random());
  return all;
}

template <class Action>
std::string error_of_copy(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Returns when `copy` is about to wait for `held`; a copy that does not is an error. The future waits for it.
std::future<void> watch(const CopyPtr& copy, const HandCopy& held) {
  auto done = std::async(std::launch::async, [copy] { copy->wait(); });
  while (!held.asked() && done.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    std::this_thread::yield();
  EXPECT_TRUE(held.asked()) << "the copy waited for nothing";
  return done;
}

class CpuLink : public ::testing::Test {
 protected:
  CopyPtr send(const Bytes& from, Slot& to) { return link->to_host(from.data(), to, from.size()); }
  CopyPtr fetch(Bytes& to, Slot& from) { return link->to_device(to.data(), from, to.size()); }

  std::shared_ptr<Link> link = Link::open(c10::kCPU);
  Arena arena{{.budget_bytes = 256_MiB}};
};

TEST_F(CpuLink, ContentsArrive) {
  const Bytes bytes = random_bytes(1'234'567, 1);
  Slot slot = arena.take(bytes.size());
  const CopyPtr sent = send(bytes, slot);
  sent->wait();
  EXPECT_EQ(std::memcmp(slot.data(), bytes.data(), bytes.size()), 0);
  Bytes back(bytes.size());
  const CopyPtr fetched = fetch(back, slot);
  fetched->finish();
  EXPECT_EQ(back, bytes);
}

TEST_F(CpuLink, FetchingWaitsForSending) {
  std::vector<Bytes> all, back;
  std::vector<Slot> slots;
  for (int i = 0; i < 20; ++i) {
    all.push_back(random_bytes(1_MiB + i, i));
    back.emplace_back(all.back().size());
    slots.push_back(arena.take(all.back().size()));
  }
  std::vector<CopyPtr> copies;
  for (int i = 0; i < 20; ++i) send(all[i], slots[i]);
  for (int i = 19; i >= 0; --i) copies.push_back(fetch(back[i], slots[i]));
  for (const CopyPtr& copy : copies) copy->wait();
  EXPECT_EQ(back, all);
}

TEST_F(CpuLink, NumbersGrowInTheOrderOfADirection) {
  const Bytes bytes(1000);
  Bytes back(1000);
  Slot slot = arena.take(1000);
  std::uint64_t last_sent = 0, last_fetched = 0;
  for (int i = 0; i < 5; ++i) {
    const CopyPtr sent = send(bytes, slot), fetched = fetch(back, slot);
    EXPECT_GT(sent->number(), last_sent);
    EXPECT_GT(fetched->number(), last_fetched);
    last_sent = sent->number();
    last_fetched = fetched->number();
  }
  slot.finish();
  link.reset();
  link = Link::open(c10::kCPU);
  EXPECT_GT(send(bytes, slot)->number(), last_sent) << "an arena may see more than one link";
  slot.finish();
}

TEST_F(CpuLink, CopiesOfADirectionAreDoneInOrder) {
  std::vector<Bytes> all;
  for (int i = 0; i < 8; ++i) all.push_back(random_bytes(4_MiB, i));
  Slot slot = arena.take(4_MiB);
  CopyPtr last;
  for (const Bytes& bytes : all) last = send(bytes, slot);
  last->wait();
  EXPECT_EQ(std::memcmp(slot.data(), all.back().data(), 4_MiB), 0);
}

// The reader's thread is held up by hand: until it is let go, nobody may write into the place.
TEST_F(CpuLink, APlaceIsNotWrittenWhileItIsStillToBeRead) {
  HandLink hand;
  const Bytes first = random_bytes(1_MiB, 1), second = random_bytes(1_MiB, 2);
  Slot slot = arena.take(1_MiB);
  send(first, slot)->wait();
  hand.fetch(slot);
  void* const place = slot.data();
  slot = Slot();
  Slot next = arena.take(1_MiB);
  ASSERT_EQ(next.data(), place);
  const CopyPtr sent = send(second, next);
  const std::future<void> done = watch(sent, *hand.to_device[0].copy);
  EXPECT_EQ(std::memcmp(place, first.data(), first.size()), 0);
  hand.to_device[0].copy->set_done();
  sent->wait();
  EXPECT_EQ(std::memcmp(place, second.data(), second.size()), 0);
}

TEST_F(CpuLink, APlaceIsNotReadWhileItIsStillToBeWritten) {
  HandLink hand;
  const Bytes bytes = random_bytes(1_MiB, 1);
  Slot slot = arena.take(1_MiB);
  hand.send(slot);
  Bytes back(1_MiB);
  const CopyPtr fetched = fetch(back, slot);
  const std::future<void> done = watch(fetched, *hand.to_host[0].copy);
  std::memcpy(slot.data(), bytes.data(), bytes.size());
  hand.to_host[0].copy->set_done();
  fetched->wait();
  EXPECT_EQ(back, bytes);
}

// Slots are dropped as soon as the fetch is asked for: the place is reused under every copy.
TEST_F(CpuLink, ASlotReusedUnderPendingCopiesGivesTheRightBytes) {
  constexpr std::uint64_t kBytes = 2_MiB;
  constexpr int kRounds = 30;
  std::vector<Bytes> all, back(kRounds, Bytes(kBytes));
  for (int i = 0; i < kRounds; ++i) all.push_back(random_bytes(kBytes, i));
  std::vector<CopyPtr> fetched;
  void* place = nullptr;
  for (int i = 0; i < kRounds; ++i) {
    Slot slot = arena.take(kBytes);
    if (!place) place = slot.data();
    EXPECT_EQ(slot.data(), place);
    send(all[i], slot);
    fetched.push_back(fetch(back[i], slot));
  }
  fetched.back()->finish();
  EXPECT_EQ(back, all);
}

TEST_F(CpuLink, ASlotDroppedBeforeItIsFilledStaysSafe) {
  const Bytes first = random_bytes(8_MiB, 1), second = random_bytes(8_MiB, 2);
  {
    Arena own({.budget_bytes = 64_MiB});
    {
      Slot slot = own.take(8_MiB), held = own.take(512);
      send(first, slot);
      send(second, held = own.take(8_MiB));
    }
    Slot slot = own.take(16_MiB);
    slot.finish();
    EXPECT_EQ(std::memcmp(slot.data(), first.data(), first.size()), 0);
    send(second, slot);
    slot = Slot();
    Slot again = own.take(1);
    send(first, again = own.take(8_MiB));
  }  // the arena goes with copies under way
}

TEST_F(CpuLink, RandomTraffic) {
  constexpr int kSlots = 12;
  constexpr std::uint64_t kMost = 512_KiB;
  struct Held {
    Slot slot;
    std::size_t source = 0;
  };
  std::vector<Bytes> sources;
  for (int i = 0; i < 16; ++i) sources.push_back(random_bytes(1 + i * kMost / 16, i));
  struct Fetch {
    std::size_t source;
    Bytes bytes;
    CopyPtr copy;
  };
  std::mt19937 random(23);
  std::vector<Held> held(kSlots);
  std::vector<Fetch> fetches;
  CopyPtr last_sent;
  for (int i = 0; i < 1500; ++i) {
    Held& at = held[random() % kSlots];
    switch (random() % 4) {
      case 0:
        at.slot = Slot();
        break;
      case 1:
        if (at.slot) {
          fetches.push_back({at.source, Bytes(sources[at.source].size()), nullptr});
          fetches.back().copy = fetch(fetches.back().bytes, at.slot);
        }
        break;
      default:
        at.source = random() % sources.size();
        if (!at.slot || at.slot.bytes() < sources[at.source].size())
          at.slot = arena.take(sources[at.source].size());
        last_sent = send(sources[at.source], at.slot);
    }
    if (fetches.size() == 40) {
      for (Fetch& fetched : fetches) {
        fetched.copy->wait();
        ASSERT_EQ(fetched.bytes, sources[fetched.source]);
      }
      fetches.clear();
    }
  }
  for (const Fetch& fetched : fetches) fetched.copy->wait();
  last_sent->finish();  // also of slots that were dropped: the sources go
}

TEST_F(CpuLink, ManyThreadsShareIt) {
  std::atomic<int> wrong = 0;
  {
    std::vector<std::jthread> threads;
    for (int id = 0; id < 6; ++id)
      threads.emplace_back([&, id] {
        const auto own = Link::open(c10::kCPU);
        for (int i = 0; i < 60; ++i) {
          const Bytes bytes = random_bytes(20'000 + id, 100 * id + i);
          Bytes back(bytes.size());
          Slot slot = arena.take(bytes.size());
          const CopyPtr sent = own->to_host(bytes.data(), slot, bytes.size());
          const CopyPtr fetched = own->to_device(back.data(), slot, back.size());
          slot = Slot();
          sent->wait();
          fetched->wait();
          wrong += back != bytes;
        }
      });
  }
  EXPECT_EQ(wrong, 0);
}

TEST_F(CpuLink, IsOneForAllAndEndsAfterWhatWasAskedFor) {
  EXPECT_EQ(Link::open(c10::kCPU), link);
  EXPECT_TRUE(link->device().is_cpu());
  const Bytes bytes = random_bytes(16_MiB, 1);
  Bytes back(bytes.size());
  Slot slot = arena.take(bytes.size());
  send(bytes, slot);
  const CopyPtr fetched = fetch(back, slot);
  link.reset();
  EXPECT_EQ(back, bytes);
  fetched->wait();
}

TEST_F(CpuLink, SaysWhatIsWrongWithACopy) {
  Bytes bytes(100);
  Slot slot = arena.take(99), empty;
  EXPECT_EQ(error_of_copy([&] { send(bytes, slot); }),
            "host memory: a copy of 100 bytes to or from a slot of 99");
  EXPECT_EQ(error_of_copy([&] { fetch(bytes, slot); }),
            "host memory: a copy of 100 bytes to or from a slot of 99");
  EXPECT_EQ(error_of_copy([&] { send(bytes, empty); }), "host memory: a copy to or from an empty slot");
  EXPECT_EQ(error_of_copy([&] { link->to_host(nullptr, slot, 9); }),
            "host memory: a copy of 9 bytes to or from a null pointer");
  link->to_host(nullptr, slot, 0)->wait();
  EXPECT_EQ(error_of_copy([] { Link::open(c10::kMeta); }), "a link to meta: only cpu and cuda have one");
}

TEST_F(CpuLink, AnArenaServesOneDevice) {
  struct GpuLink final : Link {
    explicit GpuLink(c10::DeviceIndex index) : Link({c10::kCUDA, index}) {}
    CopyPtr copy_to_host(const void*, void*, std::uint64_t, const CopyPtr&, const CopyPtr&) override {
      return nullptr;
    }
    CopyPtr copy_to_device(void*, const void*, std::uint64_t, const CopyPtr&, const CopyPtr&) override {
      return nullptr;
    }
  } gpu(0);
  const Bytes bytes(10);
  Slot slot = arena.take(10);
  EXPECT_EQ(error_of_copy([&] { gpu.to_host(bytes.data(), slot, 10); }),
            "host memory: copies to and from cuda:0 need a pinned arena (ArenaOptions::pinned)");
  struct MetaLink final : Link {
    MetaLink() : Link(c10::kMeta) {}
    CopyPtr copy_to_host(const void*, void*, std::uint64_t, const CopyPtr&, const CopyPtr&) override {
      return nullptr;
    }
    CopyPtr copy_to_device(void*, const void*, std::uint64_t, const CopyPtr&, const CopyPtr&) override {
      return nullptr;
    }
  } other;
  send(bytes, slot)->wait();
  EXPECT_EQ(error_of_copy([&] { other.to_host(bytes.data(), slot, 10); }),
            "host memory: the arena serves cpu, not meta: make one arena per device");
}

TEST(CudaLink, SaysThatThereIsNoSuchGpu) {
  const std::string text = error_of_copy([] { Link::open({c10::kCUDA, 77}); });
  EXPECT_TRUE(text.find("a link to cuda:77: this machine has ") == 0 ||
              text.find("SNUG_CUDA=ON") != text.npos)
      << text;
}

}  // namespace
}  // namespace snug::host
