// Gradient checkpointing for plain torch::nn modules, which LibTorch lacks: a stack of linear layers and a
// small convolution net with batch norm, dropout and writes in place. Memory falls, gradients keep every bit.
//
//   02_checkpoint [cuda]
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <functional>
#include <iostream>
#include <string>

#include "snug/base/bytes.h"
#include "snug/memory/tracker.h"
#include "snug/report/recomputed.h"
#include "snug/tape/checkpoint.h"

namespace nn = torch::nn;

struct Step {
  std::vector<at::Tensor> gradients;
  std::uint64_t peak = 0;
};

Step run(nn::Sequential& model, const at::Tensor& input,
         const std::function<at::Tensor(at::Tensor)>& forward) {
  model->zero_grad();
  at::manual_seed(1);  // the same dropout
  snug::memory::Tracker tracker({.device = input.device()});
  const std::uint64_t before = tracker.live_bytes();
  forward(input).pow(2).mean().backward();
  Step step{.peak = tracker.peak_bytes() - before};
  for (const at::Tensor& parameter : model->parameters()) step.gradients.push_back(parameter.grad().clone());
  return step;
}

bool compare(const char* what, nn::Sequential model, const at::Tensor& input,
             const std::function<at::Tensor(at::Tensor)>& checkpointed) {
  model->to(input.device());
  const auto plain_forward = [&](at::Tensor x) { return model->forward(std::move(x)); };
  run(model, input, plain_forward);  // libraries load
  const Step plain = run(model, input, plain_forward);
  const Step lean = run(model, input, checkpointed);
  bool same = true;
  for (std::size_t i = 0; i < plain.gradients.size(); ++i)
    same &= at::equal(plain.gradients[i], lean.gradients[i]);
  std::printf("%-12s plain %10s, checkpointed %10s, gradients %s\n", what,
              snug::format_bytes(plain.peak).c_str(), snug::format_bytes(lean.peak).c_str(),
              same ? "bit-equal" : "DIFFER");
  return same && lean.peak < plain.peak;
}

int main(int argc, char** argv) {
  const bool cuda = argc > 1 && std::string(argv[1]) == "cuda" && torch::cuda::is_available();
  const c10::Device device = cuda ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  if (cuda) at::globalContext().setDeterministicCuDNN(true);

  nn::Sequential layers;
  for (int i = 0; i < 8; ++i) {
    layers->push_back(nn::Linear(256, 256));
    layers->push_back(nn::GELU());
    layers->push_back(nn::Dropout(0.1));
  }
  bool good = compare("layers", layers, at::randn({4096, 256}, device),
                      [&](at::Tensor x) { return snug::checkpoint_sequential(layers, 4, std::move(x)); });

  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).padding(1)), nn::BatchNorm2d(16),
                     nn::ReLU(nn::ReLUOptions(/*inplace=*/true)),
                     nn::Conv2d(nn::Conv2dOptions(16, 16, 3).padding(1)), nn::BatchNorm2d(16),
                     nn::ReLU(nn::ReLUOptions(/*inplace=*/true)), nn::Dropout2d(0.1));
  good &= compare("convolutions", net, at::randn({16, 3, 64, 64}, device), [&](at::Tensor x) {
    return snug::checkpoint([&](at::Tensor y) { return net->forward(std::move(y)); }, std::move(x));
  });

  // The same by single values: matrix products stay, what is cheap to recompute goes.
  snug::tape::Recording recording(snug::tape::Fates::cheap(), {.time_replays = true});
  snug::region("layers",
               [&] {
                 return layers->forward(at::randn({4096, 256}, device));
               })
      .pow(2)
      .mean()
      .backward();
  std::cout << "\ncheap values recomputed\n" << snug::report::recomputed(recording.totals());
  return good ? 0 : 1;
}
