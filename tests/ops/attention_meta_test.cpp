// On Meta the operators must look and allocate like their CPU kernels.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include "snug/ops/attention.h"
#include "snug/ops/rope.h"
#include "tests/support/allocation_log.h"

namespace snug::ops {
namespace {

using snug::testing::expect_same_allocations;

struct Shape {
  std::int64_t batch, heads, kv_heads, tokens, key_tokens, head_dim;
  bool causal;
  std::int64_t window = 0;
};

const Shape kShapes[] = {
    {1, 1, 1, 1, 1, 8, true},       {2, 4, 4, 33, 33, 16, true},    {2, 4, 2, 33, 33, 16, true},
    {1, 6, 2, 17, 40, 24, false},   {1, 4, 1, 191, 191, 8, true},   {1, 2, 2, 192, 192, 8, false},
    {1, 2, 1, 600, 700, 8, false},  {1, 2, 1, 767, 767, 8, true},   {1, 2, 1, 768, 768, 8, true},
    {1, 2, 1, 900, 300, 32, false}, {2, 4, 2, 33, 33, 16, true, 5}, {2, 4, 2, 900, 900, 8, true, 300}};

struct Inputs {
  at::Tensor query, key, value, grad;
};

// Laid out as projections leave them, [batch, tokens, heads, head_dim]; the gradient too unless asked
// otherwise.
Inputs make_inputs(const Shape& s, const at::TensorOptions& options, bool grad_by_head = false) {
  auto make = [&](std::int64_t heads, std::int64_t tokens) {
    return at::ones({s.batch, tokens, heads, s.head_dim}, options).transpose(1, 2);
  };
  Inputs in{make(s.heads, s.tokens), make(s.kv_heads, s.key_tokens), make(s.kv_heads, s.key_tokens),
            make(s.heads, s.tokens)};
  if (grad_by_head) in.grad = in.grad.contiguous();
  return in;
}

void expect_same_geometry(const at::Tensor& cpu, const at::Tensor& meta) {
  EXPECT_EQ(cpu.sizes(), meta.sizes());
  EXPECT_EQ(cpu.strides(), meta.strides());
  EXPECT_EQ(cpu.scalar_type(), meta.scalar_type());
  EXPECT_TRUE(meta.is_meta());
}

TEST(AttentionMeta, GeometryEqualsCpu) {
  at::set_num_threads(1);
  for (auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const auto& shape : kShapes) {
      auto cpu = make_inputs(shape, at::dtype(dtype)),
           meta = make_inputs(shape, at::dtype(dtype).device(at::kMeta));
      auto [out, lse] = attention_with_lse(cpu.query, cpu.key, cpu.value, shape.causal, 0.5, shape.window,
                                           AttentionBackend::Default);
      auto [meta_out, meta_lse] = attention_with_lse(meta.query, meta.key, meta.value, shape.causal, 0.5,
                                                     shape.window, AttentionBackend::Default);
      expect_same_geometry(out, meta_out);
      expect_same_geometry(lse, meta_lse);
      auto grads = attention_backward(cpu.grad, cpu.query, cpu.key, cpu.value, out, lse, shape.causal, 0.5,
                                      shape.window, AttentionBackend::Default);
      auto meta_grads = attention_backward(meta.grad, meta.query, meta.key, meta.value, meta_out, meta_lse,
                                           shape.causal, 0.5, shape.window, AttentionBackend::Default);
      expect_same_geometry(std::get<0>(grads), std::get<0>(meta_grads));
      expect_same_geometry(std::get<1>(grads), std::get<1>(meta_grads));
      expect_same_geometry(std::get<2>(grads), std::get<2>(meta_grads));
    }
  }
}

bool has_tile_registers() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  const std::string text(std::istreambuf_iterator<char>(cpuinfo), {});
  return text.find(" amx_tile") != std::string::npos;
}

TEST(AttentionMeta, ForwardAllocatesLikeCpu) {
  std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble};
  // With tile registers the CPU kernel packs 16-bit keys and values into scratch that Meta does not model.
  if (!has_tile_registers()) dtypes.push_back(at::kBFloat16);
  for (auto dtype : dtypes) {
    for (const auto& shape : kShapes) {
      expect_same_allocations([&](at::Device device) {
        auto in = make_inputs(shape, at::dtype(dtype).device(device));
        return [=] {
          attention_with_lse(in.query, in.key, in.value, shape.causal, 0.5, shape.window,
                             AttentionBackend::Default);
        };
      });
    }
  }
}

void expect_backward_allocates_like_cpu(AttentionBackend backend, at::ScalarType dtype) {
  for (bool grad_by_head : {false, true}) {
    for (const auto& shape : kShapes) {
      expect_same_allocations([&](at::Device device) {
        auto in = make_inputs(shape, at::dtype(dtype).device(device), grad_by_head);
        for (auto* tensor : {&in.query, &in.key, &in.value}) tensor->set_requires_grad(true);
        return [=] {
          auto out = attention(in.query, in.key, in.value,
                               {.causal = shape.causal, .window = shape.window, .backend = backend});
          torch::autograd::grad({out}, {in.query, in.key, in.value}, {in.grad});
        };
      });
    }
  }
}

TEST(AttentionMeta, ForwardAndBackwardAllocateLikeCpu) {
  for (auto dtype : {at::kFloat, at::kDouble})
    expect_backward_allocates_like_cpu(AttentionBackend::Default, dtype);
}

TEST(AttentionMeta, PlainOperatorsAllocateLikeCpu) {
  for (const auto backend : {AttentionBackend::Blockwise, AttentionBackend::Quadratic})
    for (auto dtype : {at::kFloat, at::kBFloat16}) expect_backward_allocates_like_cpu(backend, dtype);
}

TEST(RopeMeta, AllocatesLikeCpu) {
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_same_allocations([&](at::Device device) {
      auto options = at::dtype(dtype).device(device);
      auto x = at::ones({2, 5, 3, 16}, options).transpose(1, 2).set_requires_grad(true);
      auto grad = at::ones({2, 5, 3, 16}, options).transpose(1, 2);
      return [=] {
        auto out = rope(x, make_rope_table(5, 16, 10000.0, options));
        torch::autograd::grad({out}, {x}, {grad});
      };
    });
  }
}

}  // namespace
}  // namespace snug::ops
