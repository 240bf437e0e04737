// Sizes as published: Radford et al. 2019 (GPT-2), Touvron et al. 2023 (Llama 2), Dubey et al. 2024 (Llama
// 3), Qwen Team 2024 (Qwen2.5) and 2025 (Qwen3).
#include "snug/models/presets.h"

namespace snug::models {
namespace {

struct Preset {
  std::string_view name;
  ModelConfig config;
};

constexpr ModelConfig gpt2(std::int64_t hidden, std::int64_t layers, std::int64_t heads) {
  return {.family = Family::Gpt2,
          .vocab_size = 50257,
          .hidden_size = hidden,
          .intermediate_size = 4 * hidden,
          .num_layers = layers,
          .num_heads = heads,
          .num_kv_heads = heads,
          .head_dim = hidden / heads,
          .max_positions = 1024,
          .tied_embeddings = true};
}

struct QwenSizes {
  std::int64_t hidden, intermediate, layers, heads, kv_heads, head_dim;
  bool tied;
};

constexpr ModelConfig qwen(Family family, std::int64_t vocabulary, std::int64_t positions,
                           const QwenSizes& sizes) {
  return {.family = family,
          .vocab_size = vocabulary,
          .hidden_size = sizes.hidden,
          .intermediate_size = sizes.intermediate,
          .num_layers = sizes.layers,
          .num_heads = sizes.heads,
          .num_kv_heads = sizes.kv_heads,
          .head_dim = sizes.head_dim,
          .max_positions = positions,
          .rope_theta = 1e6,
          .norm_eps = 1e-6,
          .tied_embeddings = sizes.tied};
}

constexpr ModelConfig qwen2(std::int64_t vocabulary, const QwenSizes& sizes) {
  return qwen(Family::Qwen2, vocabulary, 32768, sizes);
}

constexpr ModelConfig qwen3(const QwenSizes& sizes) {
  return qwen(Family::Qwen3, 151936, 40960, sizes);
}

constexpr Preset kPresets[] = {
    // Small enough for a CPU; its tokens are bytes.
    {"tiny",
     {.vocab_size = 256,
      .hidden_size = 256,
      .intermediate_size = 688,
      .num_layers = 8,
      .num_heads = 4,
      .num_kv_heads = 2,
      .head_dim = 64,
      .max_positions = 4096,
      .tied_embeddings = true}},
    // The model of the benchmarks.
    {"llama-1.3b",
     {.vocab_size = 32768,
      .hidden_size = 2048,
      .intermediate_size = 5632,
      .num_layers = 22,
      .num_heads = 16,
      .num_kv_heads = 16,
      .head_dim = 128,
      .max_positions = 32768}},
    {"llama2-7b",
     {.vocab_size = 32000,
      .hidden_size = 4096,
      .intermediate_size = 11008,
      .num_layers = 32,
      .num_heads = 32,
      .num_kv_heads = 32,
      .head_dim = 128,
      .max_positions = 4096}},
    {"llama3-8b",
     {.vocab_size = 128256,
      .hidden_size = 4096,
      .intermediate_size = 14336,
      .num_layers = 32,
      .num_heads = 32,
      .num_kv_heads = 8,
      .head_dim = 128,
      .max_positions = 8192,
      .rope_theta = 500000.0}},
    {"gpt2", gpt2(768, 12, 12)},
    {"gpt2-medium", gpt2(1024, 24, 16)},
    {"gpt2-large", gpt2(1280, 36, 20)},
    {"gpt2-xl", gpt2(1600, 48, 25)},
    {"qwen2.5-0.5b", qwen2(151936, {896, 4864, 24, 14, 2, 64, true})},
    {"qwen2.5-1.5b", qwen2(151936, {1536, 8960, 28, 12, 2, 128, true})},
    {"qwen2.5-3b", qwen2(151936, {2048, 11008, 36, 16, 2, 128, true})},
    {"qwen2.5-7b", qwen2(152064, {3584, 18944, 28, 28, 4, 128, false})},
    {"qwen3-0.6b", qwen3({1024, 3072, 28, 16, 8, 128, true})},
    {"qwen3-1.7b", qwen3({2048, 6144, 28, 16, 8, 128, true})},
    {"qwen3-4b", qwen3({2560, 9728, 36, 32, 8, 128, true})},
    {"qwen3-8b", qwen3({4096, 12288, 36, 32, 8, 128, false})},
};

}  // namespace

std::optional<ModelConfig> find_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.config;
  }
  return std::nullopt;
}

std::vector<std::string> presets() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

std::string preset_names() {
  std::string names;
  for (const std::string& name : presets()) {
    if (!names.empty()) names += ", ";
    names += name;
  }
  return names;
}

}  // namespace snug::models
