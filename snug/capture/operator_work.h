// How much an operator has to do, from its arguments and results. Internal to capture.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "snug/trace/work.h"

namespace snug::capture {

// In two parts, so that nobody holds the arguments while the operator runs: kernels look at who does.
class OperatorWork {
 public:
  OperatorWork(const c10::OperatorHandle& op, const torch::jit::Stack& stack);  // before it runs
  trace::Work finish(const torch::jit::Stack& stack);                           // after it ran

 private:
  trace::Work work_;
  std::size_t below_;  // entries of the stack that are not the operator's
  bool moves_nothing_;
  double flops_per_result_ = 0;  // element
};

}  // namespace snug::capture
