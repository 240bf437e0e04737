#include "snug/hooks/frame.h"

#include <thread>
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

void Frame::close() const {
  closed = true;
  while (visits > 0) std::this_thread::yield();
}

FrameGuard::FrameGuard(std::shared_ptr<Frame> frame)
    : frame_(frame), guard_(kSlot, on_top(std::move(frame))) {}
FrameGuard::~FrameGuard() {
  frame_->close();
}

}  // namespace snug::hooks
