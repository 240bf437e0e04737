// What a Session costs a step in which everything is kept: the same loop with and without it, in turns.
//
//   session_cost
#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/Sleep.h>
#include <fmt/format.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/models/language_model.h"
#include "snug/optim/adamw.h"
#include "snug/session/session.h"
#include "snug/train/planning.h"

namespace snug {
namespace {

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

void compare(const char* name, const models::ModelConfig& shape, std::int64_t rows, std::int64_t tokens) {
  train::TrainConfig config;
  config.model_name = name;
  config.model = shape;
  config.device = c10::Device(c10::kCUDA, 0);
  config.precision = train::Precision::Bf16;
  config.batch_size = config.micro_batch = rows;
  config.seq_len = tokens;
  const plan::Plan plan = plan_step(train::make_step(config, {rows}), {.budget_bytes = 130_GiB}).plan;
  const auto model =
      models::make_model(shape, {.tensors = at::TensorOptions(config.device).dtype(at::kBFloat16)});
  optim::AdamW optimizer(model->parameters(), {});
  const at::Tensor batch = at::randint(shape.vocab_size, {rows, tokens}, at::kLong).to(config.device);
  const auto step = [&](Session* session) {
    model->loss_sum(batch, batch, 1e-5, 0).backward();
    optimizer.step(1e-6, {});
    optimizer.zero_grad();
    if (session) session->end_step();
  };
  const auto seconds = [&](Session* session) {
    for (int i = 0; i < 4; ++i) step(session);
    at::cuda::device_synchronize();
    const auto start = std::chrono::steady_clock::now();
    constexpr int kSteps = 10;
    for (int i = 0; i < kSteps; ++i) step(session);
    at::cuda::device_synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / kSteps;
  };
  std::vector<double> without, with;
  for (int round = 0; round < 7; ++round) {
    without.push_back(seconds(nullptr));
    Session session(model->parameters(), {.device = config.device, .plan = plan, .prove = false});
    with.push_back(seconds(&session));
  }
  fmt::print("{:<28} plain {:>7.2f} ms, under a session that keeps all {:>7.2f} ms, {:.4f}\n", name,
             1e3 * median(without), 1e3 * median(with), median(with) / median(without));
}

}  // namespace
}  // namespace snug

int main() {
  using snug::models::ModelConfig;
  ModelConfig large{.vocab_size = 32768,
                    .hidden_size = 2048,
                    .intermediate_size = 5632,
                    .num_layers = 22,
                    .num_heads = 16,
                    .num_kv_heads = 16,
                    .head_dim = 128,
                    .max_positions = 4096};
  snug::compare("1.26B, 2 x 4096", large, 2, 4096);
  ModelConfig small = large;
  small.hidden_size = 1024;
  small.intermediate_size = 2816;
  small.num_layers = 8;
  small.num_heads = small.num_kv_heads = 8;
  snug::compare("hidden 1024, 8 x 1024", small, 8, 1024);
}
