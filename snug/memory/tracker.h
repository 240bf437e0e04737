// Watches the memory of a program: live and peak bytes by category and region, on the CPU, on Meta or on a
// CUDA device.
//
//   snug::memory::Tracker tracker;
//   tracker.adopt(model->parameters(), trace::Category::Parameter);
//   { auto claim = tracker.claim(trace::Category::Input); batch = load(); }
//   loss(model, batch).backward();
//   { auto claim = tracker.claim(trace::Category::Optimizer); optimizer.step(); }
//   std::cout << report::table(tracker.peak());
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "snug/base/export.h"
#include "snug/memory/out_of_budget.h"
#include "snug/trace/allocator_layout.h"
#include "snug/trace/ledger.h"
#include "snug/trace/trace.h"

namespace snug::memory {

struct TrackerOptions {
  c10::Device device = c10::kCPU;             // cpu, meta or cuda:i
  std::optional<std::uint64_t> budget_bytes;  // CPU and Meta: more than this throws OutOfBudget
  trace::EventSink* sink = nullptr;           // gets every event; outlives the tracker
};

// Allocations and frees are seen on every thread; operators, saved tensors and gradients on the thread that
// made the tracker and in the backwards it starts. It only watches: what a Recording or a Session does is the
// same with and without it. Destroyed on that thread. On CUDA one at a time; on the CPU and on Meta any
// number, on any threads, which end in any order: each limits and counts until it ends.
class SNUG_API Tracker {
 public:
  explicit Tracker(const TrackerOptions& options = {});
  ~Tracker();
  Tracker(const Tracker&) = delete;  // it is a place in torch's stacks of hooks
  Tracker& operator=(const Tracker&) = delete;

  // Says what tensors are for. Those older than the tracker join the account; memory that is not torch's
  // (from_blob, mapped files) cannot, and its bytes are returned.
  std::uint64_t adopt(at::TensorList tensors, trace::Category category);

  // What is made while the claim lives, outlives it, and nobody else claims, is of this category.
  class SNUG_API Claim {
   public:
    ~Claim();
    Claim(const Claim&) = delete;  // it is a stretch of time
    Claim& operator=(const Claim&) = delete;

   private:
    friend class Tracker;
    Claim(Tracker& tracker, trace::Category category);
    Tracker& tracker_;
    trace::Category category_;
    trace::BlockId first_;
  };
  [[nodiscard]] Claim claim(trace::Category category) { return Claim(*this, category); }

  // Null: nobody. A new one first gets an Alloc for everything that is alive.
  void send_to(trace::EventSink* sink);
  void mark(std::string_view name);  // a line in the trace: "step 3", "forward"
  // Once the sink has every event up to now, and before it gets the next.
  void in_order(const std::function<void()>& then);

  trace::BlockId block(const at::Tensor& tensor);  // 0 if it is not in the account

  std::uint64_t live_bytes();
  std::uint64_t peak_bytes();
  trace::Snapshot live();
  trace::Snapshot peak();
  trace::CategoryBytes category_peaks();
  void reset_peak();  // and forgets what was refused
  // The last request on this device that torch's CUDA allocator could not meet, in the size of the segment it
  // then asked the driver for. On the CPU and Meta the exception itself, OutOfBudget, says so.
  std::optional<Refusal> last_refusal();
  bool has_refused();  // a request, on whatever device
  // The allocator's own count: the limiter's on CPU and Meta, torch's allocated_bytes on CUDA. Equal to
  // live_bytes().
  std::uint64_t allocator_bytes() const;
  // Where everything lies, on CUDA; elsewhere empty. Between steps: nobody else may allocate meanwhile.
  trace::AllocatorLayout layout();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug::memory
