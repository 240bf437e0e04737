// What a session saw of the steps that ended: the highest figures of all of them.
#pragma once

#include <cstdint>

#include "snug/memory/process_memory.h"
#include "snug/trace/ledger.h"
#include "snug/trace/region_totals.h"

namespace snug {

struct Measured {
  trace::Snapshot peak;          // at the moment of the peak
  memory::ProcessMemory memory;  // allocated, reserved, process: the highest seen at the end of a step
  std::uint64_t host_bytes = 0;  // at the highest: what is offloaded, and what waits there between steps
  trace::Totals recomputed;      // by region, over all steps; empty if all was kept
  std::uint64_t budget_use = 0;  // what counts against a budget: tensors on the CPU, the process on a GPU
};

}  // namespace snug
