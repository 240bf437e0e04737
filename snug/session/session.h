// Runs anyone's loop within a budget of memory.
//
//   snug::Session session(net->parameters(), {.budget_bytes = 12_GiB});
//   for (auto& batch : batches) {
//     for (const snug::Pass& pass : session.passes(batch))
//       (net->loss(pass.of(batch)) * pass.share).backward();
//     optimizer.step();
//     optimizer.zero_grad();
//     session.end_step();
//   }
//
// A loop that does not split its batch leaves out passes(). A plan that was given (see plan_step.h) is
// followed from the second step on: the first keeps nothing while it is proven, unless SessionOptions::prove
// is false. Without a plan the first two steps keep nothing, and one is made from the second as it runs here.
// While the session lives, what is allocated on this device beyond the budget throws.
//
// Note [Steps that are not as planned]
// A region that runs other operators than the plan has, or makes larger tensors, is recomputed while it does:
// within the budget, if a step that keeps nothing fits. Where there is a link, what comes into the regions
// after it waits on the host, as it does in every step that keeps nothing. (What earlier regions of that step
// have kept by then stays: where only the end of a step grows, and the budget is close to what keeping
// nothing needs, it may run out.) The next step is then sketched where it runs and a plan made for it; plans
// are kept and used again for steps like theirs. The passes of one step may differ from one another, as a
// GAN's do. passes() says how large a step is before it runs, so that one which no plan covers is itself the
// one that is sketched; without it the plan for the largest step that was seen is in use. A step that needs
// more memory than was predicted, though it is the one that was planned, makes a new plan with as much less
// room. Steps that no plan fits keep nothing; those after them that need less have their plan again, or a new
// one. From one that runs out of memory nothing is learnt: the next one keeps nothing and is sketched. All of
// it is said. When the session ends, everything is as it was.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/export.h"
#include "snug/plan/hardware.h"
#include "snug/plan/plan.h"
#include "snug/session/any_optimizer.h"
#include "snug/session/measured.h"
#include "snug/session/predict.h"
#include "snug/session/step.h"
#include "snug/session/treatment.h"

namespace snug::zero {
class Sharding;
}  // namespace snug::zero

namespace snug {

// Of the first steps, for `snug report`.
struct SessionTrace {
  std::filesystem::path path;  // empty: none
  std::int64_t steps = 3;
  bool tapes = false;  // with those of the first step, so that every region is recorded
  Json about = Json::object();
};

struct SessionOptions {
  std::optional<c10::Device> device;  // default: the parameters'; without any, the CPU
  std::optional<plan::Plan> plan;     // as plan_step() makes it; none: see budget_bytes and by_hand
  // Default: the plan's. Without a plan and without by_hand the session plans for it by itself; without any
  // of them it only measures.
  std::optional<std::uint64_t> budget_bytes;
  std::optional<std::uint64_t> host_budget_bytes;  // default: four fifths of what the host has free
  // Instead of a plan: what is chosen by hand, and be it nothing. A budget then only limits.
  std::optional<ByHand> by_hand;
  // What predict() said: host memory is reserved, and room on the device required, before the first step.
  std::optional<Prediction> predicted;
  double margin = 0.02;  // of the predicted peak
  // The first call of each region is proven (docs/recompute.md), in a step that keeps nothing. False: the
  // caller knows that nobody writes into tensors but operators.
  bool prove = true;
  std::optional<plan::Hardware> hardware;       // for a new plan; default: as last probed, or the preset
  std::function<void(const std::string&)> say;  // default: a line on standard error
  // On the CPU: what is older than the session and counts, beside the parameters: an optimizer's states,
  // buffers. CUDA counts all there is.
  std::vector<at::Tensor> adopt;
  SessionTrace trace;
  // Of several ranks, each with its own batch and its own budget: passes() and step() keep them together. See
  // zero/sharding.h.
  std::shared_ptr<zero::Sharding> sharding;
};

// One forward and backward of a step.
struct Pass {
  std::int64_t first = 0, rows = 0;  // of the batch
  double share = 1;                  // of the rows of the batch, or of all ranks' batches
  bool is_last = true;               // of the step

  at::Tensor of(const at::Tensor& batch) const { return batch.narrow(0, first, rows); }
};

class SNUG_API Session {
 public:
  // Throws Error if the plan is for another device or another torch, or if the budget is below what CUDA
  // itself takes; RunError if other processes leave too little room.
  Session(at::TensorList parameters, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;  // it is a place in torch's stacks of hooks
  Session& operator=(const Session&) = delete;

  // How to go through this batch, whose first dimension is that of the plan's micro-batch. All ranks get as
  // many.
  std::vector<Pass> passes(const at::Tensor& batch);
  // `was_graph`: what was launched is the CUDA graph of an earlier step, whose operators nobody runs again.
  void end_step(bool was_graph = false);

  // What ran since the last step ended counts for nothing, out of memory or not: it is tried again.
  void forget_attempt();

  // Instead of the optimizer's own step(): its states wait on the host from here to the next one, as far as
  // there is a store and they are not small, and come in parts while it steps (docs/placement.md). Who reads
  // a state meanwhile is told by an exception. They come back when the session ends.
  // Of ranks: gradients are summed first, and weights that changed go to all.
  void step(const AnyOptimizer& optimizer);
  // Those that it has before its first step, because they were loaded, or Adagrad made them.
  void park(const AnyOptimizer& optimizer);
  // Until the next step they can be read and saved.
  void unpark(const AnyOptimizer& optimizer, ReadStates where = ReadStates::OnDevice);

  // Before its time, to be told by a RunError if it could not be written: the destructor throws nothing.
  void end_trace();

  // Runs what may run out of memory: then memory::OutOfBudget says what was alive, on CUDA too, and what
  // would have fitted.
  template <class Run>
  auto run(Run run) {
    try {
      return run();
    } catch (const c10::OutOfMemoryError& error) {
      explain_out_of_memory(error);
      throw;
    }
  }

  Account account();
  // What is left of the host budget at the moment, for copies that go again.
  std::uint64_t spare_host_bytes() const;
  const plan::Plan* plan() const;         // the one in use, null if there is none
  std::uint64_t last_peak_bytes() const;  // of the last step that ended; of a graph's when it was captured
  Measured measured() const;
  std::uint64_t predicted_bytes() const;  // what the plan says will count against the budget; 0 without one
  // On the device and within the budget, beside what the steps so far have needed.
  bool has_room_for(std::uint64_t bytes) const;
  int plans_made() const;      // by this session
  bool is_as_planned() const;  // the last step was what the plan in use says

 private:
  class Impl;
  // Throws OutOfBudget if more is known than the error says.
  void explain_out_of_memory(const c10::OutOfMemoryError& error);
  std::unique_ptr<Impl> impl_;
};

}  // namespace snug
