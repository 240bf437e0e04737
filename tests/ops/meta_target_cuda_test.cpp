// What operators take on a GPU beside their arguments and results, against what they take on Meta where that
// stands for one. Skips loudly where there is no GPU.
#include <ATen/Functions.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <functional>
#include <optional>
#include <string>

#include "snug/base/bytes.h"
#include "snug/hooks/meta_target.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/tracker.h"
#include "snug/ops/attention.h"
#include "snug/ops/embedding.h"
#include "snug/ops/layer_norm.h"
#include "snug/ops/linear_cross_entropy.h"
#include "snug/ops/norm_rope.h"
#include "snug/ops/rms_norm.h"
#include "snug/ops/sum_rows.h"
#include "snug/ops/swiglu.h"

namespace snug::ops {
namespace {

using Step = std::function<void(c10::Device)>;

std::uint64_t peak_on(c10::Device device, const Step& run) {
  const hooks::MetaTargetScope target(c10::kCUDA);
  run(device);  // libraries take the workspaces that they keep
  memory::Tracker tracker({.device = device});
  const std::uint64_t before = tracker.live_bytes();
  run(device);
  return tracker.peak_bytes() - before;
}

// The allocator rounds each of a handful of blocks up to 512 bytes.
constexpr double kRoundedUp = 16 * 1024;

class MetaTargetCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "NO GPU: what operators take there was not compared";
    memory::empty_cuda_cache();
    grew_before_ = memory::let_cuda_segments_grow(true);  // else a block may be 1 MiB more than was asked for
  }
  void TearDown() override {
    if (!grew_before_) return;
    memory::empty_cuda_cache();
    memory::let_cuda_segments_grow(*grew_before_);
  }

  void expect_same(const std::string& what, const Step& run) {
    const c10::Device gpu(c10::kCUDA, 0);
    const std::uint64_t measured = peak_on(gpu, run), predicted = peak_on(c10::kMeta, run);
    EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(predicted), kRoundedUp)
        << what << ": " << format_bytes(measured) << " on the GPU, " << format_bytes(predicted) << " on Meta";
  }

 private:
  std::optional<bool> grew_before_;
};

at::Tensor bf16(at::IntArrayRef sizes, c10::Device device) {
  return at::empty(sizes, at::TensorOptions(device).dtype(at::kBFloat16));
}

TEST_F(MetaTargetCuda, AttentionTakesItsWorkspace) {
  struct Shape {
    std::int64_t batch, tokens, heads, kv_heads, head_dim, window = 0;
  };
  for (const Shape& shape :
       {Shape{1, 4096, 16, 16, 128}, Shape{1, 4096, 16, 16, 128, 1024}, Shape{2, 4096, 32, 8, 128, 512},
        Shape{8, 4096, 16, 16, 128}, Shape{1, 32768, 16, 16, 128}, Shape{8, 4096, 32, 8, 128},
        Shape{16, 2048, 16, 16, 64}, Shape{2, 768, 8, 2, 64}}) {
    const auto heads = [&](c10::Device device, std::int64_t count) {
      return bf16({shape.batch, shape.tokens, count, shape.head_dim}, device).transpose(1, 2);
    };
    expect_same(fmt::format("{} x {} tokens, {} heads of {}, {} of keys, window {}", shape.batch,
                            shape.tokens, shape.heads, shape.head_dim, shape.kv_heads, shape.window),
                [&](c10::Device device) {
                  const at::Tensor query = heads(device, shape.heads), key = heads(device, shape.kv_heads),
                                   value = heads(device, shape.kv_heads), grad = heads(device, shape.heads);
                  constexpr auto kBackend = AttentionBackend::Default;
                  const auto [out, lse] =
                      attention_with_lse(query, key, value, true, 0.1, shape.window, kBackend);
                  attention_backward(grad, query, key, value, out, lse, true, 0.1, shape.window, kBackend);
                });
  }
}

TEST_F(MetaTargetCuda, AttentionCopiesAQueryOnlyIfHeadsComeBeforeTokens) {
  constexpr auto kBackend = AttentionBackend::Default;
  expect_same("one matrix for queries, keys and values", [&](c10::Device device) {
    const at::Tensor packed = bf16({16, 1024, 3, 16, 64}, device), grad = bf16({16, 1024, 16, 64}, device);
    const auto part = [&](std::int64_t which) { return packed.select(2, which).transpose(1, 2); };
    const auto [out, lse] = attention_with_lse(part(0), part(1), part(2), true, 0.1, 0, kBackend);
    attention_backward(grad.transpose(1, 2), part(0), part(1), part(2), out, lse, true, 0.1, 0, kBackend);
  });
  expect_same("heads before tokens", [&](c10::Device device) {
    const at::Tensor heads = bf16({16, 16, 1024, 64}, device);
    attention_with_lse(heads, heads, heads, true, 0.1, 0, kBackend);
  });
}

TEST_F(MetaTargetCuda, BiasesTakeTheirPartialSums) {
  for (const std::int64_t rows : {5, 1000, 16384})
    for (const std::int64_t width : {3, 1024, 4096})
      expect_same(fmt::format("{} rows of {}", rows, width), [&](c10::Device device) {
        sum_rows(bf16({rows, width}, device), at::kFloat);
      });
}

TEST_F(MetaTargetCuda, NormsTakeTheirPartialSums) {
  for (const std::int64_t rows : {100, 4096, 32768})
    for (const std::int64_t width : {1024, 2048, 4096})
      expect_same(fmt::format("{} rows of {}", rows, width), [&](c10::Device device) {
        const at::Tensor x = bf16({rows, width}, device), weight = bf16({width}, device);
        const auto [out, rstd] = rms_norm_with_rstd(x, weight, 1e-5);
        rms_norm_backward(out, {}, x, weight, rstd);
      });
  for (const bool has_bias : {false, true})
    expect_same(has_bias ? "layer_norm" : "layer_norm without bias", [&](c10::Device device) {
      const at::Tensor x = bf16({4096, 1024}, device), weight = bf16({1024}, device);
      const auto bias = has_bias ? std::optional(weight) : std::nullopt;
      const auto [out, mean, rstd] = layer_norm_with_statistics(x, weight, bias, 1e-5);
      layer_norm_backward(out, {}, x, weight, mean, rstd, has_bias);
      add_layer_norm_with_statistics(x, out, weight, bias, 1e-5);
      layer_norm_backward(out, x, x, weight, mean, rstd, has_bias);
    });
  for (const std::int64_t head_dim : {64, 80, 128, 520})
    expect_same(fmt::format("norm_rope of {}", head_dim), [&](c10::Device device) {
      const at::Tensor x = bf16({4, 300, 8, head_dim}, device), weight = bf16({head_dim}, device),
                       cos = bf16({300, head_dim / 2}, device), sin = bf16({300, head_dim / 2}, device);
      const auto [out, rstd] = norm_rope_with_rstd(x, weight, cos, sin, 1e-5);
      norm_rope_backward(out, x, weight, cos, sin, rstd);
    });
}

TEST_F(MetaTargetCuda, TheLossHeadTakesOnePieceOfLogits) {
  for (const std::int64_t rows : {4096, 32768})
    for (const std::int64_t vocabulary : {32768, 50304, 50257})
      expect_same(fmt::format("{} rows, {} words", rows, vocabulary), [&](c10::Device device) {
        const at::Tensor hidden = bf16({rows, 1024}, device), weight = bf16({vocabulary, 1024}, device);
        const at::Tensor targets = at::zeros({rows}, at::TensorOptions(device).dtype(at::kLong));
        const std::int64_t at_a_time = rows / usual_pieces(rows, vocabulary, at::kBFloat16);
        linear_cross_entropy_with_grads(hidden, weight, targets, 1.0, -100, at_a_time, true, true);
      });
}

// With what CUB's sort takes to run.
TEST_F(MetaTargetCuda, EmbeddingsTakeWhatTheySort) {
  for (const std::int64_t rows : {100, 4096, 5000, 32768, 100000}) {
    const auto run = [&](c10::Device device) {
      const at::Tensor weight = bf16({32768, 1024}, device);
      const at::Tensor tokens = at::zeros({rows}, at::TensorOptions(device).dtype(at::kLong));
      const at::Tensor out = ops::embedding(weight, tokens);
      ops::embedding_backward(out, tokens, weight.size(0));
    };
    expect_same(fmt::format("{} rows", rows), run);
  }
}

}  // namespace
}  // namespace snug::ops
