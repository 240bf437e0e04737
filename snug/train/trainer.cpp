#include "snug/train/trainer.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/hooks/device.h"
#include "snug/memory/device_budget.h"
#include "snug/memory/out_of_budget.h"
#include "snug/models/weights.h"
#include "snug/precision/grad_scaler.h"
#include "snug/train/predict.h"
#include "snug/train/saved_run.h"
#include "snug/train/step.h"
#include "snug/train/trace_recorder.h"

namespace snug::train {

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One that an earlier run left there without taking a step goes; a run that goes on without a plan keeps its
// old one.
void leave_plan(const TrainConfig& config, const std::filesystem::path& path, bool is_new) {
  if (config.plan) return plan::save_plan(*config.plan, path);
  if (is_new) std::filesystem::remove(path);
}

// The highest figures of the run, step by step.
class PeakKeeper {
 public:
  PeakKeeper(memory::Tracker& tracker, c10::Device device) : tracker_(tracker), device_(device) {}

  // Returns the peak since the last call.
  std::uint64_t take(Measured& measured) {
    trace::Snapshot peak = tracker_.peak();
    const std::uint64_t bytes = peak.total;
    if (bytes > measured.peak.total) measured.peak = std::move(peak);
    tracker_.reset_peak();
    const auto now = memory::process_memory(device_, tracker_.live_bytes());
    if (now.process_bytes > measured.memory.process_bytes) measured.memory = now;
    return bytes;
  }

 private:
  memory::Tracker& tracker_;
  c10::Device device_;
};

// Torch's own out-of-memory error on CUDA says how much was alive, not what: the tracker knows.
template <class Run>
auto with_report(memory::Tracker& tracker, const TrainConfig& config, Run run) {
  try {
    return run();
  } catch (const memory::OutOfBudget&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    const auto refusal = tracker.last_refusal();
    if (!refusal) throw;
    throw memory::OutOfBudget(*refusal, config.budget_bytes, memory::what_others_hold(config.device));
  }
}

// A scale below 1 would make overflow of what is computed, not of what is scaled: no scale helps then.
void refuse_vanished_scale(double scale, std::int64_t step) {
  if (scale >= 1) return;
  throw RunError(concat("the loss scale fell below 1 at step ", step,
                        ": the model itself overflows in fp16; use --precision bf16 or a smaller --lr"));
}

// Checked after the step is on record: its line shows the loss, the norm and the learning rate that led here.
void refuse_nan(const StepMetrics& metrics) {
  const bool loss_is_finite = std::isfinite(metrics.loss);
  if (loss_is_finite && std::isfinite(metrics.gradient_norm)) return;
  const double value = loss_is_finite ? metrics.gradient_norm : metrics.loss;
  const bool is_first = metrics.step == 1;
  throw RunError(concat(
      loss_is_finite ? "the gradient norm" : "the loss", " is ", std::isnan(value) ? "nan" : "infinite",
      " at step ", metrics.step,
      is_first
          ? ", before anything was updated: the weights are not finite, or too large for this --precision"
          : ": try a smaller --lr or a longer --warmup",
      "; --allow-nan to go on"));
}

// Null if nothing is to be offloaded. Made before the first step, so that none has to wait for it.
std::shared_ptr<host::Store> make_store(const TrainConfig& config, std::uint64_t bytes) {
  check(bytes > 0 || !config.offload, "--offload ", config.offload ? to_string(*config.offload) : "",
        " moves nothing: it is less than the smallest value, or --recompute leaves nothing");
  if (bytes == 0) return nullptr;
  try {
    return std::make_shared<host::Store>(
        config.device,
        host::StoreOptions{.budget_bytes = config.host_budget_bytes.value_or(0), .reserve_bytes = bytes});
  } catch (const Error& error) {  // good input, but this machine cannot do it
    throw RunError(error.what());
  }
}

std::uint64_t device_bytes(c10::Device device) {
  return device.is_cuda() ? memory::cuda_device(hooks::with_index(device).index()).memory_bytes : 0;
}

double median_after_first(std::vector<double> seconds) {
  if (seconds.size() > 1) seconds.erase(seconds.begin());
  std::ranges::nth_element(seconds, seconds.begin() + seconds.size() / 2);
  return seconds[seconds.size() / 2];
}

// Takes the steps of a run, one after the other, on what it was given.
class Stepper {
 public:
  Stepper(const TrainConfig& config, const TrainOptions& options, const io::TokenDataset& data,
          TrainingSetup& setup, GradScaler& scaler, memory::Tracker& tracker)
      : config_(config), options_(options), data_(data), setup_(setup), scaler_(scaler), tracker_(tracker) {}

  // `step` counts from 0. What it measured, but for memory.
  StepMetrics take(std::int64_t step) {
    const auto start = std::chrono::steady_clock::now();
    tracker_.mark("step " + std::to_string(step + 1));
    StepMetrics metrics{.step = step + 1, .lr = optim::learning_rate(schedule_, step)};
    const StepResult result = with_report(tracker_, config_, [&] { return run(metrics); });
    metrics.loss = result.loss.item<double>();
    metrics.gradient_norm = result.gradient_norm.item<double>();
    metrics.seconds = seconds_since(start);
    metrics.tokens_per_second = tokens_per_step() / metrics.seconds;
    if (scaler_.is_enabled()) update_scale(metrics);
    return metrics;
  }
  double tokens_per_step() const { return static_cast<double>(config_.batch_size * config_.seq_len); }

 private:
  StepResult run(const StepMetrics& metrics) {
    const io::Batch batch = load_batch(metrics.step - 1);
    return run_step(setup_,
                    {.batch = batch,
                     .target_count = count_targets(batch.targets),
                     .lr = metrics.lr,
                     .loss_scale = scaler_.is_enabled() ? std::optional(scaler_.get_scale()) : std::nullopt,
                     .on_gradients =
                         [&](const auto& gradients) {
                           if (options_.on_gradients) options_.on_gradients(metrics.step, gradients);
                         }},
                    config_, tracker_);
  }

  io::Batch load_batch(std::int64_t step) {
    auto claim = tracker_.claim(trace::Category::Input);
    const io::Batch batch =
        data_.batch(static_cast<std::uint64_t>(step * config_.batch_size), config_.batch_size);
    return {batch.tokens.to(config_.device), batch.targets.to(config_.device)};
  }

  void update_scale(StepMetrics& metrics) {
    metrics.loss_scale = scaler_.get_scale();
    metrics.skipped = !std::isfinite(metrics.gradient_norm);
    scaler_.note_overflow(&scaler_, at::scalar_tensor(metrics.skipped, at::kFloat));
    scaler_.update();
  }

  const TrainConfig& config_;
  const TrainOptions& options_;
  const io::TokenDataset& data_;
  TrainingSetup& setup_;
  GradScaler& scaler_;
  memory::Tracker& tracker_;
  const optim::Schedule schedule_{.kind = config_.optimizer.schedule,
                                  .lr = config_.optimizer.lr,
                                  .warmup = config_.optimizer.warmup,
                                  .total = config_.steps};
};

}  // namespace

std::uint64_t TrainResult::budget_use_bytes(c10::Device device) const {
  return device.is_cuda() ? measured.memory.process_bytes : measured.peak.total;
}

TrainResult train(const TrainConfig& given, const TrainOptions& options) {
  TrainConfig config = given;
  validate(config);
  const io::TokenDataset data = open_data(config);
  const Json facts = options.save || options.resume ? run_facts(config, data) : Json();
  std::optional<RunDirectory> directory;
  std::optional<io::SavedState> state;
  if (options.resume) {
    directory.emplace(options.out_dir);
    io::remove_unfinished_states(options.out_dir);  // also of a run that is done
    state = last_state(options.out_dir, facts);
    if (!state) directory->check_no_steps();
    if (!state && options.on_trouble) options.on_trouble("no state is there: the run begins anew");
  }
  const std::int64_t done = state ? step_of(*state) : 0;
  if (done >= config.steps) return {.steps = done, .resumed = done, .budget_bytes = config.budget_bytes};
  if (state) {
    if (const std::string text = other_split(*state, config); !text.empty() && options.on_trouble)
      options.on_trouble(text);
    config.weights = state->folder();  // its checksums were right
    models::check_weights(config.model, config.weights);
  } else {
    check_weights(config);
  }
  std::optional<RunSaver> saver;
  if (options.save) saver.emplace(options.out_dir, config, facts, options.keep_last);
  prepare(config.device);
  memory::DeviceBudget budget(config.device, config.budget_bytes, expected_outside(config));

  if (directory) {
    directory->go_on_after(done, to_json(given));
  } else if (!options.out_dir.empty()) {
    directory.emplace(options.out_dir, to_json(given));
  }
  TrainResult result{.steps = done,
                     .resumed = done,
                     .budget_bytes = config.budget_bytes,
                     .predicted = predict(config, {.device_bytes = device_bytes(config.device)})};
  if (directory) leave_plan(config, options.out_dir / "plan.json", !options.resume);
  if (options.on_prediction) options.on_prediction(result.predicted);
  budget.require(result.predicted.process_bytes());

  // On the host, where the norm is read anyway; made before the tracker, for which it does not count.
  GradScaler scaler(at::kCPU,
                    {.init_scale = config.loss_scale, .enabled = config.precision == Precision::Fp16});
  TraceRecorder trace(options.trace, config, options.traced_steps);
  memory::Tracker tracker({.device = config.device,
                           .budget_bytes = config.device.is_cuda() ? std::nullopt : config.budget_bytes,
                           .sink = trace.sink()});
  PeakKeeper peaks(tracker, config.device);
  at::manual_seed(config.seed);
  auto setup = with_report(tracker, config, [&] { return TrainingSetup(config, config.device, tracker); });
  if (state) restore(*state, setup, scaler);
  state.reset();  // and its files with it
  const auto save = [&](std::int64_t step) {
    directory->sync();
    result.state = saver->save(step, setup, scaler);
  };
  const auto host = make_store(config, result.predicted.host_bytes);
  const auto recording = make_recording(config, {.describe = options.tapes, .host = host});

  Stepper stepper(config, options, data, setup, scaler, tracker);
  std::vector<double> seconds;
  std::int64_t saved = done;
  for (std::int64_t step = done; step < config.steps && !(options.stop && *options.stop); ++step) {
    StepMetrics metrics = stepper.take(step);
    metrics.peak_bytes = peaks.take(result.measured);
    if (options.tapes) {
      const auto tapes = recording->take_tapes();
      if (step == done) trace.write(tapes);
    }
    trace.end_step();
    seconds.push_back(metrics.seconds);
    if (directory) directory->append(metrics);
    if (options.on_step) options.on_step(metrics);
    if (const std::string trouble = budget.recheck(); !trouble.empty() && options.on_trouble)
      options.on_trouble(trouble);

    if (step == done) result.first_loss = metrics.loss;
    result.last_loss = metrics.loss;
    result.steps = step + 1;
    result.skipped += metrics.skipped;
    if (scaler.is_enabled()) refuse_vanished_scale(*(result.loss_scale = scaler.get_scale()), metrics.step);
    if (!config.allow_nan && !metrics.skipped) refuse_nan(metrics);
    if (options.save && options.save_every > 0 && result.steps % options.save_every == 0)
      save(saved = result.steps);
  }
  if (options.save && result.steps > saved) save(result.steps);
  trace.finish();
  if (host) result.measured.host_bytes = host->arena().peak_bytes();
  if (recording) result.measured.recomputed = recording->totals();
  result.interrupted = result.steps < config.steps;
  if (!seconds.empty()) {
    result.measured.step_seconds = median_after_first(seconds);
    result.tokens_per_second = stepper.tokens_per_step() / result.measured.step_seconds;
  }
  return result;
}

}  // namespace snug::train
