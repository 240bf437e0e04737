#include "snug/machine/probe.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

#include "snug/base/error.h"
#include "snug/hooks/device.h"
#include "snug/machine/cuda_probe.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/host_probe.h"
#include "snug/machine/prepare.h"
#include "snug/machine/probe_clock.h"
#include "snug/memory/process_memory.h"
#include "snug/ops/attention.h"
#include "snug/ops/linear_cross_entropy.h"

namespace snug::machine {
namespace {

// A GPU that computes with constants needs less power, so its clock stays higher than in training. A CPU
// takes seconds to make up random numbers.
at::Tensor filled(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return options.device().is_cuda() ? at::randn(sizes, options) : at::full(sizes, 0.01, options);
}

// x [rows, in] times a weight [out, in], so many times in a step.
struct Product {
  std::int64_t rows, in, out, times;
  double flops() const {
    return 2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
  }
};

// As snug's models compute them: each weight by itself, the head a piece at a time.
std::vector<Product> products(const ProbeOptions& options, std::int64_t tokens, at::ScalarType dtype) {
  const std::int64_t query = options.heads * options.head_dim, key = options.kv_heads * options.head_dim;
  const std::int64_t pieces = ops::usual_pieces(tokens, options.vocabulary, dtype), layers = options.layers;
  return {{tokens, options.hidden, query, layers},
          {tokens, options.hidden, key, 2 * layers},
          {tokens, query, options.hidden, layers},
          {tokens, options.hidden, options.intermediate, 2 * layers},
          {tokens, options.intermediate, options.hidden, layers},
          {std::max<std::int64_t>(tokens / pieces, 1), options.hidden, options.vocabulary, pieces}};
}

// Of forward and backward: all flops of a step's products by all their time.
double product_rate(const ProbeOptions& options, at::ScalarType dtype, at::IntArrayRef token_counts) {
  const Stopwatch watch;
  const auto on = at::TensorOptions(options.device).dtype(dtype);
  double flops = 0, seconds = 0;
  for (const std::int64_t tokens : token_counts) {
    for (const Product& product : products(options, tokens, dtype)) {
      if (flops > 0 && watch.seconds() > options.most_seconds) return flops / seconds;
      const at::Tensor x = filled({product.rows, product.in}, on),
                       weight = filled({product.out, product.in}, on),
                       grad = filled({product.rows, product.out}, on);
      const auto time = [&](const std::function<void()>& run) {
        return seconds_per_run(options.device, run, options.least_seconds);
      };
      const double once = time([&] { at::mm(x, weight.t()); }) + time([&] { at::mm(grad, weight); }) +
                          time([&] { at::mm(grad.t(), x); });
      seconds += once * static_cast<double>(product.times);
      flops += 3 * product.flops() * static_cast<double>(product.times);
    }
  }
  return flops / seconds;
}

// Causal, forward and backward, by the kernels that snug::attention takes. Counted like
// capture/operator_work: two products over half of all pairs of tokens, five in the backward.
double attention_rate(const ProbeOptions& options) {
  const at::ScalarType dtype = options.device.is_cuda() ? at::kBFloat16 : at::kFloat;
  const std::int64_t length = options.tokens.front();
  const std::int64_t batch = std::max<std::int64_t>(options.tokens.back() / length, 1);
  const auto heads = [&](std::int64_t count) {
    return filled({batch, length, count, options.head_dim}, at::TensorOptions(options.device).dtype(dtype))
        .transpose(1, 2);
  };
  const at::Tensor query = heads(options.heads), key = heads(options.kv_heads),
                   value = heads(options.kv_heads), grad = heads(options.heads);
  const double scale = 1 / std::sqrt(static_cast<double>(options.head_dim));
  constexpr auto kBackend = ops::AttentionBackend::Default;
  constexpr std::int64_t kAllTokens = 0;
  const auto run = [&] {
    const auto [out, lse] = ops::attention_with_lse(query, key, value, true, scale, kAllTokens, kBackend);
    ops::attention_backward(grad, query, key, value, out, lse, true, scale, kAllTokens, kBackend);
  };
  const double product = 2.0 * static_cast<double>(query.numel()) * static_cast<double>(length);
  return (2 + 5) * product / 2 / seconds_per_run(options.device, run, options.least_seconds);
}

double memory_rate(const ProbeOptions& options) {
  const std::uint64_t bytes = options.copy_bytes * (options.device.is_cuda() ? 4 : 1);
  const at::Tensor from =
      at::zeros({static_cast<std::int64_t>(bytes)}, at::TensorOptions(options.device).dtype(at::kByte));
  at::Tensor to = at::zeros_like(from);
  return 2 * static_cast<double>(bytes) /
         seconds_per_run(
             options.device, [&] { to.copy_(from); }, options.least_seconds);
}

// By the host's clock: what it takes to ask for an operator, or what the device takes, if that is more.
double operation_seconds(c10::Device device) {
  constexpr int kOperators = 2000;
  at::Tensor x = at::zeros({1}, device);
  const auto chain = [&] {
    for (int i = 0; i < kOperators; ++i) x = x.add(1);
    x.item();  // waits for it
  };
  chain();
  const Stopwatch watch;
  chain();
  return watch.seconds() / kOperators;
}

LinkRates link_rates(const ProbeOptions& options) {
  const auto on = at::TensorOptions(options.device).dtype(at::kBFloat16);
  const at::Tensor x = at::randn({options.tokens.back(), options.hidden}, on),
                   weight = at::randn({options.hidden, options.intermediate}, on);
  return measure_links(options.device, options.copy_bytes, [&] { at::mm(x, weight); });
}

ProbeOptions complete(ProbeOptions options) {
  const bool is_gpu = options.device.is_cuda();
  options.device = hooks::with_index(options.device);
  if (!options.say) options.say = [](const std::string&) {};
  if (options.tokens.empty())
    options.tokens = is_gpu ? std::vector<std::int64_t>{4096, 32768} : std::vector<std::int64_t>{256};
  const std::string missing = ops::missing_attention_kernel(
      options.device.type(), is_gpu ? at::kBFloat16 : at::kFloat, options.head_dim);
  check(missing.empty(), missing);
  return options;
}

class Probe {
 public:
  explicit Probe(const ProbeOptions& options) : options_(options) {}

  plan::Hardware run() {
    const bool is_gpu = options_.device.is_cuda();
    plan::Hardware hardware{.name = device_name(options_.device),
                            .is_gpu = is_gpu,
                            .is_estimate = false,
                            .host_bytes = host_memory_bytes()};
    hardware.memory_bytes =
        is_gpu ? memory::cuda_device(options_.device.index()).memory_bytes : hardware.host_bytes;
    compute(hardware);
    if (is_gpu && !memory::cuda_device(options_.device.index()).is_the_hosts) links(hardware);
    host(hardware);
    // It takes several ranks to measure these.
    const plan::Hardware like = hardware_of(options_.device);
    hardware.peer_rate = like.peer_rate;
    hardware.network_rate = like.network_rate;
    hardware.ranks_per_network = like.ranks_per_network;
    // Last: by then the libraries are loaded, but for some kernels that only a step uses.
    constexpr std::uint64_t kLater = 8_MiB;
    if (is_gpu) hardware.outside_bytes = memory::process_memory(options_.device).outside_bytes() + kLater;
    return hardware;
  }

 private:
  template <class Run>
  auto measure(const std::string& what, const Run& run) const {
    options_.say(what);
    try {
      return run();
    } catch (const c10::OutOfMemoryError& error) {
      throw RunError(concat("no memory left to measure ", what,
                            ": end what else runs on this device, or probe at a smaller model's shapes"));
    }
  }

  void compute(plan::Hardware& hardware) {
    const at::IntArrayRef tokens = options_.tokens;
    hardware.matmul_flops_bf16 =
        measure("matrix products, bf16", [&] { return product_rate(options_, at::kBFloat16, tokens); });
    hardware.matmul_flops_fp32 = measure(
        "matrix products, fp32", [&] { return product_rate(options_, at::kFloat, tokens.slice(0, 1)); });
    hardware.attention_flops = measure("attention", [&] { return attention_rate(options_); });
    hardware.memory_rate = measure("memory", [&] { return memory_rate(options_); });
    hardware.operation_seconds =
        measure("small operators", [&] { return operation_seconds(options_.device); });
  }

  void links(plan::Hardware& hardware) {
    const LinkRates rates = measure("copies to and from the host, and products beside them",
                                    [&] { return link_rates(options_); });
    hardware.to_host_rate = rates.to_host.alone;
    hardware.to_device_rate = rates.to_device.alone;
    hardware.both_ways_rate = rates.both_ways.alone;
    hardware.copy_slowdown = rates.both_ways.slowdown;
  }

  void host(plan::Hardware& hardware) {
    hardware.adam_rate = measure("AdamW on the CPU",
                                 [&] { return adam_rate(options_.adam_parameters, options_.least_seconds); });
    if (options_.disk_folder.empty()) return;
    hardware.disk_rate = measure("the disk of " + options_.disk_folder.string(), [&] {
      return disk_rate(options_.disk_folder, options_.disk_bytes, options_.most_seconds);
    });
  }

  ProbeOptions options_;
};

}  // namespace

plan::Hardware probe(const ProbeOptions& options) {
  const ProbeOptions all = complete(options);
  prepare(all.device);
  const c10::DeviceGuard guard(all.device);
  plan::Hardware hardware = [&] {
    const at::NoGradGuard no_grad;
    return Probe(all).run();
  }();
  if (all.steps) hardware.operators = probe_operators(all.device, all.most_positions, all.steps, all.say);
  plan::validate(hardware, "what the probe measured");
  return hardware;
}

}  // namespace snug::machine
