#include "snug/session/torch_settings.h"

#include <ATen/Parallel.h>

#include "snug/memory/process_memory.h"

namespace snug::session {

namespace {

thread_local std::list<int> wishes;
thread_local int usual = 0;

}  // namespace

ThreadCount::ThreadCount(int planned) {
  const int before = at::get_num_threads();
  if (wishes.empty()) usual = before;
  place_ = wishes.insert(wishes.end(), planned > 0 ? planned : before);
  at::set_num_threads(*place_);
}

ThreadCount::~ThreadCount() {
  wishes.erase(place_);
  at::set_num_threads(wishes.empty() ? usual : wishes.back());
}

GrowingSegments::GrowingSegments(c10::Device device) : is_cuda_(device.is_cuda()) {
  if (is_cuda_) grew_ = memory::let_cuda_segments_grow(true);
}

GrowingSegments::~GrowingSegments() {
  if (is_cuda_) memory::let_cuda_segments_grow(grew_);
}

}  // namespace snug::session
