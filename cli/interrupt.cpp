#include "cli/interrupt.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>

namespace snug::cli {
namespace {

// A signal handler can reach nothing but globals.
std::atomic<bool> stop = false;
std::string notice;  // written before the handler is there
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

extern "C" void on_signal(int signal) {
  if (stop.exchange(true)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  const int saved = errno;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, notice.data(), notice.size());
  errno = saved;
}

}  // namespace

const std::atomic<bool>& stop_on_signal(std::string_view after) {
  notice = fmt::format("\nstopping after {}; once more ends at once\n", after);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);  // nohup ignores SIGHUP
  }
  return stop;
}

}  // namespace snug::cli
