// Sees every ATen operator that runs below autograd, on this thread and in the backward it starts.
//
//   struct Count : OperatorListener {
//     void on_operator(OperatorCall& call) override { ++calls; call.proceed(); }
//     int calls = 0;
//   } count;
//   OperatorListenerGuard guard(count);
//
// Composite operators arrive decomposed; what a kernel calls inside itself is not seen. Nothing costs
// anything while no guard is alive.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <utility>

#include "snug/base/export.h"
#include "snug/hooks/frame.h"

namespace snug::hooks {

// Free in torch 2.11 and 2.12: nobody registers kernels for it and no composite alias maps onto it, so every
// operator reaches our fallback. Torch 2.13 begins to use it.
inline constexpr c10::DispatchKey kOperatorKey = c10::DispatchKey::Fake;

// One operator about to run. Its arguments are the last `op.schema().arguments().size()` entries of the
// stack; proceed() replaces them by the results.
class SNUG_API OperatorCall {
 public:
  const c10::OperatorHandle& op;
  const c10::DispatchKeySet keys;
  torch::jit::Stack& stack;

  void proceed();  // the next listener outwards, at last the operator itself

 private:
  friend struct OperatorFallback;
  OperatorCall(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack,
               std::shared_ptr<const Frames> frames)
      : op(op), keys(keys), stack(stack), frames_(std::move(frames)), left_(frames_ ? frames_->size() : 0) {}
  const std::shared_ptr<const Frames> frames_;
  std::size_t left_;  // of them, further out than where the call is
};

class SNUG_API OperatorListener {
 public:
  virtual ~OperatorListener() = default;
  // Calls proceed() once, or puts results on the stack itself. Operators called in here are not seen by any
  // listener.
  virtual void on_operator(OperatorCall& call) = 0;
};

// Runs an operator from just below the fallback, in sight of this thread's listeners.
SNUG_API void run_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack);

class SNUG_API OperatorListenerGuard {
 public:
  explicit OperatorListenerGuard(OperatorListener& listener);

 private:
  struct Key {
    Key();
    ~Key();
  } key_;  // given up after the frame
  FrameGuard frame_;
};

}  // namespace snug::hooks
