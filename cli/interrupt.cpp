#include "cli/interrupt.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>

namespace snug::cli {
namespace {

// A signal handler can reach nothing but globals, and nothing that is destroyed before the process ends.
std::atomic<bool> stop = false;
std::atomic<int> first_signal = 0;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "set in a signal handler");
char notice[128];
std::size_t notice_length = 0;

extern "C" void on_signal(int signal) {
  if (stop.exchange(true)) {
    if (signal == SIGHUP) return;  // shell and kernel both send one when a terminal closes
    std::signal(signal, SIG_DFL);
    std::raise(signal);
    return;
  }
  first_signal = signal;
  const int saved = errno;
  [[maybe_unused]] const auto written = write(STDERR_FILENO, notice, notice_length);
  errno = saved;
}

bool is_ignored(int signal) {
  struct sigaction now {};
  sigaction(signal, nullptr, &now);
  return now.sa_handler == SIG_IGN;
}

}  // namespace

const std::atomic<bool>& stop_on_signal(std::string_view after) {
  const auto end = fmt::format_to_n(notice, sizeof notice,
                                    "\nstopping after {}; a second signal ends the run at once\n", after);
  notice_length = after.empty() ? 0 : static_cast<std::size_t>(end.out - notice);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);  // as nohup wants it
  return stop;
}

int stop_signal() {
  return first_signal;
}

}  // namespace snug::cli
