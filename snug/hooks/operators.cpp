#include "snug/hooks/operators.h"

#include <torch/library.h>
#include <torch/version.h>

#include "snug/hooks/backward_regions.h"

namespace snug::hooks {

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 12,
              "DispatchKey::Fake is torch's own from 2.13 on");

namespace {

bool anyone_listens() {
  bool found = false;
  for_each_frame([&](const Frame& frame) { found |= frame.operators && !frame.is_closed(); });
  return found;
}

std::shared_ptr<Frame> frame_of(OperatorListener& listener) {
  auto frame = std::make_shared<Frame>();
  frame->operators = &listener;
  return frame;
}

}  // namespace

void OperatorCall::proceed() {
  while (left_ > 0) {
    const Frame& frame = *(*frames_)[--left_];
    if (frame.operators && frame.visit([&] { frame.operators->on_operator(*this); })) return;
  }
  op.redispatchBoxed(keys, &stack);
}

struct OperatorFallback {
  static void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    below(op, keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kOperatorKey), *stack);
  }
  static void below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
    throw_failure();
    c10::impl::ExcludeDispatchKeyGuard hide_inner_calls(kOperatorKey);
    OperatorCall(op, keys, stack, current_frames()).proceed();
  }
};

void run_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  OperatorFallback::below(op, keys, stack);
}

OperatorListenerGuard::Key::Key() {
  c10::impl::tls_set_dispatch_key_included(kOperatorKey, true);
}
// Torch's own guard would take the key from those that began later.
OperatorListenerGuard::Key::~Key() {
  c10::impl::tls_set_dispatch_key_included(kOperatorKey, anyone_listens());
}

OperatorListenerGuard::OperatorListenerGuard(OperatorListener& listener) : frame_(frame_of(listener)) {}

}  // namespace snug::hooks

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&snug::hooks::OperatorFallback::run>());
}
