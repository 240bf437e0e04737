// Makes autograd add up gradients on Meta the way it does on real devices.
//
// Where a value was used twice, the engine sums the gradients that come back. On the CPU and on CUDA it adds
// into the first one if nobody else holds it; Meta tensors it takes for a tensor subclass and allocates a
// result instead, so that a captured step would show one allocation more at every such sum.
#pragma once

#include <ATen/record_function.h>

#include "snug/base/export.h"
#include "snug/hooks/operators.h"

namespace snug::capture {

// For backwards on this thread. Listeners that are to see the same results must be added after it.
class SNUG_API GradientSumScope final : public hooks::OperatorListener {
 public:
  GradientSumScope();
  ~GradientSumScope() override;
  // Neither copied nor moved: it is a place in the stack of listeners.
  GradientSumScope(const GradientSumScope&) = delete;
  GradientSumScope& operator=(const GradientSumScope&) = delete;

  void on_operator(hooks::OperatorCall& call) override;

 private:
  c10::OperatorHandle add_;
  at::CallbackHandle nodes_;
  hooks::OperatorListenerGuard listening_;
};

}  // namespace snug::capture
