// Any loop within one number, without a plan made before: the session watches two steps and plans by itself,
// how the batch is split included.
//
//   05_budget_alone
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <string>

#include "snug/base/bytes.h"
#include "snug/session/session.h"
#include "snug/tape/region.h"

namespace nn = torch::nn;
using snug::operator""_MiB;

struct Net : nn::Module {
  Net() {
    for (int i = 0; i < 8; ++i)
      layers.push_back(register_module("layer" + std::to_string(i), nn::Linear(256, 256)));
  }
  at::Tensor loss(at::Tensor x) {
    for (std::size_t i = 0; i < layers.size(); ++i)
      x = snug::region("layer" + std::to_string(i), [&] { return x + at::tanh(at::gelu(layers[i](x))); });
    return snug::region("loss", [&] { return x.pow(2).mean(); });
  }
  std::vector<nn::Linear> layers;
};

int main() {
  Net net;
  torch::optim::AdamW optimizer(net.parameters());
  snug::Session session(net.parameters(), {.budget_bytes = 40_MiB});
  for (int i = 0; i < 8; ++i) {
    at::manual_seed(i);
    const at::Tensor batch = at::randn({32, 64, 256});
    for (const snug::Pass& pass : session.passes(batch)) (net.loss(pass.of(batch)) * pass.share).backward();
    optimizer.step();
    optimizer.zero_grad();
    session.end_step();
  }
  std::printf("budget %s, planned %s, measured %s; %lld of 32 rows per pass\n",
              snug::format_bytes(40_MiB).c_str(), snug::format_bytes(session.predicted_bytes()).c_str(),
              snug::format_bytes(session.measured().budget_use).c_str(),
              static_cast<long long>(session.plan() ? session.plan()->setting[snug::plan::kMicroBatch] : 0));
  return session.plan() && session.measured().budget_use <= 40_MiB && session.is_as_planned() ? 0 : 1;
}
