// Runs anyone's loop under a plan and holds its budget.
//
//   snug::Session session(model->parameters(), planned);
//   for (auto& batch : batches) {
//     net->loss(batch).backward();
//     optimizer.step();
//     optimizer.zero_grad();
//     session.end_step();
//   }
//
// While it lives, what is allocated on this device beyond the budget throws. Regions that are not those of
// the plan, or whose structure changes from step to step, are re-made as far as can be from then on. A step
// that needs more than was predicted, by more than the margin, makes a new plan for the rest of the budget,
// once. Both are said. When the session ends, everything is as it was.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "snug/base/export.h"
#include "snug/session/plan_step.h"

namespace snug {

struct SessionOptions {
  c10::Device device = c10::kCPU;
  double margin = 0.02;        // of the predicted peak
  bool lean_at_first = false;  // two steps under the leanest plan: for loops that hold what the sketch lacks
  std::function<void(const std::string&)> say;  // default: a line on standard error
};

class SNUG_API Session {
 public:
  Session(at::TensorList parameters, PlannedStep planned, const SessionOptions& options = {});
  // A plan alone, from a file, can be held to but not made again.
  Session(at::TensorList parameters, plan::Plan plan, const SessionOptions& options = {});
  ~Session();
  Session(const Session&) = delete;  // it is a place in torch's stacks of hooks
  Session& operator=(const Session&) = delete;

  void end_step();

  const plan::Plan& plan() const;    // the one in use
  std::uint64_t peak_bytes() const;  // the highest of all steps that ended
  std::uint64_t predicted_bytes() const;
  bool was_planned_again() const;
  bool is_as_planned() const;  // every region had the structure that the plan says

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug
