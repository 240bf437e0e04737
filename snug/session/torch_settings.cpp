#include "snug/session/torch_settings.h"

#include <ATen/Parallel.h>

#include <mutex>

#include "snug/memory/process_memory.h"

namespace snug::session {

struct ThreadCount::Wishes {
  std::mutex mutex;
  std::list<int> counts;
  int usual = 0;
};

const std::shared_ptr<ThreadCount::Wishes>& ThreadCount::of_this_thread() {
  static thread_local const auto wishes = std::make_shared<Wishes>();
  return wishes;
}

ThreadCount::ThreadCount(int planned) : wishes_(of_this_thread()) {
  const int before = at::get_num_threads();
  const std::lock_guard lock(wishes_->mutex);
  if (wishes_->counts.empty()) wishes_->usual = before;
  place_ = wishes_->counts.insert(wishes_->counts.end(), planned > 0 ? planned : before);
  at::set_num_threads(*place_);
}

ThreadCount::~ThreadCount() {
  const std::lock_guard lock(wishes_->mutex);
  wishes_->counts.erase(place_);
  if (wishes_ != of_this_thread()) return;
  at::set_num_threads(wishes_->counts.empty() ? wishes_->usual : wishes_->counts.back());
}

GrowingSegments::GrowingSegments(c10::Device device) : is_cuda_(device.is_cuda()) {
  if (is_cuda_) grew_ = memory::let_cuda_segments_grow(true);
}

GrowingSegments::~GrowingSegments() {
  if (is_cuda_) memory::let_cuda_segments_grow(grew_);
}

}  // namespace snug::session
