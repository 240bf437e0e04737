// Regions: named parts of the forward (one block, the embedding, the head), the unit of planning and
// reporting.
//
//   { RegionScope scope("layers.3"); x = block(x); }
//
//   RegionToken token = begin_region("layers.3");     // where no scope can be held: hooks of modules, Python
//   end_region(token);
//
// In the backward the current region is that of the forward code whose gradient is being computed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "snug/base/export.h"
#include "snug/hooks/frame.h"

namespace snug::hooks {

// Number of a region's name, the same in the whole process. 0: outside every region.
using RegionId = std::uint32_t;

SNUG_API RegionId region_id(std::string_view name);
SNUG_API std::string region_name(RegionId id);
SNUG_API RegionId current_region() noexcept;

// Says where a parameter lives, so that its gradient's accumulation counts there. Held weakly.
SNUG_API void bind_parameters(RegionId region, at::TensorList parameters);
SNUG_API RegionId region_of_parameter(const at::Tensor& parameter);

// One begin, in this process.
using RegionToken = std::uint64_t;

[[nodiscard]] SNUG_API RegionToken begin_region(RegionId id);
[[nodiscard]] inline RegionToken begin_region(std::string_view name) {
  return begin_region(region_id(name));
}
// On the thread that began it, in any order: regions that were begun inside and are still open end with it,
// and one that has ended stays as it is.
SNUG_API void end_region(RegionToken token);

class SNUG_API RegionScope {
 public:
  explicit RegionScope(std::string_view name) : RegionScope(region_id(name)) {}
  explicit RegionScope(RegionId id) : token_(begin_region(id)) {}
  ~RegionScope() { end_region(token_); }
  // Neither copied nor moved: it is a stretch of this thread's forward.
  RegionScope(const RegionScope&) = delete;
  RegionScope& operator=(const RegionScope&) = delete;

 private:
  RegionToken token_;
};

// Tells listeners that recomputation in a region is about to read these parameters.
SNUG_API void announce_replay(RegionId region, at::TensorList parameters);

// Tells listeners that the contents of a parameter came from elsewhere, into memory that was just taken.
SNUG_API void announce_parameter(const at::Tensor& parameter);

// Tells listeners that this has its gradient, which no node of autograd accumulated.
SNUG_API void announce_gradient(const at::Tensor& leaf);

// Hears of regions as a step passes through them. Called on the thread that does the work; when the last
// stretch of a backward ends, on the thread that ends the backward. What it throws before a region is entered
// (then it is not) or in the backward comes out of the forward or of the backward. after_forward must not
// throw.
class SNUG_API RegionListener {
 public:
  virtual ~RegionListener() = default;
  virtual void before_forward(RegionId) {}
  virtual void after_forward(RegionId) {}
  virtual void backward_begins() {}  // before its first node
  // A stretch of nodes of one region. Autograd runs a region's nodes together unless regions share inputs;
  // then a region may have several stretches in one backward. Each thread that autograd uses has its own.
  // A stretch that an exception left ends when the next region or backward begins.
  virtual void before_backward(RegionId) {}
  virtual void after_backward(RegionId) {}
  // Recomputation in this region is about to read these parameters.
  virtual void before_replay(RegionId, at::TensorList /*parameters*/) {}
  virtual void parameter_came(const at::Tensor& /*parameter*/) {}
  // The gradient of a leaf was accumulated: leaf.grad() is there.
  virtual void gradient_ready(const at::Tensor& /*leaf*/) {}
};

// Work of a listener's own in the middle of somebody's forward or backward: no part of it to those who record
// that.
class SNUG_API AsideScope {
 public:
  AsideScope();
  ~AsideScope();
  AsideScope(const AsideScope&) = delete;  // it is a stretch of time
  AsideScope& operator=(const AsideScope&) = delete;
  static bool on() noexcept;
};

class SNUG_API RegionListenerGuard {
 public:
  explicit RegionListenerGuard(RegionListener& listener);
  ~RegionListenerGuard();
  RegionListenerGuard(const RegionListenerGuard&) = delete;  // see FrameGuard
  RegionListenerGuard& operator=(const RegionListenerGuard&) = delete;

 private:
  FrameGuard frame_;
};

}  // namespace snug::hooks
