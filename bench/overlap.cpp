// How much of slow collectives hides behind a step: four ranks on the CPU, each a thread with one core, and a
// delay before every collective.
//
//   overlap [delay in ms]
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "snug/hooks/region.h"
#include "snug/optim/adamw.h"
#include "snug/zero/gloo_group.h"
#include "snug/zero/sharding.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRanks = 4, kSteps = 8, kTurns = 4;
constexpr std::int64_t kLayers = 8, kWide = 1024, kRows = 1536;

std::string region(std::int64_t i) {
  return "layer" + std::to_string(i);
}

// Seconds of a step, of all but the first.
double train(snug::zero::Group& group, int stage) {
  std::vector<at::Tensor> weights;
  snug::zero::Sharding sharding(std::shared_ptr<snug::zero::Group>(&group, [](auto*) {}), {.stage = stage});
  for (std::int64_t i = 0; i < kLayers; ++i) {
    weights.push_back((at::eye(kWide) * 0.9).requires_grad_(true));
    sharding.add(region(i), {weights.back()});
  }
  snug::optim::AdamW optimizer(sharding.trained(), {});
  const at::Tensor in = at::ones({kRows, kWide});
  Clock::time_point start;
  for (int step = 0; step < kSteps; ++step) {
    if (step == 1) start = Clock::now();
    at::Tensor x = in;
    for (std::int64_t i = 0; i < kLayers; ++i) {
      const snug::hooks::RegionScope scope(region(i));
      x = at::tanh(at::linear(x, weights[static_cast<std::size_t>(i)]));
    }
    sharding.last_pass();
    x.sum().backward();
    sharding.finish_gradients();
    optimizer.step(1e-4);
    sharding.zero_grad();
    sharding.finish_update();
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  sharding.finish();
  return seconds / (kSteps - 1);
}

// Of the slowest rank.
double seconds(int stage, std::chrono::milliseconds delay) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::mutex mutex;
  double slowest = 0;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      const auto group =
          snug::zero::connect_gloo(store, rank, kRanks, at::kCPU, {.address = "127.0.0.1", .delay = delay});
      const double mine = train(*group, stage);
      const std::lock_guard lock(mutex);
      slowest = std::max(slowest, mine);
    });
  for (std::thread& rank : ranks) rank.join();
  return slowest;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const std::chrono::milliseconds delay(argc > 1 ? std::atoi(argv[1]) : 8);
  for (const int stage : {2, 3}) {
    // Sums of every layer, gathers of every layer in the forward and, but for the last one's, in the
    // backward.
    const int collectives = static_cast<int>(stage == 2 ? 2 * kLayers : 3 * kLayers - 1);
    constexpr int kExposed = 2;  // nothing computes beside the first layer's gather and the last one's sum
    double plain = 1e9, slow = 1e9;  // the fastest of some turns
    for (int turn = 0; turn < kTurns; ++turn) {
      plain = std::min(plain, seconds(stage, std::chrono::milliseconds(0)));
      slow = std::min(slow, seconds(stage, delay));
    }
    const double added = 1e-3 * static_cast<double>(delay.count()) * collectives;
    const double could = added * (collectives - kExposed) / collectives;
    fmt::print(
        "stage {}: {:.1f} ms a step, {:.1f} ms with {} collectives that are {} ms late each ({:.0f} ms): "
        "{:.1f} % of what could "
        "be hidden is\n",
        stage, 1e3 * plain, 1e3 * slow, collectives, delay.count(), 1e3 * added,
        100 * std::min(1.0, (added - (slow - plain)) / could));
  }
}
