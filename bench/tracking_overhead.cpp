// What does it cost to watch a training step? The same step with the tracker on and off, in turns, in one
// process.
//
//   build/bin/tracking_overhead cpu              Llama-like, hidden 256, 8 layers
//   build/bin/tracking_overhead cuda             1.26B parameters, 1 x 4096 tokens
//   build/bin/tracking_overhead cuda small       hidden 1024, 8 x 1024 tokens: bound by the host, so the
//   worst case
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "snug/capture/capture.h"
#include "snug/memory/tracker.h"
#include "snug/models/llama.h"
#include "snug/optim/adamw.h"

namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

struct Problem {
  snug::models::ModelConfig config;
  at::Device device;
  at::ScalarType dtype;
  std::int64_t batch, tokens;
};

Problem problem(bool cuda, bool small) {
  if (!cuda) return {snug::models::load_config("tiny"), at::kCPU, at::kFloat, 4, 256};
  if (!small) return {snug::models::load_config("llama-1.3b"), {at::kCUDA, 0}, at::kBFloat16, 1, 4096};
  auto config = snug::models::load_config("tiny");
  config.hidden_size = 1024;
  config.intermediate_size = 2816;
  config.num_heads = config.num_kv_heads = 16;
  config.head_dim = 64;
  return {config, {at::kCUDA, 0}, at::kBFloat16, 8, 1024};
}

int main(int argc, char** argv) {
  const bool cuda = argc > 1 && std::string(argv[1]) == "cuda";
  const auto [config, device, dtype, batch, tokens] = problem(cuda, argc > 2);
  snug::models::Llama model(config, at::TensorOptions(device).dtype(dtype));
  snug::optim::AdamW optimizer(model->parameters());
  const at::Tensor input =
      at::randint(config.vocab_size, {batch, tokens}, at::TensorOptions(at::kLong).device(device));

  auto step = [&, count = static_cast<double>(input.numel())] {
    at::Tensor loss = model->loss_sum(input, input) / count;
    loss.backward();
    optimizer.step(1e-4);
    optimizer.zero_grad();
    return loss.item<float>();  // waits for the device
  };
  auto seconds = [&, device = device](bool watched) {
    std::optional<snug::memory::Tracker> tracker;
    if (watched) tracker.emplace(snug::memory::TrackerOptions{.device = device});
    step();
    const auto start = Clock::now();
    for (int i = 0; i < 3; ++i) {
      step();
      if (tracker) tracker->peak_bytes();  // as a trainer does: everything seen is accounted for
    }
    return std::chrono::duration<double>(Clock::now() - start).count() / 3;
  };

  const auto captured = snug::capture::capture(device, [&](snug::memory::Tracker&) { step(); });
  for (int i = 0; i < 3; ++i) step();
  std::vector<double> off, on, ratio;
  for (int round = 0; round < 15; ++round) {
    off.push_back(seconds(false));
    on.push_back(seconds(true));
    ratio.push_back(on.back() / off.back());
  }
  std::printf("%s, hidden %ld, %ld layers, %ld x %ld tokens, %lu operators per step\n", device.str().c_str(),
              config.hidden_size, config.num_layers, batch, tokens, captured.operators);
  std::printf("off %.3f ms, on %.3f ms, ratio of medians %.4f, median ratio %.4f\n", 1e3 * median(off),
              1e3 * median(on), median(on) / median(off), median(ratio));
}
