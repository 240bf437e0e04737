// When items are sent, leave and are fetched, in which order; no device is needed for that.
#include "snug/host/schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "snug/trace/moves.h"

namespace snug::host {
namespace {

using Log = std::vector<std::string>;

class Named final : public Item {
 public:
  Named(std::string name, Log& log, std::string why_not = "")
      : name_(std::move(name)), log_(log), why_not_(std::move(why_not)) {}
  std::uint64_t bytes() const override { return 10; }
  std::string send() override {
    log_.push_back("send " + name_);
    return why_not_;
  }
  void leave() override { log_.push_back("leave " + name_); }
  void fetch() override { log_.push_back("fetch " + name_); }

 private:
  const std::string name_;
  Log& log_;
  const std::string why_not_;
};

class ScheduleTest : public ::testing::Test {
 protected:
  void forward(const std::vector<std::string>& items) {
    const std::size_t region = schedule.begin_forward();
    for (const std::string& item : items)
      EXPECT_EQ(schedule.send(region, std::make_shared<Named>(item, log)), "");
    schedule.end_forward(region);
  }
  Log take() { return std::exchange(log, {}); }

  Log log;
  Schedule schedule;
};

TEST_F(ScheduleTest, ItemsLeaveWhenTheNextForwardEndsInTheOrderInWhichTheyWereSent) {
  forward({"a", "b"});
  EXPECT_EQ(take(), (Log{"send a", "send b"}));
  forward({"c"});
  EXPECT_EQ(take(), (Log{"send c", "leave a", "leave b"}));
  forward({});
  EXPECT_EQ(take(), (Log{"leave c"}));
}

TEST_F(ScheduleTest, ItemsAreFetchedWhenTheNextBackwardBeginsTheLastFirst) {
  forward({"a", "b"});
  forward({"c"});
  forward({"d"});
  take();
  schedule.begin_backward(2);
  EXPECT_EQ(take(), (Log{"fetch d", "fetch c"})) << "d never left";
  schedule.begin_backward(1);
  EXPECT_EQ(take(), (Log{"fetch c", "fetch b", "fetch a"})) << "an item knows that it was fetched";
  schedule.begin_backward(0);
  EXPECT_EQ(take(), (Log{"fetch b", "fetch a"}));
}

TEST_F(ScheduleTest, ARegionWithoutItemsIsARegion) {
  forward({"a"});
  forward({});
  forward({"c"});
  take();
  schedule.begin_backward(2);
  EXPECT_EQ(take(), (Log{"fetch c"})) << "a is two regions ahead";
}

TEST_F(ScheduleTest, WhatStaysIsNotMovedAndDoesNotCount) {
  const std::size_t region = schedule.begin_forward();
  EXPECT_EQ(schedule.send(region, std::make_shared<Named>("a", log, "no room")), "no room");
  EXPECT_EQ(schedule.send(region, std::make_shared<Named>("b", log)), "");
  EXPECT_EQ(schedule.sent_bytes(), 10u);
  take();
  forward({});
  EXPECT_EQ(take(), (Log{"leave b"}));
  schedule.begin_backward(0);
  EXPECT_EQ(take(), (Log{"fetch b"}));
}

TEST_F(ScheduleTest, WhatARegionSentIsForgottenWithIt) {
  forward({"a"});
  forward({"b"});
  take();
  schedule.forget(0);
  schedule.begin_backward(1);
  EXPECT_EQ(take(), (Log{"fetch b"}));
  EXPECT_EQ(schedule.sent_bytes(), 20u) << "that it was sent stays true";
}

TEST(Moves, TheRegionBesideIsTheNextOneOfThePass) {
  EXPECT_EQ(trace::copied_beside(0, 2), 1u);
  EXPECT_EQ(trace::copied_beside(1, 2), std::nullopt);
  EXPECT_EQ(trace::copies_beside(0), std::nullopt);
  for (std::size_t region = 0; region < 5; ++region)
    EXPECT_EQ(trace::copies_beside(*trace::copied_beside(region, 9)), region);
}

}  // namespace
}  // namespace snug::host
