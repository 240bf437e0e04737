// The sizes of a model and the family that it belongs to: from a preset, or from a Hugging Face config.json.
//
//   ModelConfig config = load_config("llama2-7b");           // a preset
//   ModelConfig config = load_config("models/Llama-3-8B");   // a folder with config.json, or that file
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/ops/rope.h"

namespace snug::models {

// Mistral differs from Llama in name and defaults alone. Qwen2 has biases on queries, keys and values, Qwen3
// norms on queries and keys instead. GPT-2 is another model: learned positions, layer norms, biases, no gate.
enum class Family { Llama, Mistral, Qwen2, Qwen3, Gpt2 };

struct ModelConfig {
  Family family = Family::Llama;
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_positions = 0;
  double rope_theta = 10000.0;  // with rope_scaling: of all families but GPT-2
  std::optional<ops::RopeScaling> rope_scaling = {};
  double norm_eps = 1e-5;
  bool tied_embeddings = false;
  double initializer_range = 0.02;
  std::int64_t window = 0;        // tokens that a layer which slides sees, the query's own included
  std::vector<bool> slides = {};  // by layer; empty where window is 0, as then none does

  std::int64_t window_of(std::int64_t layer) const {  // 0: it sees all
    return window > 0 && slides[static_cast<std::size_t>(layer)] ? window : 0;
  }
  bool operator==(const ModelConfig&) const = default;
};

// The keys of a config.json that nobody here knows: authors write their own, and later versions of
// transformers new ones, which mean nothing as null or false.
struct UnknownKeys {
  std::vector<std::string> let_pass = {};  // in: may stand there with any value
  std::vector<std::string> ignored = {};   // out: "key (value)", each that was passed over
};

// A preset's name goes before a folder of that name; write ./tiny for the folder. Throws Error for a model
// that is not there, a key that is unknown and neither null nor false nor let pass, a value of the wrong type
// or out of range, and every feature that is not supported.
SNUG_API ModelConfig load_config(const std::string& model, UnknownKeys* unknown = nullptr);

// In Hugging Face spelling; load_config() reads it back. `parse_config` takes what a config.json holds;
// `where` is what errors call it.
SNUG_API Json to_json(const ModelConfig& config);
SNUG_API ModelConfig parse_config(Json json, const std::string& where, UnknownKeys* unknown = nullptr);

// Throws Error unless such a model can be built: positive sizes that divide as they must, and no tensor above
// 2^40 elements.
SNUG_API void validate(const ModelConfig& config, const std::string& where);

// Trainable parameters; tied embeddings count once. The config must be valid.
SNUG_API std::uint64_t parameter_count(const ModelConfig& config);

}  // namespace snug::models
