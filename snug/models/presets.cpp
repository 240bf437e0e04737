// Llama sizes as published: Touvron et al. 2023 (Llama 2), Dubey et al. 2024 (Llama 3).
#include "snug/models/presets.h"

namespace snug::models {
namespace {

struct Preset {
  std::string_view name;
  LlamaConfig config;
};

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
};

}  // namespace

std::optional<LlamaConfig> find_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return preset.config;
  }
  return std::nullopt;
}

std::string preset_names() {
  std::string names;
  for (const Preset& preset : kPresets) {
    if (!names.empty()) names += ", ";
    names += preset.name;
  }
  return names;
}

}  // namespace snug::models
