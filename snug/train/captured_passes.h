// The forwards and backwards of a step as one CUDA graph, for steps whose kernels a GPU runs faster than the
// host launches them. Values, bits and the memory of tensors are those of steps whose kernels are launched
// one by one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/export.h"
#include "snug/io/token_dataset.h"
#include "snug/machine/launch_graph.h"
#include "snug/train/config.h"

namespace snug::train {

// Whether steps of this run ever are: a loss scale changes what is captured, and what moves does so by the
// host. A plan's own offloading is not looked at.
SNUG_API bool may_be_captured(const TrainConfig& config);

class SNUG_API CapturedPasses {
 public:
  static constexpr int kAlike = 3;  // steps in a row before a graph is made: libraries settle in them
  // What a graph of so many passes takes beside the step's tensors, at most: its kernels' arguments, and
  // pages that torch's allocator has begun for it.
  static constexpr std::uint64_t bytes(std::int64_t passes) {
    return 48_MiB + static_cast<std::uint64_t>(passes) * 2_MiB;
  }

  // `parameters`, which have no gradients between steps. `failed`: told why a step could not be captured,
  // once and before it runs as it is.
  CapturedPasses(std::vector<at::Tensor> parameters, std::function<void(const std::string& why)> failed);

  // Leave the gradients and return the loss.
  using Passes = std::function<at::Tensor(const io::Batch&)>;
  // What `passes` return: from the graph if there is one for such a step, or if it is time to make it. A
  // graph is for batches of one size with one number of targets, by which the loss is divided.
  at::Tensor run(const io::Batch& batch, std::int64_t target_count, const Passes& passes);

  bool may_become_graph() const { return may_capture_ && !graph_; }
  // After a step that may: whether the GPU had nothing to do any more before the host had launched
  // all of it. A few of these in a row, alike, are worth a graph.
  void note_step(bool host_was_slower);

  bool has_graph() const { return graph_ != nullptr; }
  bool was_launched_again() const { return was_launched_again_; }  // in the last step
  std::int64_t steps() const { return steps_; }                    // that were launched as a graph
  std::int64_t graphs() const { return graphs_; }

 private:
  void capture(const io::Batch& batch, const Passes& passes);
  void drop_graph();

  const std::vector<at::Tensor> parameters_;
  const std::function<void(const std::string&)> failed_;
  bool may_capture_ = true;
  bool was_launched_again_ = false;
  int alike_ = 0;  // steps in a row that were worth a graph
  std::int64_t graphs_ = 0;
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> sizes_;  // of the last batch
  std::int64_t target_count_ = 0;
  std::unique_ptr<machine::LaunchGraph> graph_;  // goes last: the others are in its memory
  io::Batch batch_;                              // which it reads
  at::Tensor loss_;                              // which it writes, as the gradients
  std::vector<at::Tensor> gradients_;
};

}  // namespace snug::train
