// What was kept and what was recomputed, by region.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace snug::trace {

struct RegionTotals {
  std::uint64_t calls = 0;        // of its forward
  std::uint64_t operations = 0;   // that could be run again
  std::uint64_t kept_values = 0;  // from the forward to the backward; without parameters
  std::uint64_t kept_bytes = 0;
  std::uint64_t offloaded_values = 0;  // away on the host meanwhile
  std::uint64_t offloaded_bytes = 0;
  std::uint64_t dropped_values = 0;  // that autograd saved and that were let go, to be recomputed
  std::uint64_t dropped_bytes = 0;
  std::uint64_t replays = 0;  // operations run again
  double replay_seconds = 0;
  std::uint64_t checked = 0;  // verify: values compared
  std::uint64_t differing = 0;

  // Kept although they were to be recomputed: by operation and reason.
  struct Refused {
    std::uint64_t values = 0;
    std::uint64_t bytes = 0;
  };
  std::map<std::pair<std::string, std::string>, Refused> refused;

  RegionTotals& operator+=(const RegionTotals& other) {
    calls += other.calls;
    operations += other.operations;
    kept_values += other.kept_values;
    kept_bytes += other.kept_bytes;
    offloaded_values += other.offloaded_values;
    offloaded_bytes += other.offloaded_bytes;
    dropped_values += other.dropped_values;
    dropped_bytes += other.dropped_bytes;
    replays += other.replays;
    replay_seconds += other.replay_seconds;
    checked += other.checked;
    differing += other.differing;
    for (const auto& [why, some] : other.refused) {
      refused[why].values += some.values;
      refused[why].bytes += some.bytes;
    }
    return *this;
  }
};

using Totals = std::map<std::string, RegionTotals>;  // by region, in the order of their names

}  // namespace snug::trace
