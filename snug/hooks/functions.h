// Hears of autograd Functions written in Python, by name: whatever they launch themselves is no operator.
// C++'s own Functions announce nothing.
//
// Costs a RecordFunction per operator while a guard is alive.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <functional>
#include <string>

#include "snug/base/export.h"

namespace snug::hooks {

SNUG_API bool is_python_here();  // in this process

class SNUG_API FunctionListener {
 public:
  virtual ~FunctionListener() = default;
  // Its forward begins. What this returns is called when it ends, on the same thread.
  virtual std::function<void()> on_function(const std::string& name, at::TensorList inputs) = 0;
};

// Of this thread; destroyed there.
class SNUG_API FunctionListenerGuard {
 public:
  explicit FunctionListenerGuard(FunctionListener& listener);
  ~FunctionListenerGuard();
  FunctionListenerGuard(const FunctionListenerGuard&) = delete;  // see FrameGuard
  FunctionListenerGuard& operator=(const FunctionListenerGuard&) = delete;

 private:
  FunctionListener* outer_;
  at::CallbackHandle callback_ = 0;
};

}  // namespace snug::hooks
