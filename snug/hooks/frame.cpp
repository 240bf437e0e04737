#include "snug/hooks/frame.h"

#include <algorithm>
#include <thread>
#include <utility>

namespace snug::hooks {

namespace {

using c10::ThreadLocalDebugInfo;
constexpr auto kSlot = c10::DebugInfoKind::INFERENCE_CONTEXT;

// One entry of this thread's debug info, however many frames there are.
struct FrameList final : c10::DebugInfoBase, std::enable_shared_from_this<FrameList> {
  Frames frames;
  std::shared_ptr<ThreadLocalDebugInfo> below;  // what the thread had before
  const ThreadLocalDebugInfo* entry = nullptr;  // where this list stands
};

const FrameList* current_list() {
  return static_cast<const FrameList*>(ThreadLocalDebugInfo::get(kSlot));
}

Frames open_frames() {
  Frames open;
  if (const FrameList* list = current_list())
    std::ranges::copy_if(list->frames, std::back_inserter(open),
                         [](const auto& frame) { return !frame->is_closed(); });
  return open;
}

bool is_on_top(const FrameList& list) {
  return list.entry == ThreadLocalDebugInfo::current().get();
}

void put(Frames frames) {
  auto list = std::make_shared<FrameList>();
  list->frames = std::move(frames);
  list->below = ThreadLocalDebugInfo::current();
  ThreadLocalDebugInfo::_push(kSlot, list);
  list->entry = ThreadLocalDebugInfo::current().get();
}

// Takes this thread's list away, unless somebody else's debug info was put on top of it.
void lift() {
  const FrameList* list = current_list();
  if (list && is_on_top(*list)) ThreadLocalDebugInfo::_forceCurrentDebugInfo(list->below);
}

}  // namespace

std::shared_ptr<const Frames> current_frames() {
  const FrameList* list = current_list();
  return list ? std::shared_ptr<const Frames>(list->shared_from_this(), &list->frames) : nullptr;
}

void Frame::close() const {
  closed = true;
  while (visits > 0) std::this_thread::yield();
}

FrameGuard::FrameGuard(std::shared_ptr<const Frame> frame) : frame_(std::move(frame)) {
  Frames frames = open_frames();
  frames.push_back(frame_);
  lift();
  put(std::move(frames));
}

FrameGuard::~FrameGuard() {
  frame_->close();
  const FrameList* list = current_list();
  if (!list || !is_on_top(*list)) return;  // closed frames are passed over
  Frames left = open_frames();
  lift();
  if (open_frames() != left) put(std::move(left));
}

}  // namespace snug::hooks
