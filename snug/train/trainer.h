// The training loop.
//
//   TrainResult result = train(config, {.out_dir = "runs/tiny-1", .on_step = print});
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "snug/base/export.h"
#include "snug/session/measured.h"
#include "snug/session/predict.h"
#include "snug/train/config.h"
#include "snug/train/metrics.h"

namespace snug::zero {
class Group;
}  // namespace snug::zero

namespace snug::train {

struct TrainOptions {
  std::shared_ptr<zero::Group> group;  // of config.ranks; null: this process trains by itself
  std::filesystem::path out_dir;       // empty: nothing is written
  std::filesystem::path trace;         // empty: no trace
  std::int64_t traced_steps = 3;       // the trace ends after this many
  bool tapes = false;  // the trace holds the tapes of the first step, so every region is recorded
  std::function<void(const Prediction&)> on_prediction;
  std::function<void(const StepMetrics&)> on_step;
  // What the user should know: the budget can no longer be promised, a step is not as planned, a resume
  // splits the batch otherwise, a save stops the run.
  std::function<void(const std::string&)> on_trouble;
  // Before they are used, times the loss scale in fp16: to look at them, not to keep them, since a step that
  // is a CUDA graph writes them again.
  std::function<void(std::int64_t step, const std::vector<at::Tensor>& gradients)> on_gradients;
  // Into out_dir/state: after the last step, when stopped, and after every so many steps (0: not in between).
  bool save = false;
  std::int64_t save_every = 0;
  std::size_t keep_last = 2;  // states
  // Goes on after the last state in out_dir; from the start if it has neither one nor a step on record. Not
  // if all steps are done.
  bool resume = false;
  const std::atomic<bool>* stop = nullptr;  // set (by Ctrl-C): the run ends after the current step
};

struct Measured : snug::Measured {
  double step_seconds = 0;  // median, without the first step if there are more
};

struct TrainResult {
  std::int64_t steps = 0;    // done, those before a resume included
  std::int64_t resumed = 0;  // the step after which this run went on
  bool interrupted = false;
  std::int64_t skipped = 0;                     // of these, because fp16 overflowed
  std::int64_t graph_steps = 0, graphs = 0;     // taken here as a CUDA graph, and how many that were
  std::optional<double> first_loss, last_loss;  // none if the run ended before its first step
  std::optional<double> loss_scale;             // at the end, in fp16
  double tokens_per_second = 0;
  std::filesystem::path state;  // that was saved last; empty if none was
  std::optional<std::uint64_t> budget_bytes;
  Prediction predicted;
  Measured measured;
};

// Throws the Error for bad input, data, weights or a folder that is in use, that train() would throw, and
// does nothing: for whoever has something to do before it.
SNUG_API void check_run(const TrainConfig& config, const TrainOptions& options);

// Throws Error for bad input before anything is written, memory::OutOfBudget or c10::OutOfMemoryError when
// memory runs out, RunError when the run fails otherwise.
SNUG_API TrainResult train(const TrainConfig& config, const TrainOptions& options = {});

}  // namespace snug::train
