// stream_capture.cpp, or no_stream_capture.cpp in a CPU build. Internal to tape.
#pragma once

namespace snug::tape {

bool is_capturing_stream();  // a CUDA graph is being captured on this thread's current stream

}  // namespace snug::tape
