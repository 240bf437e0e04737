#include "cli/ranks.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "cli/exit_status.h"
#include "snug/base/error.h"
#include "snug/zero/meeting.h"

extern char** environ;

namespace snug::cli {
namespace {

using Clock = std::chrono::steady_clock;

// As the kernel has it: this process was given them.
std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::string> arguments;
  for (std::size_t begin = 0; begin < all.size(); begin = all.find('\0', begin) + 1)
    arguments.emplace_back(all.c_str() + begin);
  return arguments;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Those that came and are to be passed on.
std::atomic<int> signals_come[] = {0, 0, 0};
constexpr int kPassedOn[] = {SIGINT, SIGTERM, SIGHUP};

extern "C" void on_signal_to_pass_on(int signal) {
  for (std::size_t i = 0; i < std::size(kPassedOn); ++i)
    if (kPassedOn[i] == signal) ++signals_come[i];
}

class Workers {
 public:
  Workers(std::chrono::milliseconds timeout, zero::StorePtr store)
      : timeout_(timeout), store_(std::move(store)) {}
  // None is left behind.
  ~Workers() {
    kill_all();
    while (!workers_.empty()) wait_for_one(0);
  }
  Workers(const Workers&) = delete;  // they are processes
  Workers& operator=(const Workers&) = delete;

  // In a process group of its own: what a terminal sends comes here first, and is passed on once.
  void start(std::vector<std::string> variables) {
    for (char** variable = environ; *variable; ++variable) {
      const std::string name(*variable, std::strcspn(*variable, "="));
      const auto is_set = [&](const std::string& other) { return other.starts_with(name + "="); };
      if (std::ranges::none_of(variables, is_set)) variables.emplace_back(*variable);
    }
    std::vector<std::string> arguments = own_arguments();
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    pid_t worker = 0;
    const int error = posix_spawn(&worker, "/proc/self/exe", nullptr, &attributes, pointers(arguments).data(),
                                  pointers(variables).data());
    posix_spawnattr_destroy(&attributes);
    if (error != 0) throw RunError(concat("cannot start another process: ", std::strerror(error)));
    workers_.push_back({worker, static_cast<int>(workers_.size())});
  }

  // Of the first that failed; 0 if all are done.
  int wait() {
    constexpr auto kPause = std::chrono::milliseconds(20);
    while (!workers_.empty()) {
      pass_on_signals();
      while (wait_for_one(WNOHANG)) {
      }
      if (tell_at_ && Clock::now() > *tell_at_) tell();
      if (kill_at_ && Clock::now() > *kill_at_) kill_all();
      std::this_thread::sleep_for(kPause);
    }
    return status_;
  }

 private:
  struct Worker {
    pid_t process;
    int rank;
  };

  void kill_all() {
    for (const Worker& worker : workers_) kill(worker.process, SIGKILL);
  }

  void pass_on_signals() {
    for (std::size_t i = 0; i < std::size(kPassedOn); ++i)
      for (; signals_come[i] > 0; --signals_come[i]) {
        passed_on_ = kPassedOn[i];
        for (const Worker& worker : workers_) kill(worker.process, kPassedOn[i]);
      }
  }

  // Others may know better in what it was lost: they are first.
  void tell() {
    tell_at_.reset();
    if (!workers_.empty()) zero::end_ranks(*store_, why_, workers_.front().rank);
  }

  bool wait_for_one(int options) {
    int state = 0;
    const pid_t ended = waitpid(-1, &state, options);
    if (ended < 0 && errno == ECHILD) workers_.clear();
    if (ended <= 0) return false;
    const auto worker = std::ranges::find(workers_, ended, &Worker::process);
    if (worker == workers_.end()) return true;
    const int rank = worker->rank;
    workers_.erase(worker);
    if (WIFEXITED(state) && WEXITSTATUS(state) == kDone) return true;
    WIFEXITED(state) ? note_exit(WEXITSTATUS(state)) : note_death(rank, WTERMSIG(state));
    return true;
  }

  // The others know of it by now, or will within a fifth of the timeout.
  void note_exit(int status) {
    kill_by(Clock::now() + timeout_ / 4 + std::chrono::seconds(1));
    // One that only heard of a failure ends with 3.
    if (!std::exchange(has_said_, true) || status_ == kRunFailed) status_ = status;
  }

  void note_death(int rank, int signal) {
    kill_by(Clock::now() + timeout_);
    if (status_ == kDone) status_ = signal == passed_on_ ? kBySignal + signal : static_cast<int>(kRunFailed);
    if (signal == passed_on_) return kill_by(Clock::now() + std::chrono::seconds(1));
    if (!why_.empty()) return;
    why_ = concat("rank ", rank, " was ended by signal ", signal, " (", strsignal(signal), ")");
    tell_at_ = Clock::now() + std::min<Clock::duration>(timeout_ / 4, std::chrono::seconds(1));
  }

  void kill_by(Clock::time_point time) {
    if (!kill_at_ || time < *kill_at_) kill_at_ = time;
  }

  static constexpr int kBySignal = 128;
  const std::chrono::milliseconds timeout_;
  const zero::StorePtr store_;
  std::vector<Worker> workers_;
  std::optional<Clock::time_point> tell_at_, kill_at_;
  std::string why_;
  int status_ = kDone, passed_on_ = 0;
  bool has_said_ = false;
};

void pass_signals_on() {
  struct sigaction action {};
  action.sa_handler = on_signal_to_pass_on;
  action.sa_flags = SA_RESTART;
  for (const int signal : kPassedOn) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);  // as nohup wants it
  }
}

}  // namespace

int threads_of_rank(int ranks) {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

void start_ranks(int ranks, std::chrono::milliseconds timeout) {
  constexpr const char* kHere = "127.0.0.1";
  zero::Listener listener(kHere, 0);
  const int port = listener.port();
  const auto store = zero::hold_store(listener, kHere, timeout);
  pass_signals_on();
  Workers workers(timeout, store);
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::string> variables{concat("RANK=", rank),
                                       concat("WORLD_SIZE=", ranks),
                                       concat("LOCAL_RANK=", rank),
                                       concat("LOCAL_WORLD_SIZE=", ranks),
                                       concat("MASTER_ADDR=", kHere),
                                       concat("MASTER_PORT=", port),
                                       "TORCHELASTIC_USE_AGENT_STORE=True"};
    if (!std::getenv("OMP_NUM_THREADS"))
      variables.push_back(concat("OMP_NUM_THREADS=", threads_of_rank(ranks)));
    workers.start(std::move(variables));
  }
  if (const int status = workers.wait(); status != kDone) throw Ended{status};
}

void as_rank(const zero::Place& place, c10::Device device, const zero::JoinOptions& options,
             const std::function<void(const std::shared_ptr<zero::Group>&)>& run) {
  std::shared_ptr<zero::Group> group;
  bool is_mine = true;  // to say
  const Ended ended = outcome_of([&] {
    try {
      group = zero::join(place, device, options);
      // What a run says, one rank says.
      if (place.rank != 0 && !std::freopen("/dev/null", "w", stdout)) throw RunError("there is no /dev/null");
      run(group);
    } catch (const zero::RankFailure& failure) {
      is_mine = failure.is_to_be_said();
      throw;
    }
  });
  if (ended.status == kDone) return;
  const bool is_failure = ended.status == kNo || ended.status == kBadInput || ended.status == kRunFailed;
  if (group && is_failure && is_mine) is_mine = group->report(ended.text.substr(0, ended.text.find('\n')));
  if (!is_failure && place.rank != 0) is_mine = false;  // all were stopped
  if (!is_mine) throw Ended{ended.status};
  const bool has_name = ended.text.starts_with("rank") || ended.text.starts_with("of ");
  throw Ended{ended.status, ended.status == kRunFailed && !has_name && place.size > 1
                                ? concat("rank ", place.rank, ": ", ended.text)
                                : ended.text};
}

}  // namespace snug::cli
