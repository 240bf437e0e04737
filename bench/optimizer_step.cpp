// AdamW's step beside torch's fused one, on one CPU thread.
//
//   optimizer_step
//
// Torch has no fused step of bf16 weights with an exact master; ours stands beside its step in fp32.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "snug/optim/adamw.h"

namespace {

using snug::optim::AdamW;
using snug::optim::AdamWOptions;
using snug::optim::Master;

constexpr std::int64_t kParameters = 20'000'000;

double median_seconds(const std::function<void()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i < 13; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    if (i >= 2)
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + seconds.size() / 2);
  return seconds[seconds.size() / 2];
}

double ours(at::ScalarType dtype, Master master) {
  at::Tensor weight = at::randn({kParameters}).to(dtype).requires_grad_();
  weight.mutable_grad() = at::randn({kParameters}).to(dtype);
  AdamW optimizer({weight}, {.master = master});
  return median_seconds([&] { optimizer.step(); });
}

double torchs() {
  const auto list = [](const at::Tensor& tensor) { return std::vector<at::Tensor>{tensor}; };
  const auto weight = list(at::randn({kParameters})), gradient = list(at::randn({kParameters})),
             exp_avg = list(at::zeros({kParameters})), exp_avg_sq = list(at::zeros({kParameters})),
             step = list(at::ones({}));
  const AdamWOptions options;
  return median_seconds([&] {
    at::_fused_adamw_(weight, gradient, exp_avg, exp_avg_sq, {}, step, options.lr, options.beta1,
                      options.beta2, options.weight_decay, options.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
  });
}

}  // namespace

int main() {
  at::set_num_threads(1);
  const double reference = torchs();
  const auto show = [&](const char* name, double seconds) {
    std::printf("%-28s %7.1f ms, %.2f of torch's fused step in fp32\n", name, seconds * 1e3,
                seconds / reference);
  };
  show("torch, fp32", reference);
  show("fp32", ours(at::kFloat, Master::Split));
  show("bf16, split master", ours(at::kBFloat16, Master::Split));
  show("bf16, fp32 master", ours(at::kBFloat16, Master::Fp32));
  return 0;
}
