#include "snug/train/planning.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/ops/linear_cross_entropy.h"
#include "snug/session/session.h"
#include "snug/train/captured_passes.h"
#include "snug/train/step.h"
#include "snug/train/trainer.h"

namespace snug::train {

namespace {

std::vector<std::int64_t> divisors(std::int64_t batch) {
  std::vector<std::int64_t> found;
  for (std::int64_t micro = batch; micro >= 1; --micro)
    if (batch % micro == 0) found.push_back(micro);
  return found;
}

// As usual, and in four times as many pieces where that frees something and leaves products of a size that
// hardware likes.
std::vector<std::int64_t> head_chunks(const TrainConfig& config, std::int64_t micro_batch) {
  constexpr std::int64_t kFiner = 4, kFewestRows = 512;
  constexpr std::uint64_t kWorthIt = 16_MiB;
  const std::int64_t rows = micro_batch * config.seq_len, vocabulary = config.model.vocab_size;
  const std::int64_t usual = ops::usual_pieces(rows, vocabulary, dtype(config.precision));
  const std::uint64_t piece_bytes =
      static_cast<std::uint64_t>(rows / usual * vocabulary) * c10::elementSize(dtype(config.precision));
  if (piece_bytes < kWorthIt || rows / (usual * kFiner) < kFewestRows) return {0};
  return {0, usual * kFiner};
}

// On the CPU, kernels in half precision take scratch on each thread when it comes to it: how much of it is
// there at once depends on the moment.
double scratch_share(const TrainConfig& config) {
  const bool is_unsteady =
      config.device.is_cpu() && config.precision != Precision::Fp32 && at::get_num_threads() > 1;
  return is_unsteady ? 0.015 : 0;
}

plan::Setting setting_of(const TrainConfig& config) {
  return {.levers = {{plan::kMicroBatch.name, config.micro_batch},
                     {plan::kHeadChunks.name, config.head_chunks},
                     {plan::kStatesOnHost.name, config.states_on_host},
                     {plan::kGradientsOnHost.name, config.gradients_on_host},
                     {plan::kWeightsOnHost.name, config.weights_on_host},
                     {plan::kSteppedOnHost.name, config.has_states_on_host() ? config.stepped_on_host : 0}},
          .accumulation = config.accumulation()};
}

constexpr auto kUsualUpdate = optim::UpdateTime::BeforeForward;  // of plans that name none

// Of those settings that have states on the host.
optim::UpdateTime planned_update(TrainConfig config) {
  config.states_on_host = 100;
  return update_time(config);
}

// By default only what has states on the host is updated in the backward.
constexpr std::string_view kBackwardIfThere = "backward if on the host";

std::string update_text(const TrainConfig& config) {
  const optim::UpdateTime update = planned_update(config);
  return std::string(!config.update && update == optim::UpdateTime::InBackward ? kBackwardIfThere
                                                                               : name(update));
}

// Per cent.
struct SharesOnHost {
  std::int64_t states = 0, gradients = 0, weights = 0;
};

// States first: they move once a step, gradients and weights in every pass. Where gradients are used at once
// and no pass adds to them they need no place.
std::vector<SharesOnHost> shares_on_host(const TrainConfig& config) {
  const bool has_states = config.optimizer.kind == OptimizerKind::AdamW || config.optimizer.momentum > 0 ||
                          config.precision != Precision::Fp32;
  std::vector<SharesOnHost> shares{{}};
  if (has_states) shares.insert(shares.end(), {{25}, {50}, {75}, {100}});
  const std::int64_t states = has_states ? 100 : 0;
  const int stage = config.zero_stage.value_or(3);  // of pieces, as stages 2 and 3 have them
  if (stage < 2) return shares;
  const bool has_gradients =
      config.accumulation() > 1 || planned_update(config) != optim::UpdateTime::InBackward;
  const std::int64_t gradients = has_gradients ? 100 : 0;
  if (has_gradients) shares.push_back({states, gradients});
  if (stage < 3) return shares;
  shares.insert(shares.end(), {{states, gradients, 50}, {states, gradients, 100}});
  return shares;
}

// Per cent, in fives: what the host has stepped when the rest is through.
std::int64_t balanced_steps(const TrainConfig& config, const SharesOnHost& shares,
                            const plan::Hardware& hardware) {
  if (!hardware.is_gpu) return 0;  // it is the host
  const auto element = static_cast<double>(c10::elementSize(dtype(config.precision)));
  double states = 0;  // bytes of each parameter
  if (config.optimizer.kind == OptimizerKind::AdamW) states = 2 * sizeof(float);
  if (config.optimizer.kind == OptimizerKind::Sgd && config.optimizer.momentum > 0) states = sizeof(float);
  if (master(config))
    states += *master(config) == optim::Master::Split ? sizeof(std::int16_t) : sizeof(float);
  // In and out; a gradient only in, a weight once more for the forward.
  const double bytes = 2 * states + element * static_cast<double>(shares.gradients) / 100 +
                       3 * element * static_cast<double>(shares.weights) / 100;
  return 5 * std::llround(20 * plan::balanced_share(bytes, plan::links_of(hardware)));
}

// Less of what moves most, but more than the next of shares_on_host() has. None of these is refined again.
std::vector<plan::Setting> finer_shares(const plan::Setting& setting) {
  const auto with = [&](const plan::LeverKind& kind, std::initializer_list<std::int64_t> less) {
    constexpr std::int64_t kOfThose = 25;
    std::vector<plan::Setting> settings;
    if (setting[kind] % kOfThose != 0) return settings;
    for (const std::int64_t by : less) {
      if (by >= setting[kind]) break;  // it was cut to what the host holds
      settings.push_back(setting);
      settings.back().levers[kind.name] = setting[kind] - by;
    }
    return settings;
  };
  if (setting[plan::kWeightsOnHost] > 0) return with(plan::kWeightsOnHost, {12, 24, 37});
  if (setting[plan::kGradientsOnHost] > 0) return with(plan::kGradientsOnHost, {24, 49, 74});
  if (setting[plan::kStatesOnHost] > 0) return with(plan::kStatesOnHost, {5, 10, 15, 20});
  return {};
}

}  // namespace

TrainConfig at_setting(TrainConfig config, const plan::Setting& setting) {
  config.micro_batch = setting[plan::kMicroBatch];
  config.head_chunks = setting[plan::kHeadChunks];
  config.states_on_host = setting[plan::kStatesOnHost];
  config.gradients_on_host = setting[plan::kGradientsOnHost];
  config.weights_on_host = setting[plan::kWeightsOnHost];
  config.stepped_on_host = setting[plan::kSteppedOnHost];
  return config;
}

Step make_step(const TrainConfig& config, const std::vector<std::int64_t>& micro_batches,
               const plan::Hardware* stepping) {
  Step step{.device = config.device,
            .identity = {{"model", config.model_name},
                         {"architecture", models::to_json(config.model)},
                         {"batch_size", config.batch_size},
                         {"seq_len", config.seq_len},
                         {"precision", name(config.precision)},
                         {"optimizer", name(config.optimizer.kind)},
                         {"master", master(config) ? Json(name(*master(config))) : Json(nullptr)},
                         {"momentum", config.optimizer.momentum},
                         {"allow_quadratic", config.allow_quadratic}},
            .scratch_share = scratch_share(config)};
  if (may_be_captured(config))
    step.graph_bytes = [](const plan::Setting& setting) {
      constexpr std::uint64_t kMaybeOff = 16_MiB;  // what else was predicted
      return CapturedPasses::bytes(setting.accumulation) + kMaybeOff;
    };
  if (const std::string update = update_text(config); update != name(kUsualUpdate))
    step.identity["update"] = update;
  if (config.zero_stage) {
    step.identity["ranks"] = config.ranks;
    step.identity["zero_stage"] = *config.zero_stage;
  }
  for (const std::int64_t micro : micro_batches.empty() ? divisors(config.rank_batch()) : micro_batches)
    for (const std::int64_t chunks : head_chunks(config, micro)) {
      TrainConfig shape = config;
      shape.micro_batch = micro;
      shape.head_chunks = chunks;
      for (const SharesOnHost& shares : shares_on_host(shape)) {
        // Who is that short of memory takes the finest.
        if (shares.gradients + shares.weights > 0 && chunks != head_chunks(config, micro).back()) continue;
        shape.states_on_host = shares.states;
        shape.gradients_on_host = shares.gradients;
        shape.weights_on_host = shares.weights;
        if (stepping) shape.stepped_on_host = balanced_steps(shape, shares, *stepping);
        step.settings.push_back(setting_of(shape));
      }
      if (!stepping) continue;
      // What the host steps takes room there that values could have.
      step.settings.push_back(step.settings.back());
      step.settings.back().levers[plan::kSteppedOnHost.name] = 0;
    }
  step.finer = finer_shares;
  step.on_meta = [config](const Account& account, const plan::Setting& setting) -> std::function<void()> {
    TrainConfig shape = at_setting(config, setting);
    shape.rank = 0;  // no other has larger pieces: all ranks have one plan
    const auto setup = std::make_shared<TrainingSetup>(shape, c10::kMeta, account);
    return [=] { run_meta_step(*setup, shape, account); };
  };
  return step;
}

namespace {

// As the plan says; none: by default.
std::optional<optim::UpdateTime> update_of(const plan::Plan& plan) {
  const auto update = plan.step.find("update");
  if (update == plan.step.end() || !update->is_string()) return kUsualUpdate;
  if (*update == kBackwardIfThere) return std::nullopt;
  return parse_update(update->get<std::string>());
}

}  // namespace

void take(plan::Plan plan, TrainConfig& config) {
  config = at_setting(std::move(config), plan.setting);
  config.update = update_of(plan);
  config.update = update_time(config);
  config.budget_bytes = plan.budget_bytes > 0 ? std::optional(plan.budget_bytes) : std::nullopt;
  config.plan = std::move(plan);
}

void check_plan(const plan::Plan& plan, const TrainConfig& given) {
  TrainConfig config = given;
  config.update = update_of(plan);
  const auto said = plan.step.find("update");
  std::string planned(name(kUsualUpdate));
  if (said != plan.step.end() && said->is_string()) planned = said->get<std::string>();
  check(planned == update_text(config), "the plan is for another step: update \"", planned, "\", here \"",
        update_text(config),
        "\"; gradients that are clipped or scaled are used when all of them are there: see `clip` and "
        "`precision`");
  const Step step = make_step(config);
  check_identity(plan, step);
  const std::int64_t micro = plan.setting[plan::kMicroBatch], passes = plan.setting.accumulation;
  check(micro > 0 && config.rank_batch() % micro == 0 && config.rank_batch() / micro == passes,
        "the plan's micro_batch ", micro, " times its accumulation ", passes, " is not ",
        config.ranks == 1 ? "" : "a rank's part of ", "`batch_size` ", config.batch_size);
  snug::check_plan(plan, step);
}

Prediction predict(const TrainConfig& config, const PredictOptions& options) {
  return snug::predict(make_step(config), setting_of(config), treatment(config), options);
}

Tuned tune(const TrainConfig& config, std::uint64_t budget_bytes, const PredictOptions& options) {
  Step step = make_step(config);
  step.settings.clear();
  TrainConfig shape = config;
  for (const std::int64_t micro : divisors(config.rank_batch())) {
    shape.micro_batch = micro;
    step.settings.push_back(setting_of(shape));
  }
  return snug::tune(step, budget_bytes, treatment(config), options);
}

Verified verify(const TrainConfig& config) {
  validate(config);
  const io::TokenDataset data = open_data(config);
  const Deterministic deterministic(config.device);
  Session session({}, {.device = config.device, .by_hand = ByHand{}});
  at::manual_seed(config.seed);
  const auto model = load_model(config, config.device);
  const io::Batch host = data.batch(0, config.batch_size);
  const io::Batch batch{host.tokens.to(config.device), host.targets.to(config.device)};
  const double scale =
      first_loss_scale(config).value_or(1) / static_cast<double>(count_targets(batch.targets));
  const auto backward = [&](const TrainConfig& shape) {
    return [&, shape] { accumulate_gradients(*model, batch, shape, scale); };
  };
  TrainConfig whole = at_setting(config, make_step(config).settings.front());
  whole.plan.reset();
  VerifyOptions options{.device = config.device,
                        .parameters = model->parameters(),
                        .backward = backward(config),
                        .micro_batches = config.accumulation()};
  if (config.accumulation() > 1 && may_fit_here(predict(whole))) options.unsplit_backward = backward(whole);
  return snug::verify(treatment(config), options);
}

TrainConfig without_meaning(TrainConfig config, std::int64_t steps) {
  config.steps = steps;
  config.optimizer.warmup = 0;
  config.weights.clear();
  config.data = "synthetic";
  config.shuffle_seed.reset();
  config.allow_nan = true;
  return config;
}

std::vector<plan::MeasuredOperator> time_operators(const TrainConfig& config, std::int64_t warm_up) {
  const TrainConfig few = without_meaning(config, warm_up + 1);
  return machine::time_operators(config.device, [&](const std::function<void()>& after_step) {
    train(few, {.on_step = [&](const StepMetrics&) { after_step(); }});
  });
}

plan::MeasuredCosts measure_costs(const TrainConfig& config, const plan::Hardware& hardware) {
  plan::MeasuredCosts costs(hardware);
  for (const auto& [work, seconds] : time_operators(config)) costs.add(work, seconds);
  return costs;
}

machine::RunSteps probe_steps(const models::ModelConfig& model, c10::Device device) {
  constexpr std::int64_t kLayers = 2;
  return [=](const machine::ProbeSteps& steps) {
    TrainConfig config;
    config.model_name = "probe";
    config.model = model;
    config.model.num_layers = std::min(model.num_layers, kLayers);
    config.device = device;
    config.precision = Precision::Bf16;
    config.micro_batch = steps.sequences;
    config.batch_size = steps.step_tokens / steps.tokens;
    config.seq_len = steps.tokens;
    config.steps = steps.steps;
    train(config, {.on_step = [&](const StepMetrics&) { steps.after_step(); }});
  };
}

}  // namespace snug::train
