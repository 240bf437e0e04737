// The account, by hand and against a slow model on random streams.
#include "snug/trace/ledger.h"

#include <gtest/gtest.h>

#include <map>

#include "snug/base/error.h"
#include "tests/trace/random_events.h"

namespace snug::trace {
namespace {

Event alloc(BlockId block, std::uint64_t bytes, Category category = Category::Other, NameId region = 0) {
  return {.kind = EventKind::Alloc, .category = category, .region = region, .block = block, .bytes = bytes};
}
Event release(BlockId block) {
  return {.kind = EventKind::Free, .block = block};
}
Event retag(BlockId block, Category category) {
  return {.kind = EventKind::Retag, .category = category, .block = block};
}

class LedgerTest : public ::testing::Test {
 protected:
  void apply(std::initializer_list<Event> events) {
    for (const Event& event : events) ledger_.apply(event);
  }
  Snapshot peak() const { return ledger_.peak(names_); }

  NameTable names_;
  NameId first_ = names_.intern("first");
  NameId second_ = names_.intern("second");
  Ledger ledger_;
};

TEST_F(LedgerTest, StartsEmpty) {
  EXPECT_EQ(ledger_.live_bytes(), 0u);
  EXPECT_EQ(peak().total, 0u);
  EXPECT_TRUE(peak().regions.empty());
}

TEST_F(LedgerTest, CountsWhatIsLiveByCategory) {
  apply({alloc(1, 100, Category::Parameter), alloc(2, 50, Category::Gradient), release(1)});
  EXPECT_EQ(ledger_.live_bytes(), 50u);
  EXPECT_EQ(ledger_.live_bytes(Category::Parameter), 0u);
  EXPECT_EQ(ledger_.live_bytes(Category::Gradient), 50u);
  EXPECT_EQ(ledger_.live_blocks(), 1u);
}

TEST_F(LedgerTest, PeakStaysAfterFree) {
  apply(
      {alloc(1, 100, Category::Activation, first_), release(1), alloc(2, 60, Category::Temporary, second_)});
  EXPECT_EQ(ledger_.peak_bytes(), 100u);
  EXPECT_EQ(peak().total, 100u);
  EXPECT_EQ(peak()[Category::Activation], 100u);
  EXPECT_EQ(peak()[Category::Temporary], 0u);
  ASSERT_EQ(peak().regions.size(), 1u);
  EXPECT_EQ(peak().regions[0].name, "first");
}

TEST_F(LedgerTest, PeakHoldsTheAllocationThatMadeIt) {
  apply(
      {alloc(1, 100, Category::Activation, first_), alloc(2, 20, Category::Activation, first_), release(2)});
  EXPECT_EQ(peak()[Category::Activation], 120u);
}

TEST_F(LedgerTest, PeakIsTheFirstOfSeveralEqualMoments) {
  apply({alloc(1, 100, Category::Activation), release(1), alloc(2, 100, Category::Temporary)});
  EXPECT_EQ(peak()[Category::Activation], 100u);
  EXPECT_EQ(peak()[Category::Temporary], 0u);
}

TEST_F(LedgerTest, RetagMovesBytesAndKeepsTheTotalAndTheRegion) {
  apply({alloc(1, 100, Category::Temporary, first_), retag(1, Category::Gradient)});
  EXPECT_EQ(ledger_.live_bytes(), 100u);
  EXPECT_EQ(ledger_.live_bytes(Category::Temporary), 0u);
  const Snapshot live = ledger_.live(names_);
  ASSERT_EQ(live.regions.size(), 1u);
  EXPECT_EQ(live.regions[0].name, "first");
  EXPECT_EQ(live.regions[0].bytes[static_cast<std::size_t>(Category::Gradient)], 100u);
}

TEST_F(LedgerTest, RetagMovesABlockFromOutsideIntoItsRegion) {
  apply({alloc(1, 100, Category::Temporary), alloc(2, 10, Category::Temporary, first_)});
  Event home = retag(1, Category::Parameter);
  home.region = first_;
  apply({home});
  const Snapshot live = ledger_.live(names_);
  ASSERT_EQ(live.regions.size(), 1u);
  EXPECT_EQ(live.regions[0].total(), 110u);
}

TEST_F(LedgerTest, RetagAfterThePeakDoesNotRewriteIt) {
  apply({alloc(1, 100, Category::Temporary), retag(1, Category::Gradient)});
  EXPECT_EQ(peak()[Category::Temporary], 100u);
  EXPECT_EQ(peak()[Category::Gradient], 0u);
  apply({alloc(2, 1)});
  EXPECT_EQ(peak()[Category::Temporary], 0u);
  EXPECT_EQ(peak()[Category::Gradient], 100u);
}

TEST_F(LedgerTest, RetagRaisesTheCategorysOwnPeak) {
  apply({alloc(1, 100, Category::Temporary), retag(1, Category::Gradient), release(1)});
  const CategoryBytes peaks = ledger_.category_peaks();
  EXPECT_EQ(peaks[static_cast<std::size_t>(Category::Gradient)], 100u);
  EXPECT_EQ(peaks[static_cast<std::size_t>(Category::Temporary)], 100u);
}

TEST_F(LedgerTest, ResetStartsThePeakFromWhatIsLive) {
  apply({alloc(1, 100, Category::Parameter), alloc(2, 50, Category::Temporary), release(2)});
  ledger_.reset_peak();
  EXPECT_EQ(ledger_.peak_bytes(), 100u);
  EXPECT_EQ(peak()[Category::Temporary], 0u);
  EXPECT_EQ(ledger_.category_peaks()[static_cast<std::size_t>(Category::Temporary)], 0u);
  apply({release(1)});
  EXPECT_EQ(peak()[Category::Parameter], 100u);
}

TEST_F(LedgerTest, RegionsAreSortedByTheirBytes) {
  apply({alloc(1, 10, Category::Activation, first_), alloc(2, 30, Category::Activation, second_),
         alloc(3, 20)});
  const Snapshot live = ledger_.live(names_);
  ASSERT_EQ(live.regions.size(), 3u);
  EXPECT_EQ(live.regions[0].name, "second");
  EXPECT_EQ(live.regions[1].name, "");
  EXPECT_EQ(live.regions[2].name, "first");
  EXPECT_EQ(live.regions[2].total(), 10u);
}

TEST_F(LedgerTest, OtherKindsChangeNothing) {
  for (const EventKind kind :
       {EventKind::Op, EventKind::Save, EventKind::Unpack, EventKind::Copy, EventKind::Mark}) {
    ledger_.apply({.kind = kind, .block = 9, .bytes = 100});
  }
  EXPECT_EQ(ledger_.live_bytes(), 0u);
  EXPECT_EQ(ledger_.peak_bytes(), 0u);
}

TEST_F(LedgerTest, ImpossibleEventsAreBugsAndChangeNothing) {
  apply({alloc(1, 100)});
  EXPECT_THROW(ledger_.apply(alloc(1, 5)), InternalError);
  EXPECT_THROW(ledger_.apply(alloc(0, 5)), InternalError);
  EXPECT_THROW(ledger_.apply(alloc(2, ~std::uint64_t{0})), InternalError);
  EXPECT_THROW(ledger_.apply(release(2)), InternalError);
  EXPECT_THROW(ledger_.apply(retag(2, Category::Gradient)), InternalError);
  EXPECT_EQ(ledger_.live_bytes(), 100u);
  EXPECT_EQ(ledger_.live_blocks(), 1u);
}

// The same account with every figure recomputed from the live blocks after every event.
class SlowModel {
 public:
  using Account = std::map<std::pair<NameId, Category>, std::uint64_t>;

  void apply(const Event& event) {
    if (event.kind == EventKind::Alloc) blocks_[event.block] = {event.region, event.category, event.bytes};
    if (event.kind == EventKind::Free) blocks_.erase(event.block);
    if (event.kind == EventKind::Retag) {
      auto& [region, category, bytes] = blocks_[event.block];
      category = event.category;
      if (region == 0) region = event.region;
    }
    if (event.kind == EventKind::Alloc && total(live()) > total(peak)) peak = live();
    for (const Category category : kAllCategories) {
      std::uint64_t& highest = category_peaks[static_cast<std::size_t>(category)];
      highest = std::max(highest, total(live(), category));
    }
  }
  void reset_peak() {
    peak = live();
    for (const Category c : kAllCategories) category_peaks[static_cast<std::size_t>(c)] = total(live(), c);
  }
  Account live() const {
    Account account;
    for (const auto& [id, block] : blocks_) {
      const auto [region, category, bytes] = block;
      if (bytes > 0) account[{region, category}] += bytes;
    }
    return account;
  }
  static std::uint64_t total(const Account& account, std::optional<Category> only = {}) {
    std::uint64_t sum = 0;
    for (const auto& [key, bytes] : account) sum += !only || key.second == *only ? bytes : 0;
    return sum;
  }

  Account peak;
  CategoryBytes category_peaks{};

 private:
  std::map<BlockId, std::tuple<NameId, Category, std::uint64_t>> blocks_;
};

SlowModel::Account account_of(const Snapshot& snapshot, NameTable names) {
  SlowModel::Account account;
  for (const auto& region : snapshot.regions) {
    for (const Category category : kAllCategories) {
      const std::uint64_t bytes = region.bytes[static_cast<std::size_t>(category)];
      if (bytes > 0) account[{names.intern(region.name), category}] = bytes;
    }
  }
  for (const Category category : kAllCategories) {
    EXPECT_EQ(snapshot[category], SlowModel::total(account, category));
  }
  EXPECT_EQ(snapshot.total, SlowModel::total(account));
  return account;
}

TEST(LedgerProperty, AgreesWithTheSlowModelAfterEveryRandomEvent) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    testing::RandomEvents random(seed);
    Ledger ledger;
    SlowModel model;
    for (int i = 0; i < 300; ++i) {
      const Event event = random.possible();
      ledger.apply(event);
      model.apply(event);
      if (random.below(60) == 0) {
        ledger.reset_peak();
        model.reset_peak();
      }
      ASSERT_EQ(account_of(ledger.live(random.names), random.names), model.live()) << "event " << i;
      ASSERT_EQ(account_of(ledger.peak(random.names), random.names), model.peak) << "event " << i;
      ASSERT_EQ(ledger.category_peaks(), model.category_peaks) << "event " << i;
    }
  }
}

}  // namespace
}  // namespace snug::trace
