// What only a GPU has: its clock, and the link to the host.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

#include "snug/base/export.h"

namespace snug::machine {

// Of `times` calls in a row, by the GPU's events on the current stream.
double cuda_seconds(c10::Device device, const std::function<void()>& run, int times);

struct LinkRate {
  double alone = 0;     // bytes per second
  double beside = 0;    // the same while `compute` runs
  double slowdown = 0;  // share by which `compute` takes longer meanwhile
};
struct LinkRates {
  LinkRate to_host, to_device;
  LinkRate both_ways;  // of both directions together, both at work
};

// Copies of `piece_bytes` between the GPU and pinned memory, on streams of their own. `compute` should take
// 0.2 ms or more: a GPU's queue holds about a thousand launches.
SNUG_API LinkRates measure_links(c10::Device device, std::uint64_t piece_bytes,
                                 const std::function<void()>& compute);

}  // namespace snug::machine
