// On Meta every fused operator must allocate what it does on the CPU, forward and backward.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/ops/fused_cases.h"
#include "tests/support/allocation_log.h"

namespace snug::ops {
namespace {

using namespace snug::testing;
using torch::autograd::grad;

at::Tensor input(at::IntArrayRef sizes, at::Device device, at::ScalarType dtype) {
  return at::ones(sizes, at::dtype(dtype).device(device)).set_requires_grad(true);
}

TEST(FusedMeta, LayerNorm) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble})
    expect_same_allocations([=](at::Device device) {
      const at::Tensor x = input({4, 7, 16}, device, dtype), weight = input({16}, device, dtype),
                       bias = input({16}, device, dtype), up = at::ones_like(x);
      return [=] {
        grad({layer_norm(x, weight, bias, 1e-5)}, {x, weight, bias}, {up});
        grad({layer_norm(x, weight, {}, 1e-5)}, {x, weight}, {up});
        grad({layer_norm(x.transpose(0, 1), weight, {}, 1e-5)}, {x, weight}, {up.transpose(0, 1)});
        auto [sum, out] = add_layer_norm(x, x, weight, bias, 1e-5);
        grad({sum, out}, {x, weight, bias}, {up, up});
      };
    });
}

TEST(FusedMeta, NormRope) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    expect_same_allocations([=](at::Device device) {
      const at::Tensor x = input({2, 7, 3, 16}, device, dtype), weight = input({16}, device, dtype),
                       up = at::ones({2, 7, 3, 16}, x.options()).transpose(1, 2);
      const RopeTable table = make_rope_table(7, 16, 1e4, up.options());
      return [=] { grad({norm_rope(x, weight, table, 1e-5)}, {x, weight}, {up}); };
    });
}

TEST(FusedMeta, Gelu) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto form : {GeluForm::Exact, GeluForm::Tanh})
      expect_same_allocations([=](at::Device device) {
        const at::Tensor x = input({4, 7, 16}, device, dtype), up = at::ones_like(x);
        return [=] {
          grad({ops::gelu(x, form)}, {x}, {up});
          grad({ops::gelu(x.transpose(0, 1), form)}, {x}, {up.transpose(0, 1)});
        };
      });
}

TEST(FusedMeta, Embedding) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const auto token_type : {at::kLong, at::kInt})
      expect_same_allocations([=](at::Device device) {
        const at::Tensor weight = input({50, 16}, device, dtype);
        const at::Tensor tokens = at::ones({4, 7}, at::dtype(token_type).device(device));
        const at::Tensor up = at::ones({4, 7, 16}, weight.options().requires_grad(false));
        return [=] {
          grad({ops::embedding(weight, tokens)}, {weight}, {up});
          grad({ops::embedding(weight, tokens.t())}, {weight}, {up.transpose(0, 1)});
        };
      });
}

}  // namespace
}  // namespace snug::ops
