// How long the operators of a model's steps take on a device, at several sizes: part of `snug probe`.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/models/config.h"
#include "snug/plan/hardware.h"

namespace snug::train {

// Steps of the model's first two layers in bf16: one long sequence, several of usual length, one of them.
// Each operator once per size. What does not fit the device is left out, which `say` is told.
SNUG_API std::vector<plan::MeasuredOperator> probe_operators(
    const models::ModelConfig& model, c10::Device device, const std::function<void(const std::string&)>& say);

}  // namespace snug::train
