#include "snug/train/step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/stack.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "snug/base/error.h"
#include "snug/io/training_state.h"
#include "snug/models/weights.h"
#include "snug/optim/adamw.h"
#include "snug/optim/clip.h"
#include "snug/optim/sgd.h"

namespace snug::train {

using trace::Category;

namespace {

constexpr std::int64_t kIgnoredTarget = -100;

}  // namespace

std::unique_ptr<optim::Optimizer> make_optimizer(const std::vector<at::Tensor>& parameters,
                                                 const OptimizerConfig& config,
                                                 const optim::Placement& placement) {
  if (config.kind == OptimizerKind::Sgd)
    return std::make_unique<optim::Sgd>(
        parameters, optim::SgdOptions{.lr = config.lr,
                                      .momentum = config.momentum,
                                      .weight_decay = config.weight_decay,
                                      .master = config.master.value_or(optim::Master::Split),
                                      .placement = placement});
  return std::make_unique<optim::AdamW>(
      parameters, optim::AdamWOptions{.lr = config.lr,
                                      .beta1 = config.beta1,
                                      .beta2 = config.beta2,
                                      .eps = config.eps,
                                      .weight_decay = config.weight_decay,
                                      .decay_matrices_only = config.decay_matrices_only,
                                      .master = config.master.value_or(optim::Master::Split),
                                      .placement = placement});
}

io::TokenDataset open_data(const TrainConfig& config) {
  auto data = io::TokenDataset::open(config.data, {.vocab_size = config.model.vocab_size,
                                                   .seq_len = config.seq_len,
                                                   .seed = config.seed,
                                                   .shuffle_seed = config.shuffle_seed});
  data.check_vocabulary();
  return data;
}

void check_weights(const TrainConfig& config) {
  if (config.weights.empty()) return;
  if (io::is_training_state(config.weights)) io::check_saved_model(config.weights);
  models::check_weights(config.model, config.weights);
}

namespace {

// The head may read the embedding too.
bool is_tied(const TrainConfig& config, std::string_view region) {
  return config.model.tied_embeddings && region == "embed";
}

}  // namespace

std::shared_ptr<models::LanguageModel> load_model(const TrainConfig& config, c10::Device device,
                                                  optim::HostParameters* there, zero::Sharding* sharding) {
  models::ModelOptions options{.tensors = at::TensorOptions(device).dtype(dtype(config.precision)),
                               .attention = attention_backend(config),
                               .fresh = config.weights.empty()};
  models::HomeOf home_of;
  if (there) {
    options.on_part = [&](std::string_view region, const torch::nn::Module& part) {
      there->add(region, is_tied(config, region) ? std::vector<at::Tensor>() : part.parameters());
    };
    options.on_write = [=](const at::Tensor& parameter, const auto& write) {
      there->write(parameter, write);
    };
    home_of = [=](const at::Tensor& parameter) { return models::Home{there->weight(parameter)}; };
  }
  std::vector<at::Tensor> tied;
  if (sharding) {
    options.on_part = [&](std::string_view region, const torch::nn::Module& part) {
      std::vector<at::Tensor> parameters = part.parameters();
      if (is_tied(config, region) && tied.empty()) tied = parameters;  // positions come after the words
      if (region == "head") parameters.insert(parameters.end(), tied.begin(), tied.end());
      sharding->add(region, parameters);
    };
    options.on_write = [=](const at::Tensor& parameter, const auto& write) {
      sharding->write(parameter, write);
    };
    home_of = [=](const at::Tensor& parameter) {
      const auto [tensor, begin] = sharding->home_of(parameter);
      return models::Home{tensor, begin};
    };
  }
  auto model = models::make_model(config.model, options);
  if (!config.weights.empty() && !device.is_meta()) models::load_weights(*model, config.weights, home_of);
  return model;
}

namespace {

double share(std::int64_t percent) {
  return static_cast<double>(percent) / 100;
}

plan::Streamed streamed(const TrainingSetup& setup, const TrainConfig& config) {
  plan::Streamed streamed{.bytes = setup.optimizer->host_bytes(),
                          .beside_forward = update_time(config) == optim::UpdateTime::BeforeForward,
                          .beside_backward = update_time(config) == optim::UpdateTime::InBackward};
  const optim::SteppedThere stepped = setup.optimizer->stepped_there();
  streamed.stepped = {stepped.parameters, stepped.bytes, stepped.gradient_bytes, stepped.sent_bytes,
                      stepped.fetched_bytes};
  if (setup.sharding) {
    using What = plan::Collective::What;
    streamed.ranks = config.all_ranks();
    for (const auto& [region, is_of_weights, is_in_each_pass, bytes, is_second] : setup.sharding->traffic())
      streamed.collectives.push_back(
          {region, is_of_weights ? What::Weights : What::Gradients, bytes, is_in_each_pass, is_second});
  }
  if (!setup.there) return streamed;
  streamed.bytes += setup.there->bytes();
  for (const auto& load : setup.there->loads()) {
    streamed.read_bytes += load.gradient_bytes;
    streamed.regions.push_back({load.region, load.weight_bytes, load.gradient_bytes});
  }
  return streamed;
}

}  // namespace

TrainingSetup::TrainingSetup(const TrainConfig& config, c10::Device device, const Account& account,
                             std::shared_ptr<zero::Group> group) {
  if (config.gradients_on_host > 0 || config.weights_on_host > 0)
    there = std::make_shared<optim::HostParameters>(
        device, account.host(),
        optim::HostShares{.weights = share(config.weights_on_host),
                          .gradients = share(config.gradients_on_host)},
        config.zero_stage ? optim::MovedBy::Owner : optim::MovedBy::Regions);
  {
    auto claim = account.claim(Category::Parameter);
    if (config.zero_stage)
      sharding = std::make_shared<zero::Sharding>(
          group ? std::move(group) : zero::imagined_group(config.rank, config.ranks),
          zero::ShardingOptions{.stage = *config.zero_stage, .there = there});
    model = load_model(config, device, sharding ? nullptr : there.get(), sharding.get());
  }
  account.adopt(model->parameters(), Category::Parameter);
  if (sharding) sharding->spread();
  auto claim = account.claim(Category::Optimizer);
  optimizer =
      make_optimizer(sharding ? sharding->trained() : model->parameters(), config.optimizer,
                     {.on_host = share(config.states_on_host),
                      .store = account.host(),
                      .update = update_time(config),
                      .parameters = there,
                      .stepped_there = share(config.stepped_on_host),
                      .elements = sharding ? sharding->largest_pieces() : std::vector<std::int64_t>()});
  if (sharding && update_time(config) == optim::UpdateTime::BeforeForward)
    sharding->set_before_gather(
        [updates = optimizer.get()](std::uint32_t region) { updates->finish_region(region); });
  account.streams(streamed(*this, config));
}

at::Tensor accumulate_gradients(models::LanguageModel& model, const io::Batch& batch,
                                const TrainConfig& config, double scale,
                                const std::function<void()>& before_last) {
  const std::int64_t micro_batch = config.micro_batch;
  at::Tensor total;
  for (std::int64_t first = 0; first < batch.tokens.size(0); first += micro_batch) {
    const at::Tensor loss =
        model.loss_sum(batch.tokens.narrow(0, first, micro_batch),
                       batch.targets.narrow(0, first, micro_batch), scale, config.head_chunks);
    if (before_last && first + micro_batch >= batch.tokens.size(0)) before_last();
    loss.backward();
    total = total.defined() ? total.add_(loss.detach()) : loss.detach();
  }
  return total;
}

namespace {

// What ranks know of a step, all of it at once.
void sum_over_ranks(const TrainingSetup& setup, const StepInputs& inputs, StepResult& result) {
  zero::Sharding& sharding = *setup.sharding;
  // Of this rank's pieces; the optimizer may have used some, and knows.
  const at::Tensor norm =
      (sharding.stage() == 0 ? optim::grad_norm(sharding.own_gradients()) : setup.optimizer->gradient_norm())
          .to(result.loss.device(), at::kDouble);
  const at::Tensor stops = at::full_like(norm, inputs.stops ? 1 : 0);
  const at::Tensor sums =
      sharding.sum(at::stack({result.loss.to(at::kDouble), norm * norm, stops}), "loss and gradient norm");
  result.loss = sums[0].to(at::kFloat);
  result.gradient_norm = sums[1].sqrt().to(at::kFloat);
  result.stops = sums[2].to(at::kFloat);
}

}  // namespace

StepResult run_step(TrainingSetup& setup, const StepInputs& inputs, const TrainConfig& config,
                    const Account& account) {
  StepResult result;
  account.mark("forward and backward");
  const double scale = inputs.loss_scale.value_or(1);
  const auto before_last = [&] {
    if (!inputs.on_gradients) setup.optimizer->last_pass(inputs.lr);
    if (setup.sharding) setup.sharding->last_pass();
  };
  const auto passes = [&](const io::Batch& batch) {
    return accumulate_gradients(*setup.model, batch, config, scale / static_cast<double>(inputs.target_count),
                                before_last);
  };
  result.loss = inputs.captured ? inputs.captured->run(inputs.batch, inputs.target_count, passes)
                                : passes(inputs.batch);
  account.mark("optimizer");
  if (setup.sharding) setup.sharding->finish_gradients();
  if (inputs.on_gradients) inputs.on_gradients(setup.optimizer->gradients());
  if (setup.sharding)
    sum_over_ranks(setup, inputs, result);
  else
    result.gradient_norm = setup.optimizer->gradient_norm();
  ops::UpdateControl control;
  if (inputs.loss_scale) {
    result.loss.div_(scale);
    result.gradient_norm.div_(scale);
    control.factor = at::full_like(result.gradient_norm, 1 / scale);
    // Not finite: what is not 0 less itself. (Meta has no isfinite.)
    control.skip = (result.gradient_norm - result.gradient_norm).ne(0).to(at::kFloat);
  }
  if (config.optimizer.clip > 0) {
    const at::Tensor clip = optim::clip_factor(result.gradient_norm, config.optimizer.clip);
    control.factor = control.factor ? control.factor->mul_(clip) : clip;
  }
  if (inputs.on_result) inputs.on_result(result);
  setup.optimizer->step(inputs.lr, control);
  setup.optimizer->zero_grad();  // but for those that a deferred update holds
  if (setup.sharding) {
    setup.sharding->zero_grad();
    setup.sharding->finish_update();
  }
  return result;
}

void run_meta_step(TrainingSetup& setup, const TrainConfig& config, const Account& account) {
  // The first makes gradients, the second adds to them, and the last may update with them.
  const std::int64_t kinds = update_time(config) == optim::UpdateTime::InBackward ? 3 : 2;
  const std::int64_t rows = std::min(kinds, config.accumulation()) * config.micro_batch;
  const auto tokens = [&](std::int64_t count) {
    return at::empty({count, config.seq_len}, at::TensorOptions(at::kLong).device(c10::kMeta));
  };
  io::Batch batch;
  at::Tensor rest;  // of the batch, which is there as a whole
  {
    auto claim = account.claim(Category::Input);
    batch = {tokens(rows), tokens(rows)};
    rest = tokens(2 * (config.rank_batch() - rows));
  }
  run_step(setup,
           {.batch = batch,
            .target_count = rows * config.seq_len,
            .lr = config.optimizer.lr,
            .loss_scale = first_loss_scale(config)},
           config, account);
}

std::int64_t count_targets(const at::Tensor& targets) {
  const auto count = at::ne(targets, kIgnoredTarget).sum().item<std::int64_t>();
  check(count > 0, "a batch without a single target to predict");
  return count;
}

}  // namespace snug::train
