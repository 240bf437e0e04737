#include "snug/machine/host_probe.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "snug/base/error.h"
#include "snug/host/free_memory.h"
#include "snug/optim/adamw.h"
#include "snug/machine/probe_clock.h"

namespace snug::machine {
namespace {

// "model name\t: AMD EPYC 9654"
std::string model_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return "CPU";  // other architectures have other lines
}

}  // namespace

std::string cpu_name() {
  const int threads = at::get_num_threads();
  return concat(model_name(), ", ", threads, threads == 1 ? " thread" : " threads");
}

std::uint64_t host_memory_bytes() {
  const auto pages = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES));
  return std::min(pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)),
                  host::host_limit_bytes_below("/"));
}

double adam_rate(std::int64_t parameters, double least_seconds) {
  constexpr std::int64_t kTensors = 16;
  std::vector<at::Tensor> weights;
  for (std::int64_t i = 0; i < kTensors; ++i) {
    weights.push_back(at::full({std::max<std::int64_t>(parameters / kTensors, 1)}, 0.5).requires_grad_());
    weights.back().mutable_grad() = at::full(weights.back().sizes(), 0.01);
  }
  const auto count = static_cast<double>(kTensors * weights[0].numel());
  optim::AdamW optimizer(std::move(weights));
  return count / seconds_per_run(
                     c10::kCPU, [&] { optimizer.step(1e-4); }, least_seconds);
}

}  // namespace snug::machine
