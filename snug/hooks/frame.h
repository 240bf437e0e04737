// What watches the current thread: a stack of frames, one per guard. Internal to hooks; users hold the
// guards.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <memory>

#include "snug/base/export.h"

namespace snug::hooks {

class OperatorListener;
class SavedTensorPolicy;
class RegionListener;
struct BackwardState;

// Note [Frames travel with the backward]
// Autograd runs the backward of CUDA tensors on threads of its own, under a copy of the thread-local state of
// the thread that called backward(). Plain thread_local variables do not travel; c10's ThreadLocalDebugInfo
// does, and no one else uses its INFERENCE_CONTEXT slot. So every guard pushes a frame there, and a frame
// outlives every backward that was started under it. Guards nest like scopes: the last one made goes first.
struct Frame final : c10::DebugInfoBase, std::enable_shared_from_this<Frame> {
  std::shared_ptr<const Frame> outer;
  OperatorListener* operators = nullptr;
  SavedTensorPolicy* saved_tensors = nullptr;
  RegionListener* regions = nullptr;
  std::shared_ptr<BackwardState> backward;  // beside `regions`
};

const Frame* top_frame() noexcept;

class FrameGuard {
 public:
  explicit FrameGuard(std::shared_ptr<Frame> frame);
  // Neither copied nor moved: it is a place in a stack.
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace snug::hooks
