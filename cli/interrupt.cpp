#include "cli/interrupt.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

namespace snug::cli {
namespace {

// A signal handler can reach nothing but globals.
std::atomic<bool> stop = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

extern "C" void on_signal(int signal) {
  if (stop.exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  const int saved = errno;
  constexpr std::string_view kNotice = "\nstopping after this step; once more ends at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kNotice.data(), kNotice.size());
  errno = saved;
}

}  // namespace

const std::atomic<bool>& stop_on_signal() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  return stop;
}

}  // namespace snug::cli
