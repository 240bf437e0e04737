// Decides what happens to each tensor that autograd saves for the backward: C++ has no such hooks of its own.
//
//   struct Policy : SavedTensorPolicy {
//     std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override { return
//     std::make_unique<MyHooks>(); }
//   } policy;
//   SavedTensorGuard guard(policy);     // the innermost policy that answers wins
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>

#include "snug/base/export.h"
#include "snug/hooks/frame.h"

namespace snug::hooks {

class SNUG_API SavedTensorPolicy {
 public:
  virtual ~SavedTensorPolicy() = default;
  // Asked once per tensor that autograd is about to save, parameters included. nullptr: ask the next policy
  // outwards. The object lives until the graph lets go of the tensor.
  virtual std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() = 0;
};

// Hears of tensors whose contents are kept for the backward, and of those that the backward asks for, whoever
// keeps them: the policy that answers, or else KeepSavedTensor. It decides nothing, wherever it stands.
class SNUG_API SavedTensorListener {
 public:
  virtual ~SavedTensorListener() = default;
  virtual void on_save(const at::Tensor& tensor) = 0;
  virtual void on_unpack(const at::Tensor& tensor) = 0;
};
// For policies: what they keep, and what they give back.
SNUG_API void tell_saved(const at::Tensor& tensor);
SNUG_API void tell_unpacked(const at::Tensor& tensor);

class SNUG_API SavedTensorListenerGuard {
 public:
  explicit SavedTensorListenerGuard(SavedTensorListener& listener);

 private:
  FrameGuard frame_;
};

class SNUG_API SavedTensorGuard {
 public:
  explicit SavedTensorGuard(SavedTensorPolicy& policy);

 private:
  FrameGuard frame_;
};

// Keeps the tensor as autograd itself would, and tells listeners; derive from it to watch. Autograd leaves
// the check for in-place writes to the hooks, so it is done here.
class SNUG_API KeepSavedTensor : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override;

 private:
  at::Tensor kept_;
  std::uint32_t version_ = 0;
};

}  // namespace snug::hooks
