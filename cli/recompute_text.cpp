#include "cli/recompute_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "snug/report/recomputed.h"

namespace snug::cli {

using train::TrainConfig;
using train::TrainResult;

namespace {

std::string mode(const TrainConfig& config) {
  return config.plan ? "planned" : std::string(train::name(config.recompute));
}

// That were recorded: not those of an earlier run that this one goes on from, and of a CUDA graph's the
// first.
std::int64_t recorded_steps(const TrainResult& result) {
  return result.steps - result.resumed - result.graph_steps + result.graphs;
}

std::uint64_t forwards(const TrainConfig& config, const TrainResult& result) {
  return static_cast<std::uint64_t>(recorded_steps(result) * config.accumulation());
}

// What is recomputed in a graph is not timed.
std::int64_t timed_steps(const TrainResult& result) {
  return recorded_steps(result) - result.graphs;
}

}  // namespace

std::string recompute_text(const TrainConfig& config, const TrainResult& result) {
  if (result.measured.recomputed.empty()) return "";
  return fmt::format("\nRecompute {}, bytes per forward of {} {}\n{}", mode(config), config.micro_batch,
                     config.micro_batch == 1 ? "sequence" : "sequences",
                     report::recomputed(result.measured.recomputed, forwards(config, result),
                                        static_cast<std::uint64_t>(timed_steps(result))));
}

Json recompute_json(const TrainConfig& config, const TrainResult& result) {
  Json regions = Json::array();
  const std::uint64_t count = std::max<std::uint64_t>(forwards(config, result), 1);
  for (const auto& [region, totals] : result.measured.recomputed) {
    Json refused = Json::array();
    for (const auto& [why, what] : totals.refused)
      refused.push_back({{"operation", why.first}, {"reason", why.second}, {"bytes", what.bytes / count}});
    regions.push_back({{"name", region},
                       {"kept_bytes", totals.kept_bytes / count},
                       {"dropped_bytes", totals.dropped_bytes / count},
                       {"offloaded_bytes", totals.offloaded_bytes / count},
                       {"replays", totals.replays / count},
                       {"seconds", totals.replay_seconds /
                                       static_cast<double>(std::max<std::int64_t>(timed_steps(result), 1))},
                       {"refused", std::move(refused)}});
  }
  return {{"mode", mode(config)}, {"regions", std::move(regions)}};
}

}  // namespace snug::cli
