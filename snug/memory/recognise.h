// Says what memory is for without tagging tensors: what autograd saves, what it accumulates, what operators
// make. Internal to memory.
#pragma once

#include <functional>

#include "snug/hooks/operators.h"
#include "snug/hooks/region.h"
#include "snug/hooks/saved_tensors.h"
#include "snug/memory/event_queue.h"

namespace snug::memory {

bool in_operator() noexcept;               // this thread is inside an operator that a tracker watches
void* block_of(const at::Tensor& tensor);  // how the account knows the tensor's storage; null if it has none

// Ops and the allocations made inside them.
class OperatorWatch final : public hooks::OperatorListener {
 public:
  // `when_full` runs after an operator, outside every lock, once the queue holds `length` events.
  OperatorWatch(EventQueue& queue, std::size_t length, std::function<void()> when_full)
      : queue_(queue), length_(length), when_full_(std::move(when_full)) {}
  void on_operator(hooks::OperatorCall& call) override;

 private:
  EventQueue& queue_;
  std::size_t length_;
  std::function<void()> when_full_;
};

// Save and Unpack; a saved block is an activation, unless it is a leaf that wants a gradient: a parameter.
class SaveWatch final : public hooks::SavedTensorListener {
 public:
  explicit SaveWatch(EventQueue& queue) : queue_(queue) {}
  void on_save(const at::Tensor& tensor) override;
  void on_unpack(const at::Tensor& tensor) override;

 private:
  EventQueue& queue_;
};

// Gradients, at the moment the engine stores them in leaf.grad().
class GradientWatch final : public hooks::RegionListener {
 public:
  explicit GradientWatch(EventQueue& queue) : queue_(queue) {}
  void parameter_came(const at::Tensor& parameter) override;
  void gradient_ready(const at::Tensor& leaf) override;

 private:
  EventQueue& queue_;
};

}  // namespace snug::memory
