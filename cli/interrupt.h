// Ctrl-C and SIGTERM: the first asks the run to end after its current step, the second ends the process as
// usual.
#pragma once

#include <atomic>

namespace snug::cli {

// From here on; the flag is set by the first signal. Only one run of a process can be asked this way.
const std::atomic<bool>& stop_on_signal();

}  // namespace snug::cli
