// Sketches on disk: what was saved is loaded, and what is no sketch, or no longer one, is an Error that names
// the file.
#include "snug/trace/sketch_file.h"

#include <gtest/gtest.h>

#include <random>

#include "snug/base/error.h"
#include "snug/trace/crc32.h"
#include "snug/trace/trace_format.h"
#include "tests/support/mutate.h"
#include "tests/support/temporary_folder.h"

namespace snug::trace {
namespace {

using snug::testing::message_of;
using snug::testing::read_file;
using snug::testing::TemporaryFolder;
using snug::testing::write_file;

constexpr std::size_t kHeaderBytes = 16;

const std::filesystem::path kSaved = std::filesystem::path(SNUG_PLANS) / "convolutions.sketch";

class SketchFile : public ::testing::Test {
 protected:
  std::string error_of(const std::string& bytes) {
    write_file(path_, bytes);
    const std::string message = message_of<Error>([&] { load_sketch(path_); });
    EXPECT_TRUE(message.starts_with(path_.string())) << message;
    return message;
  }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_ / "step.sketch";
  const std::string whole_ = read_file(kSaved);
};

TEST_F(SketchFile, IsLoadedAsItWasSaved) {
  const Sketch sketch = load_sketch(kSaved);
  EXPECT_GT(sketch.calls.size(), 3u);
  save_sketch(sketch, path_);
  EXPECT_EQ(read_file(path_), whole_);
  EXPECT_EQ(load_sketch(path_), sketch);
  save_sketch({}, path_);
  EXPECT_EQ(load_sketch(path_), Sketch());
}

TEST_F(SketchFile, CutAtAnyByteItIsRefused) {
  for (std::size_t size = 0; size < whole_.size(); size += size < 64 ? 1 : 97) {
    const std::string message = error_of(whole_.substr(0, size));
    EXPECT_NE(message.find(size < 8 ? "not a snug sketch" : "cut short"), std::string::npos) << message;
  }
}

TEST_F(SketchFile, WithAnyBitChangedItIsRefused) {
  for (std::size_t at = 0; at < whole_.size(); at += at < 64 ? 1 : 101) {
    std::string bytes = whole_;
    bytes[at] = static_cast<char>(bytes[at] ^ 1 << at % 8);
    error_of(bytes);
  }
  EXPECT_NE(error_of(whole_ + "x").find("data after the end"), std::string::npos);
}

TEST_F(SketchFile, OfAnotherVersionOrAnotherKindItIsRefusedByName) {
  std::string newer = whole_;
  newer[7] = '2';
  EXPECT_NE(error_of(newer).find("version 2, this snug reads version 1"), std::string::npos);
  EXPECT_NE(error_of("SNUGTRC1 and so on").find("not a snug sketch"), std::string::npos);
  EXPECT_NE(error_of("").find("not a snug sketch"), std::string::npos);
  EXPECT_THROW(load_sketch(folder_ / "nothing.sketch"), Error);
}

// Whoever wrote the checksum: numbers that contradict one another are refused, and nothing is read past its
// end.
TEST_F(SketchFile, DamagedUnderARightChecksumItIsRefusedOrHolds) {
  struct Random {
    std::size_t below(std::size_t limit) { return engine() % limit; }
    std::mt19937_64 engine{5};
  } random;
  int refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string payload = whole_.substr(kHeaderBytes);
    snug::testing::mutate(payload, random);
    std::string bytes = whole_.substr(0, kHeaderBytes - 8);
    format::put_u32(bytes, static_cast<std::uint32_t>(payload.size()));
    format::put_u32(bytes, crc32(payload));
    write_file(path_, bytes + payload);
    try {
      const Sketch sketch = load_sketch(path_);
      for (const Sketch::Call& call : sketch.calls)
        for (const std::uint32_t block : call.blocks)
          ASSERT_TRUE(block == Sketch::kNoBlock || block < sketch.blocks.size());
    } catch (const Error& error) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace snug::trace
