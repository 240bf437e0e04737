// How long the operators of a model's steps take on a device, at several sizes: part of the probe.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/hardware.h"

namespace snug::machine {

// Takes so many steps of `step_tokens` tokens each, in forwards of `sequences` times `tokens`, and calls
// `after_step` after each.
struct ProbeSteps {
  std::int64_t sequences = 1, tokens = 0, step_tokens = 0;
  std::int64_t steps = 1;
  std::function<void()> after_step;
};
using RunSteps = std::function<void(const ProbeSteps&)>;

// Of the last step that `run` takes; it is given a function to call after each.
SNUG_API std::vector<plan::MeasuredOperator> time_operators(
    c10::Device device, const std::function<void(const std::function<void()>& after_step)>& run);

// Steps of one long sequence, of several of usual length, of one of them. Each operator counts once per size.
// What does not fit the device is left out, which `say` is told.
SNUG_API std::vector<plan::MeasuredOperator> probe_operators(
    c10::Device device, std::int64_t most_positions, const RunSteps& run,
    const std::function<void(const std::string&)>& say);

}  // namespace snug::machine
