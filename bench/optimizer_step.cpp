// AdamW's step on the CPU beside torch's fused one, in turns, with all threads.
//
//   optimizer_step [millions of parameters]
//
// Torch has no fused step of 16-bit weights with an exact master; ours stand beside its step in fp32. One
// line is called from a thread that torch did not make, one in the arithmetic of CUDA.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "snug/ops/update.h"

namespace {

using namespace snug::ops;

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

struct Ours {
  AdamWTensors tensors;
  UpdateControl control;
  AdamWNumbers numbers;

  explicit Ours(std::int64_t count)
      : tensors{{{at::randn({count})}, {at::randn({count})}, {}},
                {at::zeros({count})},
                {at::zeros({count})},
                {at::ones({})}} {
    tensors.masters = tensors.weights;
  }

  Ours(const Ours& torchs, at::ScalarType weights, at::ScalarType masters, Arithmetic arithmetic)
      : tensors(torchs.tensors), control{.arithmetic = arithmetic} {
    if (arithmetic == Arithmetic::Cuda) tensors.steps = {adamw_corrections(tensors.steps[0], numbers)};
    tensors.gradients[0] = tensors.gradients[0].to(weights);
    tensors.weights[0] = tensors.weights[0].to(weights);
    if (masters == at::kShort) tensors.masters[0] = at::zeros({tensors.weights[0].numel()}, masters);
  }

  void step() const { adamw_(tensors, numbers, control); }
  void step_of_torch() const {
    at::_fused_adamw_(tensors.weights, tensors.gradients, tensors.exp_avgs, tensors.exp_avg_sqs, {},
                      tensors.steps, numbers.lr, numbers.beta1, numbers.beta2, numbers.weight_decay,
                      numbers.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
};

void compare(const char* name, std::int64_t count, const Ours& torchs, const Ours& ours, bool on_a_thread) {
  std::vector<double> theirs_seconds, our_seconds;
  const auto turn = [&] {
    theirs_seconds.push_back(seconds_of([&] { torchs.step_of_torch(); }));
    our_seconds.push_back(seconds_of([&] { ours.step(); }));
  };
  const auto run = [&] {
    turn();
    theirs_seconds.clear(), our_seconds.clear();
    for (int i = 0; i < 11; ++i) turn();
  };
  on_a_thread ? std::thread(run).join() : run();
  const double theirs = median(theirs_seconds), mine = median(our_seconds);
  std::printf("%-30s %7.1f ms, %6.2f G elements/s, %.2fx torch's fused step in fp32 (%.1f ms)\n", name,
              mine * 1e3, static_cast<double>(count) / mine / 1e9, theirs / mine, theirs * 1e3);
}

}  // namespace

int main(int count_of_arguments, char** arguments) {
  const std::int64_t count = 1'000'000ll * (count_of_arguments > 1 ? std::atoi(arguments[1]) : 50);
  std::printf("%d threads, %lld parameters\n", at::get_num_threads(), static_cast<long long>(count));
  const Ours torchs(count);
  const auto show = [&](const char* name, at::ScalarType weights, at::ScalarType masters,
                        Arithmetic arithmetic = Arithmetic::OfDevice, bool on_a_thread = false) {
    compare(name, count, torchs, Ours(torchs, weights, masters, arithmetic), on_a_thread);
  };
  show("fp32", at::kFloat, at::kFloat);
  show("bf16, remainder", at::kBFloat16, at::kShort);
  show("bf16, fp32 master", at::kBFloat16, at::kFloat);
  show("fp16, fp32 master", at::kHalf, at::kFloat);
  show("bf16, remainder, as CUDA", at::kBFloat16, at::kShort, Arithmetic::Cuda);
  show("bf16, remainder, on a thread", at::kBFloat16, at::kShort, Arithmetic::OfDevice, true);
  return 0;
}
