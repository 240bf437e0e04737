// What a step will need, from running it on Meta: seconds, and no memory to speak of, whatever the size of
// the model.
#pragma once

#include <algorithm>
#include <cstdint>

#include "snug/base/export.h"
#include "snug/capture/capture.h"
#include "snug/session/step.h"
#include "snug/session/treatment.h"

namespace snug {

struct Prediction : capture::Captured {
  c10::DeviceType device = c10::kCPU;
  std::uint64_t host_bytes = 0;        // of what is offloaded, and of what waits there between steps
  std::uint64_t streamed_bytes = 0;    // of these, what waits between steps
  std::uint64_t reserved_bytes = 0;    // by torch's allocator, with segments that grow; on the CPU the peak
  std::uint64_t needed_cap_bytes = 0;  // with a lower cap torch's allocator would empty its cache
  std::uint64_t outside_bytes = 0;     // on CUDA: context and libraries, as planned with or usual

  // What counts against a budget: see memory::Budget.
  std::uint64_t budget_use() const { return outside_bytes + reserved_bytes; }
  // The least under which torch's allocator never empties its cache.
  std::uint64_t least_budget() const { return outside_bytes + std::max(needed_cap_bytes, reserved_bytes); }
};

struct PredictOptions {
  int steps = 0;                    // 0: until they repeat
  std::uint64_t device_bytes = 0;   // the GPU's memory, by which torch's allocator takes addresses; 0: much
  std::uint64_t outside_bytes = 0;  // on CUDA; 0: what the plan says, or the usual
};

// Throws Error if the step cannot run on Meta.
SNUG_API Prediction predict(const Step& step, const plan::Setting& setting, const Treatment& treatment = {},
                            const PredictOptions& options = {});

struct Tuned {
  plan::Setting setting;
  Prediction predicted;
  bool fits = false;
};

// The first of step.settings that fits the budget so treated: list the largest passes first. If none does,
// the last one, and what that needs.
SNUG_API Tuned tune(const Step& step, std::uint64_t budget_bytes, const Treatment& treatment = {},
                    const PredictOptions& options = {});

// On the CPU, where nobody refuses memory before it is too late: whether the machine has that much free.
SNUG_API bool may_fit_here(const Prediction& prediction);

}  // namespace snug
