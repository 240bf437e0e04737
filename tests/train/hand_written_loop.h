// A training loop as somebody would write it who has never seen the trainer: his own loop, optimizer and
// clipping, under a Session.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "snug/models/language_model.h"
#include "snug/optim/adamw.h"
#include "snug/optim/clip.h"
#include "snug/optim/host_parameters.h"
#include "snug/session/session.h"
#include "snug/train/config.h"
#include "snug/train/step.h"

namespace snug::train {

struct Ran {
  std::vector<double> losses;
  std::uint64_t budget_use = 0, host = 0;
};

inline Ran by_hand(const TrainConfig& config, const plan::Plan& plan, const plan::Hardware& hardware) {
  Session session({}, {.device = config.device,
                       .plan = plan,
                       .prove = false,
                       .hardware = hardware,
                       .say = [](const std::string& text) { ADD_FAILURE() << text; }});
  at::manual_seed(config.seed);
  const Account account = session.account();
  const auto share = [&](const plan::LeverKind& lever) {
    return static_cast<double>(plan.setting[lever]) / 100;
  };
  std::shared_ptr<optim::HostParameters> there;
  models::ModelOptions options{.tensors = at::TensorOptions(config.device).dtype(dtype(config.precision))};
  if (plan.setting[plan::kGradientsOnHost] > 0) {
    there = std::make_shared<optim::HostParameters>(
        config.device, account.host(),
        optim::HostShares{.weights = share(plan::kWeightsOnHost),
                          .gradients = share(plan::kGradientsOnHost)});
    options.on_part = [&](std::string_view region, const torch::nn::Module& part) {
      there->add(region, part.parameters());
    };
    options.on_write = [&](const at::Tensor& parameter, const auto& fill) { there->write(parameter, fill); };
  }
  std::shared_ptr<models::LanguageModel> model;
  {
    const auto claim = account.claim(trace::Category::Parameter);
    const at::NoGradGuard no_grad;
    model = models::make_model(config.model, options);
  }
  account.adopt(model->parameters(), trace::Category::Parameter);
  optim::AdamW optimizer(model->parameters(),
                         {.lr = config.optimizer.lr,
                          .placement = {.on_host = share(plan::kStatesOnHost),
                                        .store = account.host(),
                                        .update = update_time(at_setting(config, plan.setting)),
                                        .parameters = there,
                                        .stepped_there = share(plan::kSteppedOnHost)}});
  const io::TokenDataset data = open_data(config);
  Ran ran;
  for (std::int64_t step = 0; step < config.steps; ++step) {
    io::Batch batch = data.batch(static_cast<std::uint64_t>(step * config.batch_size), config.batch_size);
    batch = {batch.tokens.to(config.device), batch.targets.to(config.device)};
    const auto targets = static_cast<double>(batch.targets.numel());
    at::Tensor loss;
    for (const Pass& pass : session.passes(batch.tokens)) {
      const at::Tensor part = model->loss_sum(pass.of(batch.tokens), pass.of(batch.targets), 1 / targets,
                                              plan.setting[plan::kHeadChunks]);
      part.backward();
      loss = loss.defined() ? loss.add_(part.detach()) : part.detach();
    }
    const at::Tensor norm = optimizer.gradient_norm();
    optimizer.step(config.optimizer.lr, {.factor = optim::clip_factor(norm, config.optimizer.clip)});
    optimizer.zero_grad();
    ran.losses.push_back(loss.item<double>());
    session.end_step();
  }
  EXPECT_TRUE(session.is_as_planned());
  ran.budget_use = session.measured().budget_use;
  ran.host = session.measured().host_bytes;
  return ran;
}

}  // namespace snug::train
