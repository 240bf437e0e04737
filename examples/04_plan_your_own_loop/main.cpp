// Your own module, your own loop, your own optimizer, in half the memory: a dozen lines know of snug.
//
//   04_plan_your_own_loop
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "snug/base/bytes.h"
#include "snug/capture/capture.h"
#include "snug/session/plan_step.h"
#include "snug/session/session.h"
#include "snug/tape/region.h"

namespace nn = torch::nn;

// A residual stack such as anyone would write; snug::region names its layers.
struct NetImpl : nn::Module {
  NetImpl() {
    for (int i = 0; i < 6; ++i) {
      norms.push_back(
          register_module("norm" + std::to_string(i), nn::LayerNorm(nn::LayerNormOptions({128}))));
      up.push_back(register_module("up" + std::to_string(i), nn::Linear(128, 512)));
      down.push_back(register_module("down" + std::to_string(i), nn::Linear(512, 128)));
    }
  }
  at::Tensor loss(at::Tensor x) {
    for (std::size_t i = 0; i < up.size(); ++i)
      x = snug::region("layer" + std::to_string(i),
                       [&] { return x + down[i](at::gelu(up[i](norms[i](x)))); });
    return snug::region("loss", [&] { return x.pow(2).mean(); });
  }
  std::vector<nn::LayerNorm> norms;
  std::vector<nn::Linear> up, down;
};
TORCH_MODULE(Net);

void step(Net& net, torch::optim::AdamW& optimizer, const at::Tensor& batch) {
  net->loss(batch).backward();
  optimizer.step();
  optimizer.zero_grad();
}

// On Meta nothing is computed and nothing allocated: this only shows snug what a step does.
snug::Step step_on_meta() {
  return {.on_meta = [](const snug::Account&, const snug::plan::Setting&) -> std::function<void()> {
    Net net = snug::capture::on_meta([] { return Net(); });
    auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters());
    return [=]() mutable { step(net, *optimizer, at::empty({4096, 128}, c10::kMeta)); };
  }};
}

int main() {
  const std::uint64_t plain =
      snug::plan_step(step_on_meta(), {.budget_bytes = 8ull << 30}).plan.plain.peak_bytes;
  const std::uint64_t budget = plain / 2;
  const snug::PlannedStep planned = snug::plan_step(step_on_meta(), {.budget_bytes = budget});

  Net net;
  torch::optim::AdamW optimizer(net->parameters());
  snug::Session session(net->parameters(), {.plan = planned.plan});
  for (int i = 0; i < 5; ++i) {
    at::manual_seed(i);
    step(net, optimizer, at::randn({4096, 128}));
    session.end_step();
  }

  const std::uint64_t measured = session.measured().budget_use;
  std::printf("plain %s, budget %s, planned %s, measured %s, %.2fx the time predicted\n",
              snug::format_bytes(plain).c_str(), snug::format_bytes(budget).c_str(),
              snug::format_bytes(session.predicted_bytes()).c_str(), snug::format_bytes(measured).c_str(),
              planned.plan.predicted.step_seconds / planned.plan.plain.step_seconds);
  return measured <= budget && session.is_as_planned() && session.plans_made() == 0 ? 0 : 1;
}
