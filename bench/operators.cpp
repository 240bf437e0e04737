// Fused operators on a GPU: the share of the copy rate that each reaches; loss head and
// attention beside torch's.
//
//   operators
//
// All rates are of this run, the copy's too. Bytes are those that an operator must read and write.
#include <ATen/ATen.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "snug/ops/attention.h"
#include "snug/ops/embedding.h"
#include "snug/ops/gelu.h"
#include "snug/ops/layer_norm.h"
#include "snug/ops/linear_cross_entropy.h"
#include "snug/ops/rms_norm.h"
#include "snug/ops/rope.h"
#include "snug/ops/sum_rows.h"
#include "snug/ops/swiglu.h"
#include "snug/optim/adamw.h"

namespace {

namespace ops = snug::ops;
using Tensors = std::vector<at::Tensor>;

constexpr std::int64_t kTokens = 32768, kHidden = 2048, kFfn = 5632, kHeads = 16, kVocabulary = 32768;

const at::TensorOptions kHalf = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);

double median_seconds(const std::function<void()>& run) {
  std::vector<double> seconds;
  for (int i = 0; i < 23; ++i) {
    at::cuda::CUDAEvent begin(cudaEventDefault), end(cudaEventDefault);
    at::cuda::sleep(4'000'000);  // so that the host is ahead and its launches are not timed
    begin.record();
    run();
    end.record();
    end.synchronize();
    if (i >= 3) seconds.push_back(begin.elapsed_time(end) * 1e-3);
  }
  std::ranges::nth_element(seconds, seconds.begin() + seconds.size() / 2);
  return seconds[seconds.size() / 2];
}

double bytes(const Tensors& tensors) {
  double sum = 0;
  for (const at::Tensor& tensor : tensors) sum += static_cast<double>(tensor.nbytes());
  return sum;
}

double copy_rate() {
  const at::Tensor from = at::empty({1 << 29}, kHalf), to = at::empty_like(from);
  return bytes({from, to}) / median_seconds([&] { to.copy_(from); });
}

void show(const char* name, double moved, double seconds, double copy) {
  const double rate = moved / seconds;
  std::printf("%-30s %8.3f ms %8.2f TB/s %6.1f %% of the copy\n", name, seconds * 1e3, rate * 1e-12,
              100 * rate / copy);
}

std::uint64_t peak_beyond(const std::function<void()>& run) {
  const auto value = [](bool peak) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0).allocated_bytes[0];
    return static_cast<std::uint64_t>(peak ? stats.peak : stats.current);
  };
  run();  // libraries take what they keep
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
  const std::uint64_t before = value(false);
  run();
  return value(true) - before;
}

void loss_heads() {
  const at::Tensor hidden = at::randn({kTokens, kHidden}, kHalf).requires_grad_();
  const at::Tensor weight = at::randn({kVocabulary, kHidden}, kHalf).mul_(0.02).requires_grad_();
  const at::Tensor targets = at::randint(kVocabulary, {kTokens}, kHalf.dtype(at::kLong));
  const auto ours = [&] {
    torch::autograd::grad({ops::linear_cross_entropy(hidden, weight, targets)}, {hidden, weight});
  };
  const auto torchs = [&] {
    const at::Tensor logits = at::linear(hidden, weight).to(at::kFloat);
    torch::autograd::grad({at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum)},
                          {hidden, weight});
  };
  const double results = bytes({hidden, weight});
  for (const auto& [name, run] : {std::pair<const char*, std::function<void()>>{"loss head, snug", ours},
                                  {"loss head, torch unfused", torchs}}) {
    const std::uint64_t peak = peak_beyond(run);
    std::printf("%-30s %8.3f ms, %.0f MiB beyond inputs and gradients\n", name, median_seconds(run) * 1e3,
                (static_cast<double>(peak) - results) / (1 << 20));
  }
}

void embedding_gradients(double copy) {
  const at::Tensor grad = at::randn({kTokens, kHidden}, kHalf);
  const auto longs = kHalf.dtype(at::kLong);
  const std::pair<const char*, at::Tensor> cases[] = {{"random", at::randint(kVocabulary, {kTokens}, longs)},
                                                      {"distinct", at::randperm(kTokens, longs)},
                                                      {"one token", at::full({kTokens}, 7, longs)}};
  for (const auto& [name, tokens] : cases) {
    const double moved = bytes({grad, tokens}) + kVocabulary * kHidden * 2.0;
    show((std::string("embedding backward, ") + name).c_str(), moved,
         median_seconds([&, &tokens = tokens] { ops::embedding_backward(grad, tokens, kVocabulary); }), copy);
    show("  torch's", moved, median_seconds([&, &tokens = tokens] {
           at::embedding_dense_backward(grad, tokens, kVocabulary, -1, false);
         }),
         copy);
  }
}

// Causal, 16 heads of 128, forward and backward, beside torch's own way to cuDNN.
void attentions() {
  auto& context = at::globalContext();
  context.setSDPUseFlash(false);
  context.setSDPUseMemEfficient(false);
  context.setSDPUseMath(false);
  for (const std::int64_t tokens : {4096, 8192, 16384, 32768}) {
    const auto heads = [&] {
      return at::randn({kTokens / tokens, tokens, kHeads, kHidden / kHeads}, kHalf)
          .requires_grad_()
          .transpose(1, 2);
    };
    const at::Tensor query = heads(), key = heads(), value = heads(), grad = at::randn_like(query);
    const auto ours = [&] {
      torch::autograd::grad({ops::attention(query, key, value)}, {query, key, value}, {grad});
    };
    const auto torchs = [&] {
      const at::Tensor out = at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/true);
      torch::autograd::grad({out}, {query, key, value}, {grad});
    };
    const double results = bytes({query, key, value, grad});
    for (const auto& [name, run] :
         {std::pair<const char*, std::function<void()>>{"snug", ours}, {"torch with cuDNN", torchs}}) {
      const std::uint64_t peak = peak_beyond(run);
      std::printf("attention %lld x %lld, %-17s %8.3f ms, %.0f MiB beyond inputs, result and gradients\n",
                  static_cast<long long>(kTokens / tokens), static_cast<long long>(tokens), name,
                  median_seconds(run) * 1e3, (static_cast<double>(peak) - results) / (1 << 20));
    }
  }
}

}  // namespace

int main() {
  const double copy = copy_rate();
  std::printf("copy %.2f TB/s; %lld tokens, hidden %lld, ffn %lld, bf16\n", copy * 1e-12,
              static_cast<long long>(kTokens), static_cast<long long>(kHidden), static_cast<long long>(kFfn));
  {
    at::NoGradGuard no_grad;
    const at::Tensor x = at::randn({kTokens, kHidden}, kHalf), y = at::randn_like(x), z = at::randn_like(x),
                     weight = at::ones({kHidden}, kHalf);
    const auto [out, rstd] = ops::rms_norm_with_rstd(x, weight, 1e-5);
    show("rms_norm", bytes({x, x, rstd}), median_seconds([&] { ops::rms_norm_with_rstd(x, weight, 1e-5); }),
         copy);
    show("add_rms_norm", bytes({x, x, x, x, rstd}),
         median_seconds([&] { ops::add_rms_norm_with_rstd(x, y, weight, 1e-5); }), copy);
    show("rms_norm backward", bytes({x, x, x, rstd}),
         median_seconds([&] { ops::rms_norm_backward(y, {}, x, weight, rstd); }), copy);
    show("add_rms_norm backward", bytes({x, x, x, x, rstd}),
         median_seconds([&] { ops::rms_norm_backward(y, z, x, weight, rstd); }), copy);
    const auto normed = ops::layer_norm_with_statistics(x, weight, weight, 1e-5);
    const at::Tensor &mean = std::get<1>(normed), &scale = std::get<2>(normed);
    show("layer_norm", bytes({x, x, mean, scale}),
         median_seconds([&] { ops::layer_norm_with_statistics(x, weight, weight, 1e-5); }), copy);
    show("layer_norm backward", bytes({x, x, x, mean, scale}),
         median_seconds([&] { ops::layer_norm_backward(y, {}, x, weight, mean, scale, true); }), copy);

    const at::Tensor gate = at::randn({kTokens, kFfn}, kHalf), up = at::randn_like(gate),
                     grad = at::randn_like(gate);
    show("swiglu", bytes({gate, gate, gate}), median_seconds([&] { ops::swiglu(gate, up); }), copy);
    show("swiglu backward", bytes({gate, gate, gate, gate, gate}),
         median_seconds([&] { ops::swiglu_backward(grad, gate, up); }), copy);
    for (const auto& [name, form] :
         {std::pair{"gelu", ops::GeluForm::Exact}, std::pair{"gelu by tanh", ops::GeluForm::Tanh}}) {
      show(name, bytes({gate, gate}), median_seconds([&] { ops::gelu(gate, form); }), copy);
      show((std::string(name) + " backward").c_str(), bytes({gate, gate, gate}),
           median_seconds([&] { ops::gelu_backward(grad, gate, form); }), copy);
    }

    show("sum_rows", bytes({gate}), median_seconds([&] { ops::sum_rows(gate, at::kBFloat16); }), copy);
    show("  torch's", bytes({gate}), median_seconds([&] { at::sum(gate, 0); }), copy);

    const at::Tensor heads = x.view({8, kTokens / 8, kHeads, kHidden / kHeads}).transpose(1, 2);
    const ops::RopeTable table = ops::make_rope_table(kTokens / 8, kHidden / kHeads, 1e4, kHalf);
    show("rope (both directions)", bytes({x, x}), median_seconds([&] { ops::rope(heads, table); }), copy);
  }
  embedding_gradients(copy);
  loss_heads();
  attentions();
  {
    Tensors parameters;
    for (int i = 0; i < 24; ++i) {
      parameters.push_back(at::randn({25600, kHidden}, kHalf).requires_grad_());
      parameters.back().mutable_grad() = at::randn({25600, kHidden}, kHalf);
    }
    snug::optim::AdamW optimizer(parameters);
    const double moved = bytes(parameters) * 2 /* gradient and weight */ + bytes(parameters) +
                         2 * static_cast<double>(optimizer.state_bytes());
    show("adamw step, 1.26B", moved, median_seconds([&] { optimizer.step(1e-4); }), copy);
  }
  return 0;
}
