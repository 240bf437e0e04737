#include "snug/hooks/operators.h"

#include <torch/library.h>
#include <torch/version.h>

namespace snug::hooks {

static_assert(TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 12,
              "DispatchKey::Fake is torch's own from 2.13 on");

namespace {

const Frame* with_listener(const Frame* frame) {
  while (frame && !frame->operators) frame = frame->outer.get();
  return frame;
}

std::shared_ptr<Frame> frame_of(OperatorListener& listener) {
  auto frame = std::make_shared<Frame>();
  frame->operators = &listener;
  return frame;
}

}  // namespace

void OperatorCall::proceed() {
  while (const Frame* frame = with_listener(frame_)) {
    frame_ = frame->outer.get();
    if (frame->visit([&] { frame->operators->on_operator(*this); })) return;
  }
  op.redispatchBoxed(keys, &stack);
}

struct OperatorFallback {
  static void run(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    below(op, keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kOperatorKey), *stack);
  }
  static void below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
    c10::impl::ExcludeDispatchKeyGuard hide_inner_calls(kOperatorKey);
    OperatorCall(op, keys, stack, top_frame()).proceed();
  }
};

void run_operator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  OperatorFallback::below(op, keys, stack);
}

OperatorListenerGuard::OperatorListenerGuard(OperatorListener& listener)
    : frame_(frame_of(listener)), include_(kOperatorKey) {}

}  // namespace snug::hooks

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&snug::hooks::OperatorFallback::run>());
}
