// Several processes train one model: what ranks add to the loop of 05_budget_alone is marked. By itself it is
// one rank.
//
//   torchrun --no-python --nproc-per-node 2 07_ranks 2            the ZeRO stage: 0, 1, 2 or 3
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "snug/base/bytes.h"
#include "snug/session/session.h"
#include "snug/tape/region.h"
#include "snug/zero/join.h"
#include "snug/zero/sharding.h"

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

int run(int stage) {
  at::set_num_threads(1);
  at::manual_seed(0);
  Net net;
  const snug::zero::Place place = snug::zero::place_from_environment().value_or(snug::zero::Place());
  const auto group = snug::zero::join(place, at::kCPU);          // ranks
  const auto sharding = std::make_shared<snug::zero::Sharding>(  // ranks
      group, snug::zero::ShardingOptions{.stage = stage});       // ranks
  for (const auto& layer : net.named_children()) sharding->add(layer.key(), layer.value()->parameters());
  torch::optim::AdamW optimizer(sharding->trained());  // not net.parameters()
  snug::Session session(net.parameters(), {.budget_bytes = 40_MiB, .sharding = sharding});  // ranks
  const std::int64_t rows = 32 / place.size;
  double last = 0;
  for (int i = 0; i < 8; ++i) {
    at::manual_seed(i);
    const at::Tensor batch = at::randn({32, 64, 256}).narrow(0, place.rank * rows, rows).clone();
    at::Tensor loss = at::zeros({1});
    for (const snug::Pass& pass : session.passes(batch)) {
      const at::Tensor part = net.loss(pass.of(batch)) * pass.share;
      part.backward();
      loss += part.detach();
    }
    session.step(optimizer);  // sums and gathers
    optimizer.zero_grad();
    session.end_step();
    last = sharding->sum(loss, "loss")[0].item<double>();
  }
  const std::size_t peak = session.measured().budget_use;
  if (place.rank == 0)
    std::printf("%d ranks, stage %d: loss %.9g, measured %s of %s\n", place.size, stage, last,
                snug::format_bytes(peak).c_str(), snug::format_bytes(40_MiB).c_str());
  return peak <= 40_MiB ? 0 : 1;
}

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? std::atoi(argv[1]) : 3);
  } catch (const snug::zero::RankFailure& failure) {
    if (failure.is_to_be_said()) std::fprintf(stderr, "%s\n", failure.what());
    return 3;
  }
}
