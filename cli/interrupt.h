// Ctrl-C, SIGTERM and SIGHUP (a terminal that closes): the first asks the run to end after what it is at, a
// second ends the process as usual, except by SIGHUP, which comes twice.
#pragma once

#include <atomic>
#include <string_view>

namespace snug::cli {

// From here on; the flag is set by the first signal. Only one run of a process can be asked this way.
// `after`: what it still finishes, "this step"; empty: somebody else says so.
const std::atomic<bool>& stop_on_signal(std::string_view after);

// The first signal that came; 0 if none did.
int stop_signal();

}  // namespace snug::cli
