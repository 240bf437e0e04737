// What watches the current thread: a list of frames, one per guard. Internal to hooks; users hold the guards.
#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <memory>
#include <vector>

#include "snug/base/export.h"

namespace snug::hooks {

class OperatorListener;
class SavedTensorPolicy;
class SavedTensorListener;
class RegionListener;
struct BackwardState;

// Note [Frames travel with the backward]
// Autograd runs the backward of CUDA tensors on threads of its own, under a copy of the thread-local state of
// the thread that called backward(). Plain thread_local variables do not travel; c10's ThreadLocalDebugInfo
// does, and no one else uses its INFERENCE_CONTEXT slot. So every guard puts a frame there, and a frame
// outlives every backward that was started under it. Its listener may not: when a node throws, backward()
// returns while autograd's other threads still run theirs. So listeners are reached through visit(), and a
// guard that ends waits for visits that have begun and admits no more. A list that was handed out never
// changes: each guard puts a new one in its place, so guards of a thread may end in any order.
struct Frame {
  OperatorListener* operators = nullptr;
  SavedTensorPolicy* saved_tensors = nullptr;
  SavedTensorListener* saved_listener = nullptr;
  RegionListener* regions = nullptr;
  std::shared_ptr<BackwardState> backward;  // beside `regions`

  // Runs `call` while the listener is there. False if it is gone.
  template <class Call>
  bool visit(Call call) const {
    struct Visit {
      explicit Visit(std::atomic<int>& count) : count(count) { ++count; }
      ~Visit() { --count; }
      std::atomic<int>& count;
    } visit(visits);
    if (closed) return false;
    call();
    return true;
  }
  void close() const;
  bool is_closed() const { return closed; }

 private:
  mutable std::atomic<int> visits{0};
  mutable std::atomic<bool> closed{false};
};

using Frames = std::vector<std::shared_ptr<const Frame>>;  // the innermost last

// This thread's, or null. Held while they are walked: a guard may end meanwhile.
SNUG_API std::shared_ptr<const Frames> current_frames();

// Innermost first.
template <class Call>
void for_each_frame(Call call) {
  const std::shared_ptr<const Frames> frames = current_frames();
  if (!frames) return;
  for (auto frame = frames->rbegin(); frame != frames->rend(); ++frame) call(**frame);
}

class SNUG_API FrameGuard {
 public:
  explicit FrameGuard(std::shared_ptr<const Frame> frame);
  ~FrameGuard();
  // Neither copied nor moved: it is a place in a list.
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

 private:
  std::shared_ptr<const Frame> frame_;
};

}  // namespace snug::hooks
