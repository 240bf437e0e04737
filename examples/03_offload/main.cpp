// Activations on the host between forward and backward, for plain torch::nn modules: each layer's values
// leave while the next one computes and are back in time for its backward. Memory falls, gradients keep every
// bit.
//
//   03_offload [cuda]
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/memory/tracker.h"
#include "snug/tape/save_on_host.h"

namespace nn = torch::nn;

struct Step {
  std::vector<at::Tensor> gradients;
  std::uint64_t peak = 0;
  double seconds = 0;
};

Step run(std::vector<nn::Sequential>& layers, const at::Tensor& input,
         const std::function<at::Tensor(at::Tensor)>& forward) {
  for (auto& layer : layers) layer->zero_grad();
  at::manual_seed(1);  // the same dropout
  snug::memory::Tracker tracker({.device = input.device()});
  const std::uint64_t before = tracker.live_bytes();
  const auto start = std::chrono::steady_clock::now();
  forward(input).pow(2).mean().backward();
  if (input.is_cuda()) torch::cuda::synchronize();
  Step step{.peak = tracker.peak_bytes() - before,
            .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  for (auto& layer : layers)
    for (const at::Tensor& parameter : layer->parameters())
      step.gradients.push_back(parameter.grad().clone());
  return step;
}

int main(int argc, char** argv) {
  const bool cuda = argc > 1 && std::string(argv[1]) == "cuda" && torch::cuda::is_available();
  const c10::Device device = cuda ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  const std::int64_t width = cuda ? 4096 : 256;
  std::vector<nn::Sequential> layers;
  for (int i = 0; i < 12; ++i) {
    layers.emplace_back(nn::Linear(width, width), nn::GELU(), nn::Dropout(0.1));
    layers.back()->to(device);
  }
  const at::Tensor input = at::randn({cuda ? 32768 : 4096, width}, device);

  const auto plain = [&](at::Tensor x) {
    for (auto& layer : layers) x = layer->forward(std::move(x));
    return x;
  };
  // Made once, before the first step: nothing is allocated or pinned in a step.
  const auto store = std::make_shared<snug::host::Store>(
      device, snug::host::StoreOptions{.reserve_bytes = 5 * 12 * input.nbytes()});
  const auto offloaded = [&](at::Tensor x) {
    for (auto& layer : layers)
      x = snug::save_on_host(
          {.host = store}, [&](at::Tensor y) { return layer->forward(std::move(y)); }, std::move(x));
    return x;
  };
  for (const auto& forward : {std::function(plain), std::function(offloaded)}) run(layers, input, forward);
  const Step kept = run(layers, input, plain), lean = run(layers, input, offloaded);
  bool same = true;
  for (std::size_t i = 0; i < kept.gradients.size(); ++i)
    same &= at::equal(kept.gradients[i], lean.gradients[i]);
  std::printf("plain     %10s  %7.1f ms\noffloaded %10s  %7.1f ms, %s on the host, gradients %s\n",
              snug::format_bytes(kept.peak).c_str(), kept.seconds * 1e3,
              snug::format_bytes(lean.peak).c_str(), lean.seconds * 1e3,
              snug::format_bytes(store->arena().peak_bytes()).c_str(), same ? "bit-equal" : "DIFFER");
  return same && lean.peak < kept.peak && store->arena().growths() == 0 ? 0 : 1;
}
