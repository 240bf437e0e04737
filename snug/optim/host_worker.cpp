#include "snug/optim/host_worker.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <omp.h>

#include <algorithm>
#include <utility>

#include "snug/optim/streams.h"

namespace snug::optim {

HostWorker::HostWorker(std::shared_ptr<host::Store> store)
    : store_(std::move(store)), stream_(store_->link().stream_beside(kOfHostWorker)) {}

HostWorker::~HostWorker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
  try {
    if (last_copy_) last_copy_->finish();
  } catch (const std::exception& error) {
    TORCH_WARN("a copy of a weight failed: ", error.what());
  }
}

HostWorker::Ticket HostWorker::push(Job job) {
  std::shared_ptr<c10::Event> asked;
  if (stream_ && job.to) {
    asked = std::make_shared<c10::Event>(stream_->device_type());
    asked->record(current_stream(stream_->device()));
  }
  std::packaged_task<host::CopyPtr()> task([this, job = std::move(job), asked] {
    if (asked) asked->block(*stream_);
    return carry_out(job);
  });
  const Ticket ticket = task.get_future().share();
  {
    const std::lock_guard lock(mutex_);
    last_ = ticket;
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
  return ticket;
}

host::CopyPtr HostWorker::carry_out(const Job& job) {
  host::finish_all(job.before);
  job.update();
  if (!job.to) return nullptr;
  const host::CopyPtr copy =
      store_->link().copy_to_device(job.to, job.weight.const_data_ptr(), job.weight.nbytes(), nullptr);
  const std::lock_guard lock(mutex_);
  return last_copy_ = copy;
}

void HostWorker::finish() {
  Ticket last;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  if (!last.valid()) return;
  last.wait();
  host::CopyPtr copy;
  {
    const std::lock_guard lock(mutex_);
    copy = last_copy_;
  }
  if (copy) copy->finish();
}

// Those who give the device its work need cores of their own: one that waits for its turn leaves the device
// idle.
void HostWorker::take_threads() {
  constexpr int kOthers = 3;
  const int all = at::get_num_threads();  // first: it sets this thread's number when it is asked for it
  omp_set_num_threads(std::max({1, all / 2, all - kOthers}));
}

void HostWorker::run() {
  take_threads();
  const at::NoGradGuard no_grad;
  std::optional<c10::StreamGuard> guard;
  if (stream_) guard.emplace(*stream_);
  for (;;) {
    std::packaged_task<host::CopyPtr()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace snug::optim
