// Updates on the host, in a thread of their own and by most cores, while the device does something else.
// Internal to optim.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "snug/host/store.h"

namespace snug::optim {

class HostWorker {
 public:
  explicit HostWorker(std::shared_ptr<host::Store> store);
  ~HostWorker();                           // after all that was asked for, copies too
  HostWorker(const HostWorker&) = delete;  // the thread points to it
  HostWorker& operator=(const HostWorker&) = delete;

  struct Job {
    std::vector<host::CopyPtr> before;  // the host waits for these
    std::function<void()> update;       // of host memory
    at::Tensor weight;                  // what it wrote
    void* to = nullptr;                 // where on the device that goes; null: nowhere
  };
  // The copy to the device, once it was asked for, or why not. It begins after what the caller's stream was
  // given before push().
  using Ticket = std::shared_future<host::CopyPtr>;
  Ticket push(Job job);
  void finish();  // the host waits for all, and for the copies

 private:
  static void take_threads();
  void run();
  host::CopyPtr carry_out(const Job& job);

  const std::shared_ptr<host::Store> store_;
  const std::optional<c10::Stream> stream_;  // of the thread
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<host::CopyPtr()>> tasks_;
  Ticket last_;
  host::CopyPtr last_copy_;  // to the device: after all others
  bool ending_ = false;
  std::thread thread_{[this] { run(); }};  // the last: the rest is there when it starts
};

}  // namespace snug::optim
