// A step under a plan against the plain one in the same micro-batches: every value that is used in the
// backward has the bits it had when it was made, and so have all gradients. Against the step in one piece
// they have another order of sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "snug/base/export.h"
#include "snug/session/treatment.h"

namespace snug {

struct Verified {
  std::uint64_t values = 0;  // compared by checksum, when made and when used
  std::uint64_t differing_values = 0;
  std::uint64_t tensors = 0;  // gradients compared bit by bit; 0: the plain step did not fit
  std::uint64_t differing_tensors = 0;
  double largest_difference = 0;  // of two gradients' elements
  std::int64_t micro_batches = 1;
  // From the step in one piece: the norm of the differences by that of the gradients. None if the batch is
  // not split, or that step did not fit.
  std::optional<double> unsplit_difference;

  bool equal() const { return differing_values == 0 && differing_tensors == 0; }
};

struct VerifyOptions {
  c10::Device device = c10::kCPU;
  std::vector<at::Tensor> parameters;  // whose gradients are compared, and taken away after each step
  std::function<void()> backward;      // adds the gradients of one step, in the treatment's micro-batches
  std::int64_t micro_batches = 1;
  std::function<void()> unsplit_backward;  // the same in one piece; empty: not compared with
};

// While it lives, kernels that add in any order are not used: without it a plain step on a GPU would differ
// from itself. Made before the device is used.
class SNUG_API Deterministic {
 public:
  explicit Deterministic(c10::Device device);
  ~Deterministic();  // gives back what torch's allocator keeps: it would count against the budget of what is
                     // next
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  const c10::Device device_;
  bool before_, before_warn_only_;
};

SNUG_API Verified verify(const Treatment& treatment, const VerifyOptions& options);

}  // namespace snug
