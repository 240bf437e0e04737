// Runs anyone's loop under a plan and holds its budget.
//
//   snug::Session session(model->parameters(), planned.plan);
//   for (auto& batch : batches) {
//     net->loss(batch).backward();
//     optimizer.step();
//     optimizer.zero_grad();
//     session.end_step();
//   }
//
// The first step keeps nothing and is proven (docs/recompute.md). While the session lives, what is allocated
// on this device beyond the budget throws. If a step is not the one that was planned - other operators,
// larger tensors or, on the CPU, more memory than was predicted by more than the margin, with all that ran
// since the last end_step() - the next one keeps nothing, is sketched where it runs, and a new plan is made
// from that; if it is a smaller one than was planned for, the plan stays. A step that is another than a new
// plan's runs as lean as it can from then on. All of it is said. When the session ends, everything is as it
// was.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/hardware.h"
#include "snug/plan/plan.h"

namespace snug {

struct SessionOptions {
  c10::Device device = c10::kCPU;
  double margin = 0.02;  // of the predicted peak
  // Two steps that keep nothing, then a plan from the second. Default: on CUDA, whose operators and libraries
  // no sketch on Meta has.
  std::optional<bool> lean_at_first;
  // The first step keeps nothing and is proven: see RecordingOptions.
  bool prove = true;
  std::optional<plan::Hardware> hardware;       // for a new plan; default: the preset of this device
  std::function<void(const std::string&)> say;  // default: a line on standard error
  // On the CPU: what is older than the session and counts, beside the parameters: an optimizer's states,
  // buffers. CUDA counts all there is.
  std::vector<at::Tensor> adopt;
};

class SNUG_API Session {
 public:
  // Throws Error if the plan is for another device or another torch.
  Session(at::TensorList parameters, plan::Plan plan, const SessionOptions& options = {});
  ~Session();
  Session(const Session&) = delete;  // it is a place in torch's stacks of hooks
  Session& operator=(const Session&) = delete;

  void end_step();

  const plan::Plan& plan() const;    // the one in use
  std::uint64_t peak_bytes() const;  // the highest of all steps that ended
  std::uint64_t predicted_bytes() const;
  bool was_planned_again() const;
  bool is_as_planned() const;  // the steps since the last plan were what it says

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug
