#include "snug/hooks/frame.h"

#include <utility>

namespace snug::hooks {

namespace {

constexpr auto kSlot = c10::DebugInfoKind::INFERENCE_CONTEXT;

std::shared_ptr<Frame> on_top(std::shared_ptr<Frame> frame) {
  if (const Frame* outer = top_frame()) frame->outer = outer->shared_from_this();
  return frame;
}

}  // namespace

const Frame* top_frame() noexcept {
  return static_cast<const Frame*>(c10::ThreadLocalDebugInfo::get(kSlot));
}

FrameGuard::FrameGuard(std::shared_ptr<Frame> frame) : guard_(kSlot, on_top(std::move(frame))) {}

}  // namespace snug::hooks
