// Llama-like shapes from a seed, for tests that must hold for any of them.
#pragma once

#include <random>

#include "snug/train/config.h"

namespace snug::train {

inline TrainConfig random_shape(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto pick = [&](std::initializer_list<std::int64_t> values) {
    return *(values.begin() + std::uniform_int_distribution<std::size_t>(0, values.size() - 1)(random));
  };
  TrainConfig config;
  const std::int64_t head_dim = pick({8, 16, 24, 32}), kv_heads = pick({1, 2, 3}), group = pick({1, 2, 4});
  config.model_name = "random";
  config.model = {.vocab_size = pick({61, 256, 500}),
                  .hidden_size = kv_heads * group * head_dim,
                  .intermediate_size = pick({40, 96, 200}),
                  .num_layers = pick({1, 2, 3, 5}),
                  .num_heads = kv_heads * group,
                  .num_kv_heads = kv_heads,
                  .head_dim = head_dim,
                  .max_positions = 512,
                  .tied_embeddings = pick({0, 1}) == 1};
  config.micro_batch = pick({1, 2, 3});
  config.batch_size = config.micro_batch * pick({1, 2});
  config.seq_len = pick({1, 7, 32, 65, 130});
  config.steps = 2;
  config.seed = seed;
  return config;
}

}  // namespace snug::train
