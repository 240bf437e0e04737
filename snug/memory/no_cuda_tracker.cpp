#include "snug/base/error.h"
#include "snug/memory/cuda_tracker.h"

namespace snug::memory {

std::unique_ptr<CudaTracker> CudaTracker::attach(EventQueue&, c10::DeviceIndex) {
  fail("this build of snug has no CUDA: configure with -DSNUG_CUDA=ON");
}

}  // namespace snug::memory
