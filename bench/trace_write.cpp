// What recording costs per event: encoding to a file, decoding, and the ledger.
//
//   trace_write --benchmark_counters_tabular=true
#include <benchmark/benchmark.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "snug/trace/ledger.h"
#include "snug/trace/trace.h"

namespace snug::trace {
namespace {

constexpr std::size_t kEvents = 1 << 20;
constexpr std::size_t kLiveBlocks = 500;

// Like a training step: allocation, operator, and the free of a block made some time before, region after
// region.
struct Stream {
  NameTable names;
  std::vector<Event> events;

  explicit Stream(std::size_t regions) {
    std::vector<NameId> ids;
    for (std::size_t i = 0; i < regions; ++i) ids.push_back(names.intern("block." + std::to_string(i)));
    const NameId op = names.intern("aten::mm");
    std::uint64_t random = 1;
    std::int64_t time = 0;
    for (BlockId block = 1; events.size() < kEvents; ++block) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      const NameId region = ids[block / 100 % regions];
      const auto category = static_cast<Category>(random >> 60 & 3);
      events.push_back({.kind = EventKind::Alloc,
                        .category = category,
                        .region = region,
                        .block = block,
                        .bytes = (random >> 40) * 512,
                        .time_ns = time += 700});
      events.push_back({.kind = EventKind::Op, .region = region, .name = op, .time_ns = time += 5'000});
      if (block <= kLiveBlocks) continue;
      events.push_back(
          {.kind = EventKind::Free, .region = region, .block = block - kLiveBlocks, .time_ns = time += 300});
    }
  }
};

void count_events(benchmark::State& state, const Stream& stream) {
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(stream.events.size()));
}

std::filesystem::path scratch_file() {
  return std::filesystem::temp_directory_path() / "snug-bench.trace";
}

void write(const Stream& stream) {
  TraceWriter writer(scratch_file(), {.device = "cpu"});
  for (const Event& event : stream.events) writer.write(event, stream.names);
  writer.finish();
}

void BM_Write(benchmark::State& state) {
  const Stream stream(32);
  for (auto _ : state) {
    write(stream);
    state.PauseTiming();
    state.counters["bytes_per_event"] = static_cast<double>(std::filesystem::file_size(scratch_file())) /
                                        static_cast<double>(stream.events.size());
    std::filesystem::remove(scratch_file());
    state.ResumeTiming();
  }
  count_events(state, stream);
}
BENCHMARK(BM_Write)->Unit(benchmark::kMillisecond);

void BM_Read(benchmark::State& state) {
  const Stream stream(32);
  write(stream);
  for (auto _ : state) {
    TraceReader reader(scratch_file());
    for (Event event; reader.next(event);) benchmark::DoNotOptimize(event);
  }
  std::filesystem::remove(scratch_file());
  count_events(state, stream);
}
BENCHMARK(BM_Read)->Unit(benchmark::kMillisecond);

// By number of regions: the cost of an event must not depend on it.
void BM_Ledger(benchmark::State& state) {
  const Stream stream(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    Ledger ledger;
    for (const Event& event : stream.events) ledger.apply(event);
    benchmark::DoNotOptimize(ledger.peak_bytes());
  }
  count_events(state, stream);
}
BENCHMARK(BM_Ledger)->Arg(1)->Arg(32)->Arg(1024)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace snug::trace

BENCHMARK_MAIN();
