// Traces written and read back, and writers that cannot write.
#include "snug/trace/trace.h"

#include <gtest/gtest.h>

#include <random>

#include "snug/base/error.h"
#include "snug/trace/tape_codec.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"
#include "tests/trace/random_events.h"
#include "tests/trace/small_trace.h"

namespace snug::trace {
namespace {

using snug::testing::FileSizeLimit;
using snug::testing::message_of;
using snug::testing::TemporaryFolder;
using testing::RandomEvents;
using testing::save;
using testing::small_trace;

class TraceTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "step.trace";
};

void expect_equal(const Trace& a, const Trace& b) {
  EXPECT_EQ(a.info.device, b.info.device);
  EXPECT_EQ(a.info.about, b.info.about);
  EXPECT_EQ(a.events, b.events);
  for (const Event& event : a.events) {
    EXPECT_EQ(a.names[event.name], b.names[event.name]);
    EXPECT_EQ(a.names[event.region], b.names[event.region]);
  }
}

TEST_F(TraceTest, ComesBackAsItWasWritten) {
  const Trace trace = small_trace();
  save(trace, path_);
  const Trace loaded = load(path_);
  expect_equal(trace, loaded);
  EXPECT_FALSE(loaded.cut_short);
}

TEST_F(TraceTest, TapesComeBackAmongTheEvents) {
  RegionTape tape{.region = "layers.0"};
  for (std::uint32_t i = 0; i < 5000; ++i) {  // several chunks
    tape.values.push_back({.operation = i ? i - 1 : TapeValue::kOutside,
                           .output = i % 3,
                           .bytes = std::uint64_t{1} << i % 60,
                           .fate = i % 2 ? Fate::Keep : Fate::Recompute,
                           .parameter = i % 7 == 0,
                           .held = i % 11 == 0});
    if (i > 0) {
      tape.operations.push_back({.name = "aten::op" + std::to_string(i),
                                 .replayable = i % 5 > 0,
                                 .reads = {i - 1, i / 2},
                                 .results = {i}});
    }
    tape.saves.push_back(i);
    tape.unpacks.push_back({i, i / 2});
  }
  {
    const NameTable names;
    TraceWriter writer(path_, {.device = "cpu"});
    writer.write({.kind = EventKind::Alloc, .block = 1, .bytes = 5}, names);
    writer.write(tape);
    writer.write(RegionTape{.region = "empty"});
    writer.write({.kind = EventKind::Free, .block = 1, .bytes = 5}, names);
    writer.finish();
  }
  const Trace trace = load(path_);
  EXPECT_EQ(trace.events.size(), 2u);
  ASSERT_EQ(trace.tapes.size(), 2u);
  EXPECT_TRUE(trace.tapes[0] == tape);
  EXPECT_EQ(trace.tapes[1].region, "empty");
}

TEST(TapeCodec, AnythingButATapeIsRefused) {
  RegionTape tape{.region = "r"};
  tape.values = {{.bytes = 4}, {.operation = 0, .bytes = 4}, {.operation = 0, .bytes = 4}};
  tape.operations = {{.name = "op", .reads = {0}, .results = {1}, .writes = {{0, 2}}}};
  tape.saves = {1};
  tape.unpacks = {{1}};
  const std::string whole = encode(tape);
  ASSERT_TRUE(decode(whole).has_value());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(decode(std::string_view(whole).substr(0, size))) << size;
  EXPECT_FALSE(decode(whole + "x"));
  RegionTape orphan = tape, own = tape;
  orphan.values[1].operation = TapeValue::kOutside;
  EXPECT_FALSE(decode(encode(orphan))) << "a result that came from outside";
  own.operations[0].reads = {1};
  EXPECT_FALSE(decode(encode(own))) << "an operation that reads its own result";
  std::mt19937 random(1);
  for (int i = 0; i < 100000; ++i) {  // whatever is read can be walked
    std::string broken = whole;
    for (int k = 0; k < 3; ++k) broken[random() % broken.size()] = static_cast<char>(random());
    const auto read = decode(broken);
    if (!read) continue;
    for (const auto& operation : read->operations)
      for (const ValueIndex value : operation.reads) ASSERT_LT(value, read->values.size());
    for (const TapeValue& value : read->values)
      ASSERT_TRUE(value.operation == TapeValue::kOutside || value.operation < read->operations.size());
  }
}

TEST_F(TraceTest, AnEmptyTraceIsWhole) {
  save({.info = {.device = "meta"}}, path_);
  const Trace loaded = load(path_);
  EXPECT_EQ(loaded.info.device, "meta");
  EXPECT_TRUE(loaded.events.empty());
  EXPECT_FALSE(loaded.cut_short);
}

TEST_F(TraceTest, ArbitraryEventsComeBackOverSeveralChunks) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomEvents random(seed);
    Trace trace;
    TraceWriter writer(path_, {.device = "cpu"});
    for (int i = 0; i < 30'000; ++i) {
      trace.events.push_back(random.arbitrary());
      writer.write(trace.events.back(), random.names);
    }
    EXPECT_EQ(writer.events(), 30'000u);
    writer.finish();
    EXPECT_GT(std::filesystem::file_size(path_), 512u << 10);
    const Trace loaded = load(path_);
    ASSERT_EQ(loaded.events, trace.events);
    for (NameId id = 0; id < loaded.names.size(); ++id) ASSERT_EQ(loaded.names[id], random.names[id]);
  }
}

TEST_F(TraceTest, ManyLongNamesAreSplitIntoChunks) {
  Trace trace;
  for (int i = 0; i < 100; ++i) trace.names.intern(std::to_string(i) + std::string(60'000, 'x'));
  trace.events = {{.kind = EventKind::Op, .name = 100}};
  save(trace, path_);
  const Trace loaded = load(path_);
  EXPECT_EQ(loaded.names[100], trace.names[100]);
  EXPECT_EQ(loaded.events, trace.events);
}

TEST_F(TraceTest, TheReaderKnowsANameWhenItIsFirstUsed) {
  save(small_trace(), path_);
  TraceReader reader(path_);
  EXPECT_EQ(reader.info().device, "cpu");
  Event event;
  ASSERT_TRUE(reader.next(event));
  EXPECT_EQ(reader.names()[event.name], "step 1");
  while (reader.next(event)) {
  }
  EXPECT_FALSE(reader.next(event));
  EXPECT_FALSE(reader.cut_short());
}

TEST_F(TraceTest, SmallEventsTakeFewBytes) {
  RandomEvents random(1);
  TraceWriter writer(path_, {.device = "cpu"});
  for (int i = 0; i < 10'000; ++i) writer.write(random.possible(), random.names);
  writer.finish();
  EXPECT_LT(std::filesystem::file_size(path_), 100'000u);
}

TEST_F(TraceTest, WithoutFinishTheFileIsRemoved) {
  {
    TraceWriter writer(path_, {.device = "cpu"});
    writer.write({}, {});
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TraceTest, AFinishedTraceTakesNoMoreEvents) {
  TraceWriter writer(path_, {.device = "cpu"});
  writer.finish();
  EXPECT_THROW(writer.write({}, {}), InternalError);
  EXPECT_THROW(writer.finish(), InternalError);
  EXPECT_TRUE(load(path_).events.empty());
}

TEST_F(TraceTest, AFullDiskIsAFailedRunFromThenOnAndLeavesNoFile) {
  {
    RandomEvents random(1);
    TraceWriter writer(path_, {.device = "cpu"});
    const auto write_until_full = [&] {
      const FileSizeLimit limit(300 << 10);
      for (int i = 0; i < 1'000'000; ++i) writer.write(random.arbitrary(), random.names);
    };
    const std::string expected = path_.string() + ": cannot write: File too large";
    EXPECT_EQ(message_of<RunError>(write_until_full), expected);
    EXPECT_EQ(message_of<RunError>([&] { writer.write({}, {}); }), expected);  // though there is room again
    EXPECT_EQ(message_of<RunError>([&] { writer.finish(); }), expected);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TraceTest, AFullDiskAtTheEndIsAFailedRun) {
  TraceWriter writer(path_, {.device = "cpu"});
  writer.write({}, {});
  const FileSizeLimit limit(10);
  EXPECT_EQ(message_of<RunError>([&] { writer.finish(); }),
            path_.string() + ": cannot write: File too large");
}

TEST_F(TraceTest, ADeviceWithoutRoomFailsAtOnce) {
  std::filesystem::create_symlink("/dev/full", path_);  // a link: broken code must not remove the device
  EXPECT_EQ(message_of<RunError>([&] { TraceWriter writer(path_, {.device = "cpu"}); }),
            path_.string() + ": cannot write: No space left on device");
}

TEST_F(TraceTest, RefusesADescriptionOrANameThatIsTooLong) {
  EXPECT_THROW(TraceWriter(path_, {.device = std::string(2 << 20, 'x')}), Error);
  EXPECT_FALSE(std::filesystem::exists(path_));
  NameTable names;
  const NameId name = names.intern(std::string(65'537, 'x'));
  TraceWriter writer(path_, {.device = "cpu"});
  EXPECT_EQ(message_of<Error>([&] { writer.write({.name = name}, names); }),
            "a name in a trace must be at most 65536 bytes long, got 65537");
}

TEST_F(TraceTest, ADescriptionThatIsNotUtf8IsWrittenWithReplacements) {
  save({.info = {.device = "cpu", .about = {{"command", "a\xff"}}}}, path_);
  EXPECT_EQ(load(path_).info.about["command"], "a\xef\xbf\xbd");
}

}  // namespace
}  // namespace snug::trace
