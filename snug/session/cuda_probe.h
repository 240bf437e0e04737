// What only a GPU has: its clock, and the link to the host.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

namespace snug::session {

// Of `times` calls in a row, by the GPU's events on the current stream.
double cuda_seconds(c10::Device device, const std::function<void()>& run, int times);

struct LinkRates {
  double to_host = 0, to_device = 0;  // bytes per second, alone
  double both_ways = 0;               // of both directions together, both at work
  double slowdown = 0;                // share by which `compute` takes longer meanwhile
};

// Copies of `piece_bytes` between the GPU and pinned memory, on streams of their own.
LinkRates measure_links(c10::Device device, std::uint64_t piece_bytes, const std::function<void()>& compute);

}  // namespace snug::session
