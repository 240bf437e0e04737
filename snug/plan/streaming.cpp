#include "snug/plan/streaming.h"

#include <algorithm>

namespace snug::plan {

namespace {

// Note [What an update costs]
// Measured on an H200 with 16 cores: llama-1.3b at 16, 13, 9.8 and 7.3 GiB, in one to eight passes, with 0 to
// 55 % of the updates by the CPU (bench/results/h200.md).
constexpr double kOfLink = 0.93;    // what streams with nothing beside it has of the link
constexpr double kOfHost = 0.62;    // of its adam_rate, beside copies: 2.8e9 of 4.56e9 parameters/s
constexpr double kBeside = 0.95;    // of that, beside a pass, whose products an update's kernels wait for
constexpr double kBesideAll = 0.7;  // the same where copies, the CPU and a pass are all at work
constexpr double kKernels =
    3.75;  // a pass is slowed by copies both ways and kernels in between, not by one copy

double seconds_of(double in, double out, const Links& links) {
  const double fetching = in / links.to_device_rate, sending = out / links.to_host_rate;
  return links.both_ways_rate > 0 ? std::max({fetching, sending, (in + out) / links.both_ways_rate})
                                  : fetching + sending;
}

// `more`: what else comes meanwhile.
double copying_seconds(const Streamed& streamed, std::uint64_t more, const Links& links) {
  if (streamed.bytes == 0 || !links.are_there()) return 0;
  const Streamed::Stepped& stepped = streamed.stepped;
  const auto streams = static_cast<double>(streamed.bytes - stepped.bytes);
  const double in = streams + static_cast<double>(stepped.fetched_bytes + more);
  const double out = streams - static_cast<double>(streamed.read_bytes - stepped.read_bytes) +
                     static_cast<double>(stepped.sent_bytes);
  return seconds_of(in, out, links);
}

double stepping_seconds(const Streamed& streamed, const Links& links) {
  return streamed.stepped.parameters == 0
             ? 0
             : static_cast<double>(streamed.stepped.parameters) / links.adam_rate;
}

}  // namespace

Links links_of(const Hardware& hardware) {
  constexpr double kShareOfHost = 0.8;
  // It was measured with both directions at work; a step uses one at a time.
  const double one_way = hardware.both_ways_rate > 0 ? hardware.to_host_rate / hardware.both_ways_rate : 1;
  return {.to_host_rate = hardware.to_host_rate,
          .to_device_rate = hardware.to_device_rate,
          .both_ways_rate = hardware.both_ways_rate,
          .copy_slowdown = one_way * hardware.copy_slowdown,
          .adam_rate = kOfHost * hardware.adam_rate,
          .host_bytes = static_cast<std::uint64_t>(kShareOfHost * static_cast<double>(hardware.host_bytes)),
          .peers = peer_links_of(hardware)};
}

double copying_seconds(const Streamed& streamed, const Links& links) {
  return copying_seconds(streamed, 0, links);
}

double streaming_seconds(const Streamed& streamed, const Links& links) {
  return std::max(copying_seconds(streamed, links) / kOfLink, stepping_seconds(streamed, links));
}

UpdateBeside update_beside(const Streamed& streamed, const Links& links, double seconds,
                           std::size_t regions) {
  std::uint64_t weights = 0;  // that the pass itself fetches
  for (const Streamed::Region& region : streamed.regions) weights += region.weight_bytes;
  const double copying = copying_seconds(streamed, weights, links);
  const double stepping = stepping_seconds(streamed, links);
  const double slowed = kKernels * links.copy_slowdown * std::min(copying, seconds);
  const double done = (stepping > 0 ? kBesideAll : kBeside) * (seconds + slowed);
  const double of_first = copying / static_cast<double>(regions);  // hides behind nothing
  return {.slowed = slowed, .left = std::max({of_first, (copying - done) / kOfLink, stepping - done})};
}

double balanced_share(double streamed_bytes, const Links& links) {
  const double streamed = kBesideAll * links.both_ways_rate / streamed_bytes;  // parameters/s
  return links.adam_rate > 0 ? links.adam_rate / (links.adam_rate + streamed) : 0;
}

}  // namespace snug::plan
