// Ten million events go to disk and come back without staying in memory.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "snug/trace/trace.h"
#include "tests/support/temporary_folder.h"

namespace snug::trace {
namespace {

constexpr std::uint64_t kEvents = 10'000'000;
constexpr std::uint64_t kMaxGrowth = 64u << 20;  // the events themselves would be 560 MB

std::uint64_t highest_memory_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) << 10;
}

// Like a training step: allocations of varied size, an operator after each, and a free some time later.
Event event_at(std::uint64_t i, NameId region, NameId op) {
  const auto time = static_cast<std::int64_t>(i * 700);
  const BlockId block = i / 3 + 1;
  switch (i % 3) {
    case 0:
      return {.kind = EventKind::Alloc,
              .category = Category::Temporary,
              .region = region,
              .block = block,
              .bytes = (i * 2'654'435'761u % 4'096) * 4'096,
              .time_ns = time};
    case 1:
      return {.kind = EventKind::Op, .region = region, .name = op, .time_ns = time};
    default:
      return {.kind = EventKind::Free,
              .region = region,
              .block = block > 20 ? block - 20 : block,
              .time_ns = time};
  }
}

TEST(TraceLarge, TenMillionEventsNeedLittleMemory) {
  const snug::testing::TemporaryFolder folder;
  const auto path = folder / "large.trace";
  NameTable names;
  NameId regions[32];
  for (int i = 0; i < 32; ++i) regions[i] = names.intern("block." + std::to_string(i));
  const NameId op = names.intern("aten::mm");

  const std::uint64_t before = highest_memory_bytes();
  TraceWriter writer(path, {.device = "cpu"});
  for (std::uint64_t i = 0; i < kEvents; ++i) writer.write(event_at(i, regions[i / 300 % 32], op), names);
  writer.finish();
  EXPECT_LT(highest_memory_bytes() - before, kMaxGrowth);
  RecordProperty("file_bytes", std::to_string(std::filesystem::file_size(path)));

  TraceReader reader(path);
  std::uint64_t read = 0;
  std::uint64_t different = 0;
  for (Event event; reader.next(event); ++read) {
    if (event != event_at(read, regions[read / 300 % 32], op)) ++different;
  }
  EXPECT_EQ(read, kEvents);
  EXPECT_EQ(different, 0u);
  EXPECT_FALSE(reader.cut_short());
  EXPECT_LT(highest_memory_bytes() - before, kMaxGrowth);
}

}  // namespace
}  // namespace snug::trace
