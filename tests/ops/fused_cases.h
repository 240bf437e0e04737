// Fused operators beside what they stand for: the same inputs through both, forward and backward.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/ops/embedding.h"
#include "snug/ops/gelu.h"
#include "snug/ops/layer_norm.h"
#include "snug/ops/linear_cross_entropy.h"
#include "snug/ops/norm_rope.h"
#include "snug/ops/project.h"
#include "snug/ops/rms_norm.h"
#include "snug/ops/rope.h"
#include "snug/ops/swiglu.h"

namespace snug::testing {

using Tensors = std::vector<at::Tensor>;

struct FusedCase {
  std::string name;
  Tensors inputs;                                // fp64, on the CPU
  std::function<Tensors(const Tensors&)> fused;  // and what it stands for, in torch's operators
  std::function<Tensors(const Tensors&)> plain;
};

inline at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight) {
  return at::rms_norm(x, weight.sizes(), weight, 1e-5);
}

inline at::Tensor plain_layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::layer_norm(x, weight.sizes(), weight, bias, 1e-5);
}

inline Tensors plain_rope(const Tensors& in) {
  const auto table = ops::make_rope_table(in[0].size(2), in[0].size(3), 1e4, in[0].options());
  const auto halves = in[0].chunk(2, -1);
  return {at::cat(
      {halves[0] * table.cos - halves[1] * table.sin, halves[1] * table.cos + halves[0] * table.sin}, -1)};
}

inline at::Tensor plain_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets) {
  const at::Tensor logits = at::linear(hidden, weight).flatten(0, -2);
  return at::cross_entropy_loss(logits.to(logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
                                targets.flatten(), {}, at::Reduction::Sum);
}

inline std::vector<FusedCase> norms_of(std::int64_t hidden) {
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  const std::string name = " of " + std::to_string(hidden);
  std::vector<FusedCase> cases;
  cases.push_back({"rms_norm" + name,
                   {random({3, 5, hidden}), random({hidden})},
                   [](const Tensors& in) { return Tensors{ops::rms_norm(in[0], in[1], 1e-5)}; },
                   [](const Tensors& in) { return Tensors{plain_rms_norm(in[0], in[1])}; }});
  cases.push_back({"add_rms_norm" + name,
                   {random({7, hidden}), random({7, hidden}), random({hidden})},
                   [](const Tensors& in) {
                     auto [sum, out] = ops::add_rms_norm(in[0], in[1], in[2], 1e-5);
                     return Tensors{sum, out};
                   },
                   [](const Tensors& in) {
                     const at::Tensor sum = in[0] + in[1];
                     return Tensors{sum, plain_rms_norm(sum, in[2])};
                   }});
  if (hidden == 1) return cases;  // whose layer norm is its bias
  cases.push_back({"layer_norm" + name,
                   {random({3, 5, hidden}) + 2, random({hidden}), random({hidden})},
                   [](const Tensors& in) { return Tensors{ops::layer_norm(in[0], in[1], in[2], 1e-5)}; },
                   [](const Tensors& in) { return Tensors{plain_layer_norm(in[0], in[1], in[2])}; }});
  cases.push_back({"layer_norm without bias" + name,
                   {random({7, hidden}), random({hidden})},
                   [](const Tensors& in) { return Tensors{ops::layer_norm(in[0], in[1], {}, 1e-5)}; },
                   [](const Tensors& in) { return Tensors{plain_layer_norm(in[0], in[1], {})}; }});
  for (const bool has_bias : {true, false})
    cases.push_back({(has_bias ? "add_layer_norm" : "add_layer_norm without bias") + name,
                     {random({7, hidden}), random({7, hidden}) + 2, random({hidden}), random({hidden})},
                     [=](const Tensors& in) {
                       const auto bias = has_bias ? std::optional(in[3]) : std::nullopt;
                       auto [sum, out] = ops::add_layer_norm(in[0], in[1], in[2], bias, 1e-5);
                       return Tensors{sum, has_bias ? out : out + in[3]};
                     },
                     [](const Tensors& in) {
                       const at::Tensor sum = in[0] + in[1];
                       return Tensors{sum, plain_layer_norm(sum, in[2], in[3])};
                     }});
  return cases;
}

inline std::vector<FusedCase> fused_cases() {
  at::manual_seed(11);
  const auto random = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble); };
  std::vector<FusedCase> cases;
  for (const std::int64_t hidden : {1, 5, 37, 64, 2048, 4104, 9000}) {
    for (FusedCase& norm : norms_of(hidden)) cases.push_back(std::move(norm));
    const std::string name = " of " + std::to_string(hidden);
    cases.push_back({"swiglu" + name,
                     {random({2, 3, hidden}), random({2, 3, hidden})},
                     [](const Tensors& in) { return Tensors{ops::swiglu(in[0], in[1])}; },
                     [](const Tensors& in) { return Tensors{at::silu(in[0]) * in[1]}; }});
    for (const bool tanh : {false, true})
      cases.push_back({(tanh ? "gelu by tanh" : "gelu") + name,
                       {random({2, 3, hidden})},
                       [=](const Tensors& in) {
                         return Tensors{ops::gelu(in[0], tanh ? ops::GeluForm::Tanh : ops::GeluForm::Exact)};
                       },
                       [=](const Tensors& in) { return Tensors{at::gelu(in[0], tanh ? "tanh" : "none")}; }});
  }
  for (const auto token_type : {at::kInt, at::kLong})
    for (const std::int64_t hidden : {3, 64, 2056}) {
      const at::Tensor tokens = at::randint(40, {3, 50}, token_type);
      cases.push_back(
          {"embedding of " + std::to_string(hidden),
           {random({40, hidden})},
           [=](const Tensors& in) { return Tensors{ops::embedding(in[0], tokens.to(in[0].device()))}; },
           [=](const Tensors& in) { return Tensors{at::embedding(in[0], tokens.to(in[0].device()))}; }});
    }
  for (const std::int64_t head_dim : {2, 6, 64, 128})
    cases.push_back({"rope of " + std::to_string(head_dim),
                     {random({2, 5, 3, head_dim}).transpose(1, 2)},
                     [](const Tensors& in) {
                       return Tensors{ops::rope(
                           in[0], ops::make_rope_table(in[0].size(2), in[0].size(3), 1e4, in[0].options()))};
                     },
                     plain_rope});
  for (const std::int64_t head_dim : {2, 6, 24, 64, 80, 96, 128, 192, 256, 512, 520})
    cases.push_back(
        {"norm_rope of " + std::to_string(head_dim),
         {random({2, 5, 3, head_dim}), random({head_dim})},
         [](const Tensors& in) {
           return Tensors{ops::norm_rope(
               in[0], in[1], ops::make_rope_table(in[0].size(1), in[0].size(3), 1e4, in[0].options()), 1e-5)};
         },
         [](const Tensors& in) { return plain_rope({plain_rms_norm(in[0], in[1]).transpose(1, 2)}); }});
  cases.push_back(
      {"project",
       {random({2, 5, 24}), random({16, 24}), random({8, 24}), random({40, 24})},
       [](const Tensors& in) {
         return ops::project(in[0], {in[1], in[2], in[3]});
       },
       [](const Tensors& in) {
         return Tensors{at::linear(in[0], in[1]), at::linear(in[0], in[2]), at::linear(in[0], in[3])};
       }});
  cases.push_back({"project with biases",
                   {random({2, 5, 24}), random({16, 24}), random({8, 24}), random({16}), random({8})},
                   [](const Tensors& in) {
                     return ops::project(in[0], {in[1], in[2]}, {in[3], in[4]});
                   },
                   [](const Tensors& in) {
                     return Tensors{at::linear(in[0], in[1], in[3]), at::linear(in[0], in[2], in[4])};
                   }});
  cases.push_back(
      {"linear of a weight [in, out]",
       {random({2, 5, 24}), random({24, 16}), random({16})},
       [](const Tensors& in) { return Tensors{ops::linear(in[0], in[1], in[2], ops::WeightLayout::InOut)}; },
       [](const Tensors& in) { return Tensors{at::linear(in[0], in[1].t(), in[2])}; }});
  for (const std::int64_t vocabulary : {33, 64, 5003, 8192})
    for (const std::int64_t at_a_time : {0, 4}) {
      at::Tensor targets = at::randint(vocabulary, {2, 7}, at::kLong);
      targets[1][3] = -100;
      const ops::LinearCrossEntropyOptions options{.scale = 0.25, .rows_at_a_time = at_a_time};
      cases.push_back({"linear_cross_entropy over " + std::to_string(vocabulary),
                       {random({2, 7, 24}), random({vocabulary, 24})},
                       [=](const Tensors& in) {
                         return Tensors{
                             ops::linear_cross_entropy(in[0], in[1], targets.to(in[0].device()), options)};
                       },
                       [=](const Tensors& in) {
                         return Tensors{plain_loss(in[0], in[1], targets.to(in[0].device())) * 0.25};
                       }});
    }
  return cases;
}

// Results, then the gradients of all inputs, in fp64 on the CPU. `change` is done to each input.
inline Tensors run_fused(const std::function<Tensors(const Tensors&)>& function, const Tensors& inputs,
                         const std::function<at::Tensor(const at::Tensor&)>& change) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(change(input).detach().requires_grad_());
  const Tensors results = function(leaves);
  at::manual_seed(5);
  Tensors grads;
  for (const at::Tensor& result : results)
    grads.push_back(at::randn(result.sizes(), at::kDouble).to(result.options()));
  const Tensors of_inputs = torch::autograd::grad(results, leaves, grads);
  Tensors all;
  for (const at::Tensor& result : results) all.push_back(result.detach().cpu().to(at::kDouble));
  for (const at::Tensor& grad : of_inputs) all.push_back(grad.cpu().to(at::kDouble));
  return all;
}

inline double relative_error(const at::Tensor& value, const at::Tensor& exact) {
  return ((value - exact).norm() / exact.norm()).item<double>();
}

// At most twice torch's own error against fp64, in every dtype. `moved` puts each input where it is to run.
inline void expect_as_exact_as_torch(const std::function<at::Tensor(const at::Tensor&)>& moved) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const FusedCase& fused : fused_cases()) {
      const auto rounded = [&](const at::Tensor& tensor) { return moved(tensor.to(dtype)); };
      const auto rounded_up = [&](const at::Tensor& tensor) { return tensor.to(dtype).to(at::kDouble); };
      const Tensors ours = run_fused(fused.fused, fused.inputs, rounded);
      const Tensors torchs = run_fused(fused.plain, fused.inputs, rounded);
      const Tensors exact = run_fused(fused.plain, fused.inputs, rounded_up);
      for (std::size_t i = 0; i < ours.size(); ++i)
        EXPECT_LE(relative_error(ours[i], exact[i]), 2 * relative_error(torchs[i], exact[i]) + 1e-6)
            << fused.name << " " << dtype << ", result " << i;
    }
}

// Words are pushed down as far as fp16 can tell, whether a loss scale is part of the factor that the loss is
// given or comes from behind it, and a scale that is too large is seen.
inline void expect_gradients_survive_half(c10::Device device) {
  at::manual_seed(3);
  constexpr std::int64_t kRows = 256, kWords = 2048;
  constexpr double kTargets = 262'144, kLossScale = 65536;  // of a batch that this is a part of
  const at::Tensor hidden = (at::randn({kRows, 64}) * 0.1).to(device, at::kHalf),
                   weight = (at::randn({kWords, 64}) * 0.1).to(device, at::kHalf),
                   targets = at::randint(kWords, {kRows}, at::kLong).to(device);
  const auto grads = [&](at::ScalarType dtype, double inside, double outside) {
    const at::Tensor h = hidden.to(dtype, false, /*copy=*/true).requires_grad_(),
                     w = weight.to(dtype, false, /*copy=*/true).requires_grad_();
    const at::Tensor loss =
        ops::linear_cross_entropy(h, w, targets, {.scale = inside, .rows_at_a_time = 100});
    (loss * outside).backward();
    return Tensors{h.grad().to(at::kDouble), w.grad().to(at::kDouble), loss.detach() * outside};
  };
  const Tensors exact = grads(at::kFloat, kLossScale / kTargets, 1);
  for (const Tensors& half :
       {grads(at::kHalf, kLossScale / kTargets, 1), grads(at::kHalf, 1 / kTargets, kLossScale),
        grads(at::kHalf, 1, kLossScale / kTargets)}) {
    EXPECT_EQ(half[1].ne(0).any(1).sum().item<std::int64_t>(), kWords) << "words without a gradient";
    for (std::size_t i = 0; i < exact.size(); ++i)
      EXPECT_LT(relative_error(half[i], exact[i]), 3e-3) << "result " << i;
  }
  EXPECT_FALSE(grads(at::kHalf, 1 / kTargets, 1e12)[1].isfinite().all().item<bool>()) << "an overflow";
}

// A loss over few words, of one row, and of a row in which a word's logit is no number.
inline void expect_few_words_and_nan_are_seen(c10::Device device) {
  at::manual_seed(6);
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16})
    for (const std::int64_t words : {1, 5, 4096})
      for (const std::int64_t rows : {1, 300}) {
        at::Tensor weight = at::randn({words, 16}).to(dtype);
        const at::Tensor hidden = at::randn({rows, 16}).to(dtype),
                         targets = at::randint(words, {rows}, at::kLong);
        const auto run = [&](c10::Device where, at::ScalarType type) {
          const at::Tensor w = weight.to(where, type, false, /*copy=*/true).requires_grad_();
          const at::Tensor h = hidden.to(where, type), t = targets.to(where);
          const at::Tensor loss =
              type == at::kDouble ? plain_loss(h, w, t) : ops::linear_cross_entropy(h, w, t);
          loss.backward();
          return Tensors{loss.detach().to(at::kCPU, at::kDouble), w.grad().to(at::kCPU, at::kDouble)};
        };
        const Tensors ours = run(device, dtype), exact = run(at::kCPU, at::kDouble);
        const std::string which = concat(dtype, ", ", words, " words, ", rows, " rows");
        EXPECT_LE((ours[0] - exact[0]).abs().item<double>(), 2e-2 * (1 + exact[0].item<double>())) << which;
        EXPECT_LE((ours[1] - exact[1]).norm().item<double>(), 2e-2 * (1 + exact[1].norm().item<double>()))
            << which;
        for (const std::int64_t bad : {std::int64_t{0}, words / 2}) {
          const at::Tensor whole = weight.clone();
          weight.narrow(0, bad, std::min<std::int64_t>(8, words - bad)).fill_(NAN);
          EXPECT_TRUE(run(device, dtype)[0].isnan().item<bool>()) << which << ", no number at " << bad;
          weight = whole;
        }
      }
}

// Logits of -inf, blocks and single ones, are those of words that cannot come; a row of nothing else has no
// loss, as with torch.
inline void expect_minus_infinity_is_no_word(c10::Device device) {
  at::manual_seed(4);
  constexpr std::int64_t kRows = 6, kWords = 12'000;  // several turns of every thread
  for (const auto dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    at::Tensor hidden = at::randn({kRows, 16}).to(dtype), weight = (at::randn({kWords, 16}) * 0.3).to(dtype);
    hidden.select(1, 0).fill_(1);  // so that a weight's first column is added to its word's logits
    weight.select(1, 0).narrow(0, 0, 9000).fill_(-INFINITY);
    weight.select(1, 0).narrow(0, 9011, 1).fill_(-INFINITY);
    weight.select(1, 0).narrow(0, 10'000, 1024).fill_(-INFINITY);
    const at::Tensor targets = at::randint(11'100, kWords, {kRows}, at::kLong);
    const auto run = [&] {
      const at::Tensor w = weight.to(device, dtype, false, /*copy=*/true).requires_grad_();
      const at::Tensor loss = ops::linear_cross_entropy(hidden.to(device), w, targets.to(device));
      loss.backward();
      return Tensors{loss.detach().to(at::kCPU, at::kDouble), w.grad().to(at::kCPU, at::kDouble)};
    };
    const Tensors ours = run();
    const at::Tensor w = weight.to(at::kDouble).requires_grad_();
    const at::Tensor loss = plain_loss(hidden.to(at::kDouble), w, targets);
    loss.backward();
    EXPECT_LT(relative_error(ours[0], loss.detach()), 1e-2) << dtype;
    EXPECT_LT(relative_error(ours[1], w.grad()), 1e-2) << dtype;
    EXPECT_TRUE(ours[1].narrow(0, 0, 9000).eq(0).all().item<bool>()) << dtype;
    weight.select(1, 0).fill_(-INFINITY);
    EXPECT_TRUE(run()[0].isnan().item<bool>()) << dtype << ": a row of -inf alone";
  }
}

}  // namespace snug::testing
