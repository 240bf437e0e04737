#include "snug/machine/cuda_probe.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace snug::machine {
namespace {

constexpr std::int64_t kSleepCycles = 1'000'000;  // 0.5 ms: so that the host is ahead
constexpr double kSeconds = 0.05;                 // of each thing that is timed
constexpr double kWarmSeconds = 0.3;              // until a GPU at its power limit has found its clock
constexpr int kRounds = 3;
constexpr double kLonger = 1.3;  // than what it must outlast

int repeats(double seconds_of_one, int least) {
  return static_cast<int>(
      std::clamp(std::ceil(kSeconds / std::max(seconds_of_one, 1e-6)), static_cast<double>(least), 1000.0));
}

double median(std::array<double, kRounds> values) {
  std::ranges::sort(values);
  return values[kRounds / 2];
}

// Copies both ways on two streams, which wait for nobody.
class Traffic {
 public:
  Traffic(c10::Device device, std::uint64_t piece_bytes)
      : bytes_(piece_bytes),
        sent_(on(device)),
        received_(on(device)),
        host_received_(pinned()),
        host_sent_(pinned()),
        out_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())),
        in_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
    C10_CUDA_CHECK(cudaDeviceSynchronize());
  }
  ~Traffic() { C10_CUDA_CHECK_WARN(cudaDeviceSynchronize()); }  // before the memory goes
  Traffic(const Traffic&) = delete;                             // copies under way point into it
  Traffic& operator=(const Traffic&) = delete;

  void start(int to_host, int to_device) {
    for (int i = 0; i < to_host; ++i)
      C10_CUDA_CHECK(
          cudaMemcpyAsync(host_received_.data_ptr(), sent_.data_ptr(), bytes_, cudaMemcpyDeviceToHost, out_));
    for (int i = 0; i < to_device; ++i)
      C10_CUDA_CHECK(
          cudaMemcpyAsync(received_.data_ptr(), host_sent_.data_ptr(), bytes_, cudaMemcpyHostToDevice, in_));
  }
  void finish() {
    out_.synchronize();
    in_.synchronize();
  }
  // Until the last of them is done.
  double seconds(int to_host, int to_device) {
    finish();
    at::cuda::CUDAEvent begin(cudaEventDefault), sent(cudaEventDefault), received(cudaEventDefault);
    begin.record(out_);
    begin.block(in_);
    start(to_host, to_device);
    sent.record(out_);
    received.record(in_);
    finish();
    return 1e-3 * std::max(begin.elapsed_time(sent), begin.elapsed_time(received));
  }

 private:
  at::Tensor on(c10::Device device) const {
    return at::empty({static_cast<std::int64_t>(bytes_)}, at::TensorOptions(device).dtype(at::kByte));
  }
  at::Tensor pinned() const {
    return at::empty({static_cast<std::int64_t>(bytes_)},
                     at::TensorOptions(at::kCPU).dtype(at::kByte).pinned_memory(true));
  }

  std::uint64_t bytes_;
  at::Tensor sent_, received_, host_received_, host_sent_;
  c10::cuda::CUDAStream out_, in_;
};

// Copies to the host, to the device or both, alone and beside `compute`; each outlasts the other once.
LinkRate measure_link(c10::Device device, Traffic& traffic, std::uint64_t piece_bytes, bool to_host,
                      bool to_device, const std::function<void()>& compute) {
  const auto start = [&](int copies) { traffic.start(to_host * copies, to_device * copies); };
  const auto seconds = [&](int copies) { return traffic.seconds(to_host * copies, to_device * copies); };
  const double copy_seconds = seconds(4) / 4, run_seconds = cuda_seconds(device, compute, 4) / 4;
  const int copies = repeats(copy_seconds, 2), runs = repeats(run_seconds, 1);
  const int outlasting_copies = 2 + static_cast<int>(kLonger * runs * run_seconds / copy_seconds);
  const int outlasting_runs = 2 + static_cast<int>(kLonger * copies * copy_seconds / run_seconds);

  std::array<double, kRounds> alone{}, beside{}, slowdown{};
  for (int round = 0; round < kRounds; ++round) {
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    alone[round] = seconds(copies);
    for (int run = 0; run < outlasting_runs; ++run) compute();
    beside[round] = seconds(copies);
  }
  cuda_seconds(device, compute, static_cast<int>(kWarmSeconds / run_seconds));
  for (int round = 0; round < kRounds; ++round) {
    const double undisturbed = cuda_seconds(device, compute, runs);
    start(outlasting_copies);
    slowdown[round] = cuda_seconds(device, compute, runs) / undisturbed - 1;
    traffic.finish();
  }
  const double bytes = static_cast<double>(piece_bytes) * copies * (to_host + to_device);
  return {.alone = bytes / median(alone),
          .beside = bytes / median(beside),
          .slowdown = std::max(median(slowdown), 0.0)};
}

}  // namespace

double cuda_seconds(c10::Device device, const std::function<void()>& run, int times) {
  const c10::cuda::CUDAGuard guard(device);
  at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
  at::cuda::sleep(kSleepCycles);
  begin.record();
  for (int i = 0; i < times; ++i) run();
  end.record();
  end.synchronize();
  return 1e-3 * begin.elapsed_time(end);
}

LinkRates measure_links(c10::Device device, std::uint64_t piece_bytes, const std::function<void()>& compute) {
  const c10::cuda::CUDAGuard guard(device);
  Traffic traffic(device, piece_bytes);
  traffic.seconds(1, 1);  // the first touch of each page
  const auto link = [&](bool to_host, bool to_device) {
    return measure_link(device, traffic, piece_bytes, to_host, to_device, compute);
  };
  return {.to_host = link(true, false), .to_device = link(false, true), .both_ways = link(true, true)};
}

}  // namespace snug::machine
