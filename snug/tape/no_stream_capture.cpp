#include "snug/tape/stream_capture.h"

namespace snug::tape {

bool is_capturing_stream() {
  return false;
}

}  // namespace snug::tape
