// What an optimizer is to a session, whoever wrote it: enough to park its states on the host between steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "snug/base/export.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace snug {

struct OptimizerState {
  std::string name;  // errors name it
  at::Tensor tensor;
};

// Where parked states can be read, and saved: on the device, as ever, which takes its memory; or where they
// wait, as tensors of the CPU.
enum class ReadStates { OnDevice, OnHost };

struct SNUG_API AnyOptimizer {
  AnyOptimizer() = default;
  // One of torch's: Adam, AdamW, SGD, RMSprop, Adagrad, or of a class that is derived from one of them.
  // Throws Error, which names it, if it is another.
  AnyOptimizer(torch::optim::Optimizer& optimizer);  // as an argument

  std::vector<at::Tensor> parameters;
  // That it has of this parameter by now, the same tensors that step() will use.
  std::function<std::vector<OptimizerState>(const at::Tensor& parameter)> states;
  std::function<void()> step;
  // Every parameter is updated by itself, and not at all if it has no gradient: then step() may be called for
  // some of them at a time.
  bool is_by_parameter = false;

  std::vector<at::Tensor> gradients() const;  // that are defined: what a GradScaler asks for
};

}  // namespace snug
