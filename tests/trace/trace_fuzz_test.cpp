// Random damage to traces, with checksums repaired half of the time so that it reaches the decoder.
// SNUG_SEED=n repeats a run.
#include <gtest/gtest.h>

#include "snug/base/error.h"
#include "snug/trace/crc32.h"
#include "snug/trace/trace.h"
#include "snug/trace/trace_format.h"
#include "tests/support/mutate.h"
#include "tests/support/random_suite.h"
#include "tests/support/temporary_folder.h"
#include "tests/trace/largest_allocation.h"
#include "tests/trace/random_events.h"
#include "tests/trace/small_trace.h"

namespace snug::trace {
namespace {

using snug::testing::mutate;
using testing::RandomEvents;

// Gives every frame that is whole the length that stands in it and the checksum of what it holds.
void repair_checksums(std::string& bytes) {
  std::size_t at = format::kMagic.size();
  while (at + 8 <= bytes.size()) {
    const std::size_t length =
        std::min<std::size_t>(format::get_u32(bytes.data() + at), bytes.size() - at - 8);
    std::string frame;
    format::put_u32(frame, static_cast<std::uint32_t>(length));
    format::put_u32(frame, crc32(std::string_view(bytes).substr(at + 8, length)));
    bytes.replace(at, 8, frame);
    at += 8 + length;
  }
}

TEST(TraceFuzz, RandomDamageIsReadRefusedOrCutButNeverACrash) {
  const std::uint64_t first_seed = random_suite::seed();
  SCOPED_TRACE(::testing::Message() << "SNUG_SEED=" << first_seed);
  RandomEvents random(first_seed);
  const snug::testing::TemporaryFolder folder;
  const auto path = folder / "fuzz.trace";

  std::vector<std::string> originals;
  testing::save(testing::small_trace(), path);
  originals.push_back(snug::testing::read_file(path));
  for (const int events : {0, 1, 40}) {
    Trace trace;
    for (int i = 0; i < events; ++i) trace.events.push_back(random.arbitrary());
    trace.names = random.names;
    testing::save(trace, path);
    originals.push_back(snug::testing::read_file(path));
  }

  const auto mutations = static_cast<int>(random_suite::size("SNUG_FUZZ", 20'000));
  int refused = 0;
  int cut = 0;
  int whole = 0;
  for (int i = 0; i < mutations; ++i) {
    std::string bytes = originals[random.below(originals.size())];
    for (std::uint64_t n = random.below(4) + 1; n > 0; --n) mutate(bytes, random);
    if (random.below(2) == 0) repair_checksums(bytes);
    snug::testing::write_file(path, bytes);
    snug::testing::take_largest_allocation();
    try {
      ++(load(path).cut_short ? cut : whole);
    } catch (const Error& error) {
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      ++refused;
    }
    ASSERT_LT(snug::testing::take_largest_allocation(), 4u << 20) << "mutation " << i;
  }
  // Each outcome must have been met, or the damage was too mild or too coarse to test anything.
  EXPECT_GT(refused, mutations / 100);
  EXPECT_GT(cut, mutations / 100);
  EXPECT_GT(whole, mutations / 1000);
}

}  // namespace
}  // namespace snug::trace
