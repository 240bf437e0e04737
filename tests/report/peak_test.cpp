// Traces summarised in one pass.
#include "snug/report/peak.h"

#include <gtest/gtest.h>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/trace/random_events.h"
#include "tests/trace/small_trace.h"

namespace snug::report {
namespace {

using snug::testing::message_of;
using snug::testing::TemporaryFolder;
using trace::Category;
using trace::EventKind;
using trace::Trace;

class Summarise : public ::testing::Test {
 protected:
  Summary summarise_events(std::vector<trace::Event> events) {
    trace_.events = std::move(events);
    trace::testing::save(trace_, path_);
    return summarise(path_);
  }

  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "step.trace";
  Trace trace_{.info = {.device = "cpu"}};
};

TEST_F(Summarise, GathersEverythingOfASmallTrace) {
  trace::testing::save(trace::testing::small_trace(), path_);
  const Summary summary = summarise(path_);
  EXPECT_EQ(summary.events, 9u);
  EXPECT_EQ(summary.steps, 1u);
  EXPECT_EQ(summary.peak.total, (1u << 20) + 512);
  EXPECT_EQ(summary.peak[Category::Temporary], 512u);
  EXPECT_EQ(summary.category_peaks[static_cast<std::size_t>(Category::Activation)], 512u);
  EXPECT_EQ(summary.live_at_end, 1u << 20);
  EXPECT_EQ(summary.operators, (std::vector<NamedCount>{{"aten::add", 1, (1 << 20) + 512}}));
  EXPECT_EQ(summary.saves, (std::vector<NamedCount>{{"block.0", 1, 512}}));
  EXPECT_EQ(summary.unpacks, (std::vector<NamedCount>{{"block.0", 1, 0}}));
  EXPECT_EQ(summary.copies, (std::vector<NamedCount>{{"to_host", 1, 512}}));
  EXPECT_DOUBLE_EQ(summary.seconds, 3'000'100e-9);
  EXPECT_FALSE(summary.cut_short);
  EXPECT_EQ(summary.info.device, "cpu");
  EXPECT_EQ(summary.info.about["model"], "tiny");
}

TEST_F(Summarise, CountsOnlyMarksOfStepsAsSteps) {
  const auto mark = [&](const char* name) -> trace::Event {
    return {.kind = EventKind::Mark, .name = trace_.names.intern(name)};
  };
  EXPECT_EQ(
      summarise_events({mark("step 1"), mark("forward"), mark("stepping"), mark("step 2"), mark("")}).steps,
      2u);
}

TEST_F(Summarise, GivesAnOperatorWhatWasAllocatedSinceTheOneBefore) {
  const trace::NameId mm = trace_.names.intern("mm");
  const trace::NameId add = trace_.names.intern("add");
  const trace::NameId view = trace_.names.intern("view");
  const trace::NameId backward = trace_.names.intern("backward");
  const auto alloc = [&, block = trace::BlockId{0}](std::uint64_t bytes) mutable -> trace::Event {
    return {.kind = EventKind::Alloc, .block = ++block, .bytes = bytes};
  };
  auto next = alloc;
  const Summary summary = summarise_events({next(1'000),
                                            {.kind = EventKind::Mark, .name = backward},
                                            next(10),
                                            next(20),
                                            {.kind = EventKind::Op, .name = mm},
                                            {.kind = EventKind::Op, .name = view},
                                            next(5),
                                            {.kind = EventKind::Op, .name = add},
                                            {.kind = EventKind::Op, .name = mm}});
  EXPECT_EQ(summary.operators, (std::vector<NamedCount>{{"mm", 2, 30}, {"add", 1, 5}, {"view", 1, 0}}));
}

TEST_F(Summarise, AnEmptyTraceIsAllZeros) {
  const Summary summary = summarise_events({});
  EXPECT_EQ(summary.events, 0u);
  EXPECT_EQ(summary.peak.total, 0u);
  EXPECT_TRUE(summary.operators.empty());
  EXPECT_EQ(summary.seconds, 0);
}

TEST_F(Summarise, SaysThatATraceWasCutShort) {
  trace::testing::save(trace::testing::small_trace(), path_);
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  const Summary summary = summarise(path_);
  EXPECT_TRUE(summary.cut_short);
  EXPECT_EQ(summary.events, 9u);
}

TEST_F(Summarise, EventsThatContradictOneAnotherAreTheFilesFault) {
  const std::string message = message_of<Error>([&] {
    summarise_events(
        {{.kind = EventKind::Alloc, .block = 1, .bytes = 5}, {.kind = EventKind::Free, .block = 2}});
  });
  EXPECT_EQ(message,
            path_.string() + ": event 2 contradicts those before it: block 2 was freed but is not live");
}

TEST_F(Summarise, AgreesWithALedgerOverTheLoadedTrace) {
  trace::testing::RandomEvents random(7);
  std::vector<trace::Event> events;
  for (int i = 0; i < 5'000; ++i) events.push_back(random.possible());
  trace_.names = random.names;
  const Summary summary = summarise_events(events);
  trace::Ledger ledger;
  for (const trace::Event& event : events) ledger.apply(event);
  EXPECT_EQ(summary.peak.total, ledger.peak_bytes());
  EXPECT_EQ(summary.peak.bytes, ledger.peak(random.names).bytes);
  EXPECT_EQ(summary.category_peaks, ledger.category_peaks());
  EXPECT_EQ(summary.live_at_end, ledger.live_bytes());
}

}  // namespace
}  // namespace snug::report
