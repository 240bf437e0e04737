// The sizes of a Llama-family model: from a preset, or from a Hugging Face config.json.
//
//   LlamaConfig config = load_config("llama2-7b");           // a preset
//   LlamaConfig config = load_config("models/Llama-3-8B");   // a folder with config.json, or that file
#pragma once

#include <cstdint>
#include <string>

#include "snug/base/export.h"
#include "snug/base/json.h"

namespace snug::models {

struct LlamaConfig {
  std::int64_t vocab_size = 0;
  std::int64_t hidden_size = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t max_positions = 0;
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  bool tied_embeddings = false;
  double initializer_range = 0.02;

  bool operator==(const LlamaConfig&) const = default;
};

// A preset's name goes before a folder of that name; write ./tiny for the folder. Throws Error for a model
// that is not there, a key that is unknown, a value of the wrong type or out of range, and every feature that
// is not supported.
SNUG_API LlamaConfig load_config(const std::string& model);

// In Hugging Face spelling; load_config() reads it back. `parse_config` takes what a config.json holds;
// `where` is what errors call it.
SNUG_API Json to_json(const LlamaConfig& config);
SNUG_API LlamaConfig parse_config(Json json, const std::string& where);

// Throws Error unless such a model can be built: positive sizes that divide as they must, and no tensor above
// 2^40 elements.
SNUG_API void validate(const LlamaConfig& config, const std::string& where);

// Trainable parameters; tied embeddings count once. The config must be valid.
SNUG_API std::uint64_t parameter_count(const LlamaConfig& config);

}  // namespace snug::models
