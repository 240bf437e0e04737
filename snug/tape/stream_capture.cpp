#include "snug/tape/stream_capture.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace snug::tape {

bool is_capturing_stream() {
  return c10::cuda::device_count() > 0 && c10::cuda::hasPrimaryContext(c10::cuda::current_device()) &&
         c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

}  // namespace snug::tape
