#include "snug/hooks/saved_tensors.h"

#include <c10/util/Exception.h>

#include "snug/hooks/backward_regions.h"
#include "snug/hooks/engine.h"

namespace snug::hooks {

namespace {

std::shared_ptr<Frame> frame_of(SavedTensorPolicy& policy) {
  install_engine();
  auto frame = std::make_shared<Frame>();
  frame->saved_tensors = &policy;
  return frame;
}

std::shared_ptr<Frame> frame_of(SavedTensorListener& listener) {
  install_engine();
  auto frame = std::make_shared<Frame>();
  frame->saved_listener = &listener;
  return frame;
}

template <class Call>
void tell_listeners(Call call) {
  for_each_frame([&](const Frame& frame) {
    if (frame.saved_listener) frame.visit([&] { call(*frame.saved_listener); });
  });
}

}  // namespace

void tell_saved(const at::Tensor& tensor) {
  tell_listeners([&](SavedTensorListener& listener) { listener.on_save(tensor); });
}
void tell_unpacked(const at::Tensor& tensor) {
  throw_failure();
  tell_listeners([&](SavedTensorListener& listener) { listener.on_unpack(tensor); });
}

SavedTensorListenerGuard::SavedTensorListenerGuard(SavedTensorListener& listener)
    : frame_(frame_of(listener)) {}

SavedTensorGuard::SavedTensorGuard(SavedTensorPolicy& policy) : frame_(frame_of(policy)) {}

void KeepSavedTensor::call_pack_hook(const at::Tensor& tensor) {
  // A second handle on the same storage and version counter, without the graph: holding the tensor itself
  // would make a cycle when an operation saves its own output. Not detach(), which is an operator and would
  // be seen by listeners.
  auto* impl = tensor.unsafeGetTensorImpl();
  kept_ = at::Tensor(
      impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/false));
  version_ = impl->version_counter().current_version();
  tell_saved(tensor);
}

at::Tensor KeepSavedTensor::call_unpack_hook() {
  const auto now = kept_.unsafeGetTensorImpl()->version_counter().current_version();
  TORCH_CHECK(
      now == version_,
      "one of the variables needed for gradient computation has been modified by an inplace operation: [",
      kept_.toString(), " ", kept_.sizes(), "] is at version ", now, "; expected version ", version_,
      " instead");
  tell_unpacked(kept_);
  return kept_;
}

}  // namespace snug::hooks
