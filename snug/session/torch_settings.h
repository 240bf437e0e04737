// Settings of torch that a session changes and puts back. Internal to session.
#pragma once

#include <c10/core/Device.h>

#include <list>
#include <memory>

namespace snug::session {

// Torch counts threads per thread. Sessions of one end in any order: the last that is left counts. One that
// ends on another thread changes nothing there.
class ThreadCount {
 public:
  explicit ThreadCount(int planned);  // 0: as it is
  ~ThreadCount();
  ThreadCount(const ThreadCount&) = delete;
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  struct Wishes;
  static const std::shared_ptr<Wishes>& of_this_thread();

  const std::shared_ptr<Wishes> wishes_;
  std::list<int>::iterator place_;
};

// Of torch's CUDA allocator, see memory::let_cuda_segments_grow().
class GrowingSegments {
 public:
  explicit GrowingSegments(c10::Device device);
  ~GrowingSegments();
  GrowingSegments(const GrowingSegments&) = delete;
  GrowingSegments& operator=(const GrowingSegments&) = delete;

 private:
  const bool is_cuda_;
  bool grew_ = false;
};

}  // namespace snug::session
