// Files that are cut, changed or were never traces: an Error or an honest cut, never a crash.
#include <gtest/gtest.h>

#include "snug/base/error.h"
#include "snug/trace/crc32.h"
#include "snug/trace/trace.h"
#include "snug/trace/trace_format.h"
#include "tests/support/temporary_folder.h"
#include "tests/trace/largest_allocation.h"
#include "tests/trace/random_events.h"
#include "tests/trace/small_trace.h"

namespace snug::trace {
namespace {

using snug::testing::message_of;
using snug::testing::read_file;
using snug::testing::take_largest_allocation;
using snug::testing::TemporaryFolder;
using snug::testing::write_file;
using testing::save;
using testing::small_trace;

std::string framed(const std::string& payload) {
  std::string bytes;
  format::put_u32(bytes, static_cast<std::uint32_t>(payload.size()));
  format::put_u32(bytes, crc32(payload));
  return bytes + payload;
}

class TraceDamage : public ::testing::Test {
 protected:
  void SetUp() override {
    save(trace_, path_);
    whole_ = read_file(path_);
  }

  Trace load_bytes(const std::string& bytes) {
    write_file(path_, bytes);
    return load(path_);
  }
  std::string error_of(const std::string& bytes) {
    const std::string message = message_of<Error>([&] { load_bytes(bytes); });
    const std::string prefix = path_.string();
    EXPECT_TRUE(message.starts_with(prefix)) << message;
    return message.substr(std::min(prefix.size(), message.size()));
  }
  // A file with a good header and these records as its only chunk.
  std::string error_of_records(const std::string& records) { return error_of(kStart + framed(records)); }

  const std::string kStart = std::string(format::kMagic) + framed(R"({"device":"cpu","about":{}})");
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "step.trace";
  Trace trace_ = small_trace();
  std::string whole_;
};

TEST_F(TraceDamage, AFileCutAtAnyByteIsReadUpToTheCutOrRefused) {
  const std::size_t header_end = 16 + format::get_u32(whole_.data() + 8);
  for (std::size_t size = 0; size < whole_.size(); ++size) {
    SCOPED_TRACE(::testing::Message() << "cut after " << size << " bytes");
    const std::string bytes = whole_.substr(0, size);
    if (size < header_end) {
      const std::string message = error_of(bytes);
      EXPECT_EQ(message,
                size < 8 ? ": not a snug trace" : ": damaged trace: the file ends inside its header");
      continue;
    }
    const Trace cut = load_bytes(bytes);
    EXPECT_TRUE(cut.cut_short);
    EXPECT_EQ(cut.info.device, "cpu");
    const bool chunk_is_whole = size >= whole_.size() - 10;  // the end record's chunk has 10 bytes
    EXPECT_EQ(cut.events, chunk_is_whole ? trace_.events : std::vector<Event>{});
  }
}

TEST_F(TraceDamage, ACutBetweenChunksKeepsEveryChunkBeforeIt) {
  testing::RandomEvents random(5);
  Trace large;
  for (int i = 0; i < 40'000; ++i) large.events.push_back(random.arbitrary());
  large.names = random.names;
  save(large, path_);
  const std::string bytes = read_file(path_);
  const std::size_t first = 16 + format::get_u32(bytes.data() + 8);
  const std::size_t second = first + 8 + format::get_u32(bytes.data() + first);
  const Trace cut = load_bytes(bytes.substr(0, second));
  EXPECT_TRUE(cut.cut_short);
  ASSERT_GT(cut.events.size(), 500u);
  ASSERT_LT(cut.events.size(), large.events.size());
  EXPECT_TRUE(std::equal(cut.events.begin(), cut.events.end(), large.events.begin()));
  EXPECT_EQ(load_bytes(bytes.substr(0, bytes.size() - 1)).events, large.events);
}

TEST_F(TraceDamage, EveryChangedByteIsAnErrorOrACut) {
  for (std::size_t at = 0; at < whole_.size(); ++at) {
    for (int change = 1; change < 256; ++change) {
      std::string bytes = whole_;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      write_file(path_, bytes);
      take_largest_allocation();
      bool noticed = false;
      try {
        noticed = load(path_).cut_short;
      } catch (const Error&) {
        noticed = true;
      }
      ASSERT_TRUE(noticed) << "byte " << at << " changed by " << change;
      ASSERT_LT(take_largest_allocation(), 4u << 20) << "byte " << at << " changed by " << change;
    }
  }
}

TEST_F(TraceDamage, TheAllocationProbeSeesTheLibrary) {
  take_largest_allocation();
  Trace trace;
  for (int i = 0; i < 20'000; ++i) trace.names.intern(std::to_string(i));
  EXPECT_GT(take_largest_allocation(), 20'000 * sizeof(std::string) / 2);
}

TEST_F(TraceDamage, AForeignFileIsNotATrace) {
  EXPECT_EQ(error_of(""), ": not a snug trace");
  EXPECT_EQ(error_of("SNUG"), ": not a snug trace");
  EXPECT_EQ(error_of("PK\x03\x04 something else entirely"), ": not a snug trace");
  EXPECT_EQ(error_of("{\"device\": \"cpu\"}"), ": not a snug trace");
}

TEST_F(TraceDamage, AnotherVersionIsNamed) {
  std::string bytes = whole_;
  bytes[7] = '2';
  EXPECT_EQ(error_of(bytes), ": a snug trace of version 2, this snug reads version 1");
  bytes[7] = '\xb1';
  EXPECT_EQ(error_of(bytes), ": not a snug trace");
}

TEST_F(TraceDamage, AMissingFileOrAFolderIsNamed) {
  const auto missing = (folder_ / "missing").string();
  EXPECT_EQ(message_of<Error>([&] { load(missing); }), missing + ": cannot open: No such file or directory");
  EXPECT_EQ(message_of<Error>([&] { load(folder_.path()); }),
            folder_.path().string() + ": is a folder, expected a trace");
}

TEST_F(TraceDamage, ABadHeaderIsRefused) {
  const auto with_header = [](const std::string& json) { return std::string(format::kMagic) + framed(json); };
  std::string flipped = kStart;
  flipped[20] ^= 1;
  EXPECT_EQ(error_of(flipped), ": damaged trace: wrong checksum in the header");
  EXPECT_EQ(error_of(with_header("[]")), " (header): expected a JSON object, got an array");
  EXPECT_EQ(error_of(with_header("{}")), " (header): \"device\" is missing: expected a string");
  EXPECT_EQ(error_of(with_header(R"({"device":1,"about":{}})")),
            " (header): \"device\" must be a string, got the number 1");
  EXPECT_EQ(error_of(with_header(R"({"device":"cpu","about":[]})")),
            " (header): \"about\" must be an object");
  EXPECT_EQ(error_of(with_header(R"({"device":"cpu","about":{},"more":1})")),
            " (header): unknown key \"more\": remove it or correct its spelling");
  EXPECT_TRUE(error_of(with_header("nonsense")).starts_with(" (header): not valid JSON: "));
}

TEST_F(TraceDamage, ALyingLengthIsRefusedBeforeItIsBelieved) {
  for (const std::uint32_t length : {0u, (1u << 20) + 1, 0x7FFFFFFFu, 0xFFFFFFFFu}) {
    std::string bytes = kStart;
    format::put_u32(bytes, length);
    format::put_u32(bytes, 0);
    bytes += "x";
    write_file(path_, bytes);
    take_largest_allocation();
    EXPECT_EQ(error_of(bytes),
              concat(": damaged trace: an impossible length of ", length, " bytes in chunk 1"));
    EXPECT_LT(take_largest_allocation(), 1u << 20);
  }
}

TEST_F(TraceDamage, AWholeChunkWithAWrongChecksumIsDamaged) {
  std::string bytes = whole_;
  bytes[bytes.size() - 11] ^= 1;
  EXPECT_EQ(error_of(bytes), ": damaged trace: wrong checksum in chunk 1");
  bytes = whole_;
  bytes.back() ^= 1;
  EXPECT_EQ(error_of(bytes), ": damaged trace: wrong checksum in chunk 2");
}

TEST_F(TraceDamage, RecordsThatCannotBeAreRefusedUnderAGoodChecksum) {
  const std::string op = {static_cast<char>(EventKind::Op)};
  EXPECT_EQ(error_of_records(op), ": damaged trace: a record without its end in chunk 1");
  EXPECT_EQ(error_of_records(op + "\x02"), ": damaged trace: a record without its end in chunk 1");
  EXPECT_EQ(error_of_records(op + "\x02\x80"), ": damaged trace: a record without its end in chunk 1");
  EXPECT_EQ(error_of_records(op + "\x02\x01"), ": damaged trace: name 1 of 1 in chunk 1");
  EXPECT_EQ(error_of_records(op + "\x01\xff\xff\xff\xff\x0f"),
            ": damaged trace: name 4294967295 of 1 in chunk 1");
  EXPECT_EQ(error_of_records(op + "\x20"), ": damaged trace: an unknown record 3 in chunk 1");
  EXPECT_EQ(error_of_records(std::string("\x0b\0", 2)), ": damaged trace: an unknown record 11 in chunk 1");
  EXPECT_EQ(error_of_records(std::string("\x70\0", 2)), ": damaged trace: an unknown record 112 in chunk 1");
  EXPECT_EQ(error_of_records(op + "\x08" + std::string(9, '\xff') + "\x02"),
            ": damaged trace: a number past 64 bits in chunk 1");
  EXPECT_EQ(error_of_records(op + "\x08" + std::string(12, '\xff')),
            ": damaged trace: a number past 64 bits in chunk 1");
}

TEST_F(TraceDamage, NamesThatCannotBeAreRefused) {
  EXPECT_EQ(error_of_records("\x08\x05"
                             "abc"),
            ": damaged trace: a name without its end in chunk 1");
  EXPECT_EQ(error_of_records("\x08" + std::string(9, '\xff') + "\x01"),
            ": damaged trace: a name without its end in chunk 1");
  EXPECT_EQ(error_of_records("\x08\x01"
                             "a\x08\x01"
                             "a"),
            ": damaged trace: a name given twice in chunk 1");
  EXPECT_EQ(error_of_records(std::string("\x08\0", 2)), ": damaged trace: a name given twice in chunk 1");
}

TEST_F(TraceDamage, AnEndThatDoesNotFitIsRefused) {
  const std::string mark = {static_cast<char>(EventKind::Mark), 0};
  const std::string end_after_one = "\x09\x01";
  EXPECT_EQ(error_of_records("\x09\x02"),
            ": damaged trace: an end after 2 events, but there are 0 in chunk 1");
  EXPECT_EQ(error_of_records(mark + end_after_one + mark), ": damaged trace: data after the end in chunk 1");
  EXPECT_EQ(error_of(whole_ + "x"), ": damaged trace: data after the end in chunk 2");
  EXPECT_EQ(error_of(whole_ + whole_), ": damaged trace: data after the end in chunk 2");
  EXPECT_EQ(load_bytes(kStart + framed(mark) + framed(end_after_one)).events.size(), 1u);
}

TEST_F(TraceDamage, AReaderThatFailedSaysThatNothingFollows) {
  write_file(path_, kStart + framed("\x0f"));
  TraceReader reader(path_);
  Event event;
  EXPECT_THROW(reader.next(event), Error);
  EXPECT_FALSE(reader.next(event));
}

}  // namespace
}  // namespace snug::trace
