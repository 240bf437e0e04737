// The sketches that the torch-free planner is tested with (tests/plans) are those of these steps. With
// SNUG_WRITE_SKETCHES set, they are written again.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "snug/capture/sketch.h"
#include "snug/hooks/meta_target.h"
#include "snug/models/llama.h"
#include "snug/optim/adamw.h"
#include "snug/tape/region.h"
#include "snug/trace/sketch_file.h"

namespace snug::capture {
namespace {

trace::Sketch llama(const models::ModelConfig& config, at::ScalarType dtype, at::IntArrayRef batch,
                    int passes) {
  return sketch(
      [&](memory::Tracker& tracker) {
        models::Llama model(config, at::TensorOptions(c10::kMeta).dtype(dtype));
        tracker.adopt(model->parameters(), trace::Category::Parameter);
        std::unique_ptr<optim::AdamW> optimizer;
        {
          auto claim = tracker.claim(trace::Category::Optimizer);
          optimizer = std::make_unique<optim::AdamW>(model->parameters(), optim::AdamWOptions{});
        }
        const auto tokens = at::empty(batch, at::TensorOptions(at::kLong).device(c10::kMeta));
        for (int pass = 0; pass < passes; ++pass) model->loss_sum(tokens, tokens).backward();
        optimizer->step();
        optimizer->zero_grad();
      },
      /*workspaces=*/!hooks::meta_stands_for_cuda());
}

trace::Sketch llama_on_cpu() {
  return llama({.vocab_size = 512,
                .hidden_size = 128,
                .intermediate_size = 344,
                .num_layers = 4,
                .num_heads = 4,
                .num_kv_heads = 2,
                .head_dim = 32,
                .max_positions = 256},
               at::kFloat, {4, 128}, 2);
}

trace::Sketch llama_on_gpu() {
  const hooks::MetaTargetScope target(c10::kCUDA);
  return llama({.vocab_size = 32768,
                .hidden_size = 1024,
                .intermediate_size = 2816,
                .num_layers = 6,
                .num_heads = 8,
                .num_kv_heads = 8,
                .head_dim = 128,
                .max_positions = 2048},
               at::kBFloat16, {4, 2048}, 1);
}

// With writes in place, and a number of channels that doubles.
trace::Sketch convolutions() {
  return sketch([](memory::Tracker&) {
    std::vector<at::Tensor> weights;
    const auto add_weight = [&](std::int64_t out, std::int64_t in) {
      weights.push_back(at::empty({out, in, 3, 3}, c10::kMeta).requires_grad_());
    };
    for (std::int64_t in = 3, out = 16; out <= 256; in = out, out *= 2) {
      add_weight(out, in);
      add_weight(out, out);
    }
    at::Tensor x = at::empty({8, 3, 64, 64}, c10::kMeta);
    for (std::size_t i = 0; i < weights.size(); i += 2)
      x = region("stage" + std::to_string(i / 2), [&] {
        const at::Tensor half = at::conv2d(x, weights[i], {}, 2, 1).relu_();
        return at::gelu(at::conv2d(half, weights[i + 1], {}, 1, 1)).mul_(0.5);
      });
    region("loss", [&] { return x.square().mean(); }).backward();
    for (at::Tensor& weight : weights) weight.mutable_grad().reset();
  });
}

TEST(SketchFiles, AreOfTheseSteps) {
  at::set_num_threads(1);
  const std::pair<const char*, std::function<trace::Sketch()>> files[] = {
      {"llama_on_cpu", llama_on_cpu}, {"llama_on_gpu", llama_on_gpu}, {"convolutions", convolutions}};
  for (const auto& [name, make] : files) {
    const std::filesystem::path path = std::filesystem::path(SNUG_PLANS) / (std::string(name) + ".sketch");
    if (std::getenv("SNUG_WRITE_SKETCHES")) trace::save_sketch(make(), path);
    EXPECT_EQ(trace::load_sketch(path), make()) << name;
    EXPECT_LT(std::filesystem::file_size(path), 100'000u);
  }
}

}  // namespace
}  // namespace snug::capture
