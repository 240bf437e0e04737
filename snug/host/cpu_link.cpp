#include "snug/host/cpu_link.h"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace snug::host {

namespace {

class CpuCopy final : public Copy {
 public:
  explicit CpuCopy(std::uint64_t number) : number_(number) {}
  void wait() override { finish(); }
  void finish() override { done_.wait(false, std::memory_order_acquire); }
  std::uint64_t number() const override { return number_; }

  void set_done() {
    done_.store(true, std::memory_order_release);
    done_.notify_all();
  }

 private:
  const std::uint64_t number_;
  std::atomic<bool> done_ = false;
};

// Copies of all links are counted together: an arena may be older than the link that serves it.
std::uint64_t next_cpu_copy() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

// One direction. What a copy waits for was asked for before it, so two of these never wait for each other.
class CopyThread {
 public:
  ~CopyThread() {
    {
      std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_one();
    thread_.join();  // after all that was asked for
  }
  CopyThread() = default;
  CopyThread(const CopyThread&) = delete;  // the thread points to it
  CopyThread& operator=(const CopyThread&) = delete;

  CopyPtr push(const void* from, void* to, std::uint64_t bytes, const CopyPtr& before) {
    std::shared_ptr<CpuCopy> copy;
    {
      std::lock_guard lock(mutex_);
      copy = std::make_shared<CpuCopy>(next_cpu_copy());
      jobs_.push_back({from, to, bytes, before, copy});
    }
    changed_.notify_one();
    return copy;
  }

 private:
  struct Job {
    const void* from = nullptr;
    void* to = nullptr;
    std::uint64_t bytes = 0;
    CopyPtr before;
    std::shared_ptr<CpuCopy> copy;
  };

  void run() {
    for (;;) {
      Job job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      if (job.before) job.before->finish();
      if (job.bytes > 0) std::memcpy(job.to, job.from, job.bytes);
      job.copy->set_done();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool ending_ = false;
  std::thread thread_{[this] { run(); }};  // the last: the rest is there when it starts
};

class CpuLink final : public Link {
 public:
  CpuLink() : Link(c10::kCPU) {}

  CopyPtr copy_to_host(const void* from, void* to, std::uint64_t bytes, const CopyPtr& before,
                       const CopyPtr&) override {
    return to_host_.push(from, to, bytes, before);
  }
  CopyPtr copy_to_device(void* to, const void* from, std::uint64_t bytes, const CopyPtr& before,
                         const CopyPtr&) override {
    return to_device_.push(from, to, bytes, before);
  }

 private:
  CopyThread to_host_, to_device_;
};

struct OpenCpuLink {
  std::mutex mutex;
  std::weak_ptr<Link> link;
};

}  // namespace

std::shared_ptr<Link> open_cpu_link() {
  static OpenCpuLink& open = *std::make_unique<OpenCpuLink>().release();  // for those who ask at exit
  std::lock_guard lock(open.mutex);
  std::shared_ptr<Link> link = open.link.lock();
  if (!link) open.link = link = std::make_shared<CpuLink>();
  return link;
}

}  // namespace snug::host
