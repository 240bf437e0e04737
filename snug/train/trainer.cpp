#include "snug/train/trainer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/io/checksum.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/prepare.h"
#include "snug/machine/products.h"
#include "snug/models/weights.h"
#include "snug/plan/hardware.h"
#include "snug/precision/grad_scaler.h"
#include "snug/session/session.h"
#include "snug/train/planning.h"
#include "snug/train/saved_run.h"
#include "snug/train/step.h"
#include "snug/zero/join.h"

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

// So that the same plan computes the same bits again.
void note_products(plan::Plan& plan, const RunDirectory& directory) {
  if (machine::write_down_products(plan.products)) plan::save_plan(plan, directory.plan_path());
}

// A scale below 1 would make overflow of what is computed, not of what is scaled: no scale helps then.
void refuse_vanished_scale(double scale, std::int64_t step) {
  if (scale >= 1) return;
  throw RunError(concat("the loss scale fell below 1 at step ", step,
                        ": the model itself overflows in fp16; use `precision` bf16 or a smaller `lr`"));
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
          ? ", before anything was updated: the weights are not finite, or too large for this `precision`"
          : ": try a smaller `lr` or a longer `warmup`",
      "; `allow_nan` to go on"));
}

double median_after_first(std::vector<double> seconds) {
  if (seconds.size() > 1) seconds.erase(seconds.begin());
  std::ranges::nth_element(seconds, seconds.begin() + seconds.size() / 2);
  return seconds[seconds.size() / 2];
}

// A step's numbers, to the host while its update is under way.
class Readback {
 public:
  explicit Readback(c10::Device device) {
    if (!device.is_cuda()) return;
    const auto number = [] { return at::empty({}, at::TensorOptions(at::kFloat).pinned_memory(true)); };
    host_ = {number(), number(), number()};
    done_.emplace(device.type());
  }

  void begin(const StepResult& result) {
    has_stops_ = result.stops.defined();
    if (!done_) {
      host_ = result;
      return;
    }
    host_.loss.copy_(result.loss, /*non_blocking=*/true);
    host_.gradient_norm.copy_(result.gradient_norm, /*non_blocking=*/true);
    if (has_stops_) host_.stops.copy_(result.stops, /*non_blocking=*/true);
    done_->record(c10::impl::VirtualGuardImpl(done_->device_type()).getStream(result.loss.device()));
  }

  struct Numbers {
    double loss, gradient_norm;
    bool stops;
  };
  // Whether the device had nothing to do any more before it was asked for them.
  bool waited_for_host() const { return done_ && done_->query(); }
  Numbers finish() {
    if (done_) done_->synchronize();
    const Numbers numbers{host_.loss.item<double>(), host_.gradient_norm.item<double>(),
                          has_stops_ && host_.stops.item<double>() > 0};
    if (!done_) host_ = {};
    return numbers;
  }

 private:
  StepResult host_;  // on the CPU the step's own
  bool has_stops_ = false;
  std::optional<c10::Event> done_;
};

// Takes the steps of a run, one after the other, on what it was given.
class Stepper {
 public:
  Stepper(const TrainConfig& config, const TrainOptions& options, const io::TokenDataset& data,
          TrainingSetup& setup, GradScaler& scaler, Session& session)
      : config_(config), options_(options), data_(data), setup_(setup), scaler_(scaler), session_(session) {
    const bool moves = config.plan && config.plan->predicted.host_bytes > 0;
    if (!moves && may_be_captured(config))
      captured_.emplace(setup.optimizer->parameters(),
                        [this](const std::string& why) { tell_not_captured(why); });
  }

  // `step` counts from 0. What it measured, but for memory.
  StepMetrics take(std::int64_t step) {
    const auto start = std::chrono::steady_clock::now();
    session_.account().mark("step " + std::to_string(step + 1));
    StepMetrics metrics{.step = step + 1, .lr = optim::learning_rate(schedule_, step)};
    session_.run([&] { run(metrics); });
    if (captured_ && captured_->may_become_graph())
      captured_->note_step(readback_.waited_for_host() && is_worth_a_graph(metrics.step));
    const Readback::Numbers numbers = readback_.finish();
    metrics.loss = numbers.loss;
    metrics.gradient_norm = numbers.gradient_norm;
    if (config_.zero_stage) stops_ = numbers.stops;
    metrics.seconds = seconds_since(start);
    metrics.tokens_per_second = tokens_per_step() / metrics.seconds;
    if (scaler_.is_enabled()) update_scale(metrics);
    return metrics;
  }
  // Whether this step was the last one that somebody wants: on all ranks the same.
  bool stops() const { return config_.zero_stage ? stops_ : wants_to_stop(); }
  bool was_graph() const { return captured_ && captured_->was_launched_again(); }
  std::int64_t graphs() const { return captured_ ? captured_->graphs() : 0; }
  std::int64_t graph_steps() const { return captured_ ? captured_->steps() : 0; }
  double tokens_per_step() const { return static_cast<double>(config_.batch_size * config_.seq_len); }

 private:
  void run(const StepMetrics& metrics) {
    const auto [batch, target_count] = load_batch(metrics.step - 1);
    StepInputs inputs{.batch = batch,
                      .target_count = target_count,
                      .lr = metrics.lr,
                      .stops = wants_to_stop(),
                      .loss_scale = scaler_.is_enabled() ? std::optional(scaler_.get_scale()) : std::nullopt};
    if (options_.on_gradients)
      inputs.on_gradients = [&](const auto& gradients) { options_.on_gradients(metrics.step, gradients); };
    if (captured_) inputs.captured = &*captured_;
    inputs.on_result = [&](const StepResult& result) { readback_.begin(result); };
    run_step(setup_, inputs, config_, session_.account());
  }

  void tell_not_captured(const std::string& why) {
    session_.forget_attempt();
    if (!options_.on_trouble) return;
    options_.on_trouble(
        concat("a step's kernels are launched one by one, which takes the host longer than the GPU "
               "needs to run them: they cannot be captured as a CUDA graph: ",
               why));
  }

  // What is traced is launched one by one, and so is what a session still learns from.
  bool is_worth_a_graph(std::int64_t step) const {
    return (options_.trace.empty() || step >= options_.traced_steps) &&
           (!session_.plan() || session_.is_as_planned()) &&
           session_.has_room_for(CapturedPasses::bytes(config_.accumulation()));
  }
  bool wants_to_stop() const { return options_.stop && *options_.stop; }

  // This rank's part, with the number of targets of all.
  std::pair<io::Batch, std::int64_t> load_batch(std::int64_t step) {
    const auto mine = [&](const at::Tensor& whole) {
      if (config_.ranks == 1) return whole.to(config_.device);
      const std::int64_t rows = config_.rank_batch();
      return whole.narrow(0, config_.rank * rows, rows).to(config_.device, whole.scalar_type(), false, true);
    };
    io::Batch all, batch;
    {
      auto claim = session_.account().claim(trace::Category::Input);
      all = data_.batch(static_cast<std::uint64_t>(step * config_.batch_size), config_.batch_size);
      batch = {mine(all.tokens), mine(all.targets)};
    }
    return {std::move(batch), count_targets(all.targets)};
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
  Session& session_;
  Readback readback_{config_.device};
  std::optional<CapturedPasses> captured_;  // none: steps are never captured
  bool stops_ = false;
  const optim::Schedule schedule_{.kind = config_.optimizer.schedule,
                                  .lr = config_.optimizer.lr,
                                  .warmup = config_.optimizer.warmup,
                                  .total = config_.steps};
};

// What a run begins with, or goes on from.
struct Beginning {
  TrainConfig config;  // with the weights of `state`
  io::TokenDataset data;
  Json facts;
  std::optional<RunDirectory> directory;
  std::optional<io::SavedState> state;
  std::int64_t done = 0;  // steps
};

// What ranks that train one model must agree on, and whoever starts them may get wrong.
void check_same_on_all(const TrainConfig& config, const TrainOptions& options, const io::TokenDataset& data,
                       zero::Group& group) {
  Json facts = to_json(config);
  facts.erase("model");  // a path; what counts is the architecture
  facts["device"] = c10::DeviceTypeName(config.device.type(), /*lower_case=*/true);
  facts["data"] = data.identity();
  facts["torch"] = TORCH_VERSION;
  facts["plan"] = config.plan ? Json(io::checksum_of(plan::to_json(*config.plan).dump())) : Json(nullptr);
  facts["save"] = options.save;
  facts["save_every"] = options.save_every;
  facts["keep_last"] = options.keep_last;
  facts["resume"] = options.resume;
  zero::check_agree(group, facts);
}

// Where they go on from, which they read from a folder that may not be the same one for all.
void check_same_state(const std::optional<io::SavedState>& state, zero::Group& group) {
  zero::check_agree(group,
                    {{"saved state", state ? Json(io::checksum_of(state->facts().dump())) : Json(nullptr)},
                     {"saved step", state ? Json(step_of(*state)) : Json(nullptr)}});
}

// They save together: better known before the first step than after the last.
void check_sees_folder(const TrainOptions& options, zero::Group& group) {
  if (options.out_dir.empty()) return;
  group.exchange("", "run directory");  // rank 0 made it
  std::error_code ignored;
  check(std::filesystem::exists(options.out_dir / "config.json", ignored), options.out_dir.string(),
        ", which rank 0 made, is not there for rank ", group.rank(),
        ": ranks save together into a folder that all of them see");
}

// Nothing is written yet.
Beginning begin(const TrainConfig& config, const TrainOptions& options) {
  validate(config);
  check(config.ranks == (options.group ? options.group->size() : 1) &&
            config.rank == (options.group ? options.group->rank() : 0),
        "rank ", config.rank, " of ", config.ranks, " needs a group of these ranks");
  Beginning run{.config = config, .data = open_data(config)};
  if (options.group) check_same_on_all(config, options, run.data, *options.group);
  if (options.save || options.resume) run.facts = run_facts(config, run.data);
  if (!options.resume) return run;
  if (config.rank == 0) {
    run.directory.emplace(options.out_dir);
    io::remove_unfinished_states(options.out_dir);  // also of a run that is done
  }
  run.state = last_state(options.out_dir, run.facts, config.rank, config.ranks);
  if (options.group) check_same_state(run.state, *options.group);
  if (!run.state && run.directory) run.directory->check_no_steps();
  if (run.state) run.done = step_of(*run.state);
  return run;
}

void find_weights(Beginning& run, const TrainOptions& options) {
  const auto say = [&](const std::string& text) {
    if (!text.empty() && options.on_trouble && run.config.rank == 0) options.on_trouble(text);
  };
  if (!run.state) {
    if (options.resume) say(concat("no saved state in ", options.out_dir.string(), ": starting at step 1"));
    return check_weights(run.config);
  }
  say(other_split(*run.state, run.config));
  run.config.weights = run.state->folder();  // its checksums were right
  models::check_weights(run.config.model, run.config.weights);
}

void make_directory(Beginning& run, const TrainConfig& given, const TrainOptions& options) {
  if (options.resume || options.out_dir.empty() || given.rank != 0) return;
  run.directory.emplace(options.out_dir, to_json(given));
  leave_plan(run.config, run.directory->plan_path(), /*is_new=*/true);
}

// When all is there that the next step needs: a resume that fails before leaves the run as it was, with the
// budgets that it had.
void go_on_in_directory(Beginning& run, const TrainConfig& given, const TrainOptions& options) {
  if (!options.resume || given.rank != 0) return;
  run.directory->go_on_after(run.done, to_json(given));
  leave_plan(run.config, run.directory->plan_path(), /*is_new=*/false);
}

SessionOptions session_options(const TrainConfig& config, const TrainOptions& options,
                               const Prediction& predicted) {
  SessionOptions session{.device = config.device,
                         .plan = config.plan,
                         .budget_bytes = config.budget_bytes,
                         .host_budget_bytes = config.host_bytes(),
                         .predicted = predicted,
                         .prove = false,  // every write in our models is an operator's
                         .say = options.on_trouble ? options.on_trouble : [](const std::string&) {},
                         .trace = {.path = options.trace,
                                   .steps = options.traced_steps,
                                   .tapes = options.tapes,
                                   .about = to_json(config)}};
  if (!config.plan) session.by_hand = treatment(config).by_hand;
  return session;
}

std::unique_ptr<Session> open_session(const TrainConfig& config, const TrainOptions& options,
                                      const Prediction& predicted) {
  check(predicted.streamed_bytes > 0 || config.states_on_host == 0 || config.plan, "`states_on_host` ",
        config.states_on_host,
        "% moves nothing: it is less than the smallest of those that are not small, or the optimizer has no "
        "states");
  for (const auto& [what, share] : {std::pair("gradients_on_host", config.gradients_on_host),
                                    std::pair("weights_on_host", config.weights_on_host)})
    check(predicted.streamed_bytes > 0 || share == 0 || config.plan, "`", what, "` ", share,
          "% moves nothing: it is less than one block, or all of them are small");
  check(predicted.host_bytes > predicted.streamed_bytes || !config.offload, "`offload` ",
        config.offload ? to_string(*config.offload) : "",
        " moves nothing: it is less than the smallest value, or `recompute` leaves nothing");
  return std::make_unique<Session>(at::TensorList(), session_options(config, options, predicted));
}

// As PredictOptions has it. A plan says what it counts on; without one it is what was probed here, or the
// usual, and what it takes to be connected.
std::uint64_t unplanned_outside(const TrainConfig& config, const zero::Group* group) {
  if (config.plan || !config.device.is_cuda()) return 0;
  std::uint64_t probed = 0;
  try {
    probed = machine::hardware_here(config.device).hardware.outside_bytes;
  } catch (const Error&) {  // a damaged file is named where something depends on it
  }
  return plan::outside_or_usual(probed) + (group ? group->device_bytes() : 0);
}

}  // namespace

void check_run(const TrainConfig& config, const TrainOptions& options) {
  Beginning run = begin(config, options);
  find_weights(run, {.resume = options.resume});
  if (!options.resume && !options.out_dir.empty()) RunDirectory::check_free(options.out_dir);
}

TrainResult train(const TrainConfig& given, const TrainOptions& options) {
  Beginning run = begin(given, options);
  const TrainConfig& config = run.config;
  TrainResult result{.steps = run.done, .resumed = run.done, .budget_bytes = config.budget_bytes};
  if (run.done >= config.steps) return result;
  find_weights(run, options);
  machine::prepare(config.device);
  std::optional<RunSaver> saver;
  if (options.save) saver.emplace(options.out_dir, config, run.facts, options.keep_last);
  result.predicted = predict(config, {.device_bytes = machine::memory_bytes(config.device),
                                      .outside_bytes = unplanned_outside(config, options.group.get())});
  // On the host, where the norm is read anyway; made before the session, for which it does not count.
  GradScaler scaler(at::kCPU,
                    {.init_scale = config.loss_scale, .enabled = config.precision == Precision::Fp16});
  make_directory(run, given, options);
  if (options.group) check_sees_folder(options, *options.group);
  const auto session = open_session(config, options, result.predicted);
  if (options.group) machine::race_products(false);  // each rank has a clock of its own
  if (options.on_prediction) options.on_prediction(result.predicted);
  at::manual_seed(config.seed);
  auto setup = session->run([&] {
    const at::NoGradGuard no_grad;  // nothing of it is part of a step
    return TrainingSetup(config, config.device, session->account(), options.group);
  });
  if (run.state) restore(*run.state, setup, scaler);
  run.state.reset();                                                  // and its files with it
  if (options.group) options.group->exchange("", "restored states");  // all could read what they need
  go_on_in_directory(run, given, options);
  std::int64_t saved = run.done;
  const auto begin_save = [&] {
    if (run.directory) run.directory->sync();
    const std::string slow =
        saver->begin_save(saved = result.steps, setup, scaler, session->spare_host_bytes());
    if (!slow.empty() && options.on_trouble) options.on_trouble(slow);
  };

  Stepper stepper(config, options, run.data, setup, scaler, *session);
  std::vector<double> seconds;
  std::int64_t graphs = 0;
  while (result.steps < config.steps && !stepper.stops()) {
    StepMetrics metrics = stepper.take(result.steps);
    session->end_step(stepper.was_graph());
    metrics.peak_bytes = session->last_peak_bytes();
    if (std::exchange(graphs, stepper.graphs()) != stepper.graphs())
      seconds.clear();  // of steps that were launched one by one
    seconds.push_back(metrics.seconds);
    if (run.directory) run.directory->append(metrics);
    if (run.directory && run.config.plan) note_products(*run.config.plan, *run.directory);
    if (options.on_step) options.on_step(metrics);

    if (!result.first_loss) result.first_loss = metrics.loss;
    result.last_loss = metrics.loss;
    ++result.steps;
    result.skipped += metrics.skipped;
    if (scaler.is_enabled()) refuse_vanished_scale(*(result.loss_scale = scaler.get_scale()), metrics.step);
    if (!config.allow_nan && !metrics.skipped) refuse_nan(metrics);
    if (saver) saver->check_written();
    if (options.save_every > 0 && result.steps % options.save_every == 0 && saver &&
        result.steps < config.steps)
      begin_save();
  }
  if (saver && result.steps > saved) {
    if (run.directory) run.directory->sync();
    saver->save(result.steps, setup, scaler);
  }
  if (saver) result.state = saver->finish();
  session->end_trace();
  static_cast<snug::Measured&>(result.measured) = session->measured();
  result.interrupted = result.steps < config.steps;
  result.graph_steps = stepper.graph_steps();
  result.graphs = stepper.graphs();
  if (!seconds.empty()) {
    result.measured.step_seconds = median_after_first(seconds);
    result.tokens_per_second = stepper.tokens_per_step() / result.measured.step_seconds;
  }
  return result;
}

}  // namespace snug::train
