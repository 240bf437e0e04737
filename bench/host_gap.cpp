// How long the GPU waits for the host in a step of many small pieces: 1.26B parameters, 8 x 4096 tokens in
// eight micro-batches.
//
//   host_gap [model] [micro-batch]
//
// The same step twice: as a loop runs it, and behind a kernel that does nothing for a while, so that the host
// is ahead and the GPU never waits. The gap is the difference. Both begin after the same rest, since a rested
// GPU is faster.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "snug/models/config.h"
#include "snug/machine/prepare.h"
#include "snug/train/step.h"

namespace {

using namespace snug;

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

}  // namespace

int main(int count, char** arguments) {
  train::TrainConfig config;
  config.model_name = count > 1 ? arguments[1] : "llama-1.3b";
  config.model = models::load_config(config.model_name);
  config.batch_size = 8;
  config.micro_batch = count > 2 ? std::atoi(arguments[2]) : 1;
  config.seq_len = 4096;
  config.device = c10::Device(c10::kCUDA, 0);
  config.precision = train::Precision::Bf16;
  train::validate(config);
  machine::prepare(config.device);
  memory::Tracker tracker({.device = config.device});
  train::TrainingSetup setup(config, config.device, Account(tracker));
  const at::Tensor tokens =
      at::randint(config.model.vocab_size, {config.batch_size, config.seq_len}, at::kLong).to(config.device);
  const io::Batch batch{tokens, tokens};

  const auto seconds = [&](bool host_is_ahead) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    at::cuda::device_synchronize();
    at::cuda::sleep(400'000'000);
    if (!host_is_ahead) at::cuda::device_synchronize();
    begin.record();
    train::run_step(setup, {.batch = batch, .target_count = tokens.numel(), .lr = 1e-4}, config,
                    Account(tracker));
    end.record();
    end.synchronize();
    return begin.elapsed_time(end) * 1e-3;
  };
  std::vector<double> plain, ahead;
  for (int i = 0; i < 13; ++i) {
    const double one = seconds(false), other = seconds(true);
    if (i < 3) continue;
    plain.push_back(one);
    ahead.push_back(other);
  }
  const double with_host = median(plain), without = median(ahead);
  std::printf("%s, micro-batch %lld: step %.1f ms, never waiting %.1f ms, host gap %.2f %%\n",
              config.model_name.c_str(), static_cast<long long>(config.micro_batch), with_host * 1e3,
              without * 1e3, 100 * (1 - without / with_host));
  return 0;
}
