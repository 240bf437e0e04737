// What does it cost to watch a training step? The same step with the tracker on and off, in turns, in one
// process.
//
//   build/bin/tracking_overhead            Llama-like, hidden 256, on the CPU
//   build/bin/tracking_overhead cuda       the same, hidden 1024, on the first GPU
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

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

int main(int argc, char** argv) {
  const bool cuda = argc > 1 && std::string(argv[1]) == "cuda";
  const at::Device device(cuda ? at::kCUDA : at::kCPU);
  auto config = snug::models::load_config("tiny");
  if (cuda) {
    config.hidden_size = 1024;
    config.intermediate_size = 2816;
    config.num_heads = config.num_kv_heads = 16;
    config.head_dim = 64;
  }
  const auto dtype = cuda ? at::kBFloat16 : at::kFloat;
  snug::models::Llama model(config, at::TensorOptions(device).dtype(dtype));
  snug::optim::AdamW optimizer(model->parameters());
  const auto longs = at::TensorOptions(at::kLong).device(device);
  const std::int64_t batch = cuda ? 8 : 2, tokens = cuda ? 1024 : 128;
  const at::Tensor input = at::randint(config.vocab_size, {batch, tokens}, longs);

  auto step = [&] {
    (model->loss_sum(input, input) / static_cast<double>(input.numel())).backward();
    optimizer.step(1e-4);
    optimizer.zero_grad();
    if (cuda) torch::cuda::synchronize();
  };
  auto seconds = [&](bool watched) {
    std::optional<snug::memory::Tracker> tracker;
    if (watched)
      tracker.emplace(snug::memory::TrackerOptions{.device = cuda ? at::Device(at::kCUDA, 0) : device});
    step();
    const auto start = Clock::now();
    for (int i = 0; i < 5; ++i) step();
    return std::chrono::duration<double>(Clock::now() - start).count() / 5;
  };

  const auto captured = snug::capture::capture(cuda ? at::Device(at::kCUDA, 0) : device,
                                               [&](snug::memory::Tracker&) { step(); });
  for (int i = 0; i < 3; ++i) step();
  std::vector<double> off, on, ratio;
  for (int round = 0; round < 21; ++round) {
    off.push_back(seconds(false));
    on.push_back(seconds(true));
    ratio.push_back(on.back() / off.back());
  }
  std::printf("device %s, hidden %ld, %ld x %ld tokens, %lu operators per step\n", device.str().c_str(),
              config.hidden_size, batch, tokens, captured.operators);
  std::printf("off %.3f ms, on %.3f ms, ratio of medians %.4f, median ratio %.4f\n", 1e3 * median(off),
              1e3 * median(on), median(on) / median(off), median(ratio));
}
