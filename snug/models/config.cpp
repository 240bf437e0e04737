// Hugging Face's keys, their defaults, and what each may be here. Both spellings of rotary settings are read:
// rope_theta and rope_scaling at the top, or rope_parameters{rope_theta, rope_type}.
#include "snug/models/config.h"

#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "snug/base/error.h"
#include "snug/models/presets.h"

namespace snug::models {
namespace {

// Written by Hugging Face or by hub authors; none changes the model's sizes or its arithmetic in training.
constexpr const char* kIrrelevant[] = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "bos_token_id",
    "eos_token_id",
    "is_llama_config",
    "pad_token_id",
    "pretraining_tp",
    "unk_token_id",
    "use_cache",
    "max_sequence_length",
    "transformers.js_config",
    "transformers_version",
};

constexpr std::int64_t kLargestTensor = std::int64_t{1} << 40;
constexpr std::int64_t kMostLayers = std::int64_t{1} << 16;

template <class T>
void expect(const JsonReader& json, const std::string& where, const char* key, const T& only) {
  const T got = json.optional<T>(key, only);
  check(got == only, where, ": ", key, " must be ", Json(only).dump(), ", got ", Json(got).dump(),
        "; nothing else is supported");
}

// The object under rope_scaling or rope_parameters: only the default kind, under either name of that key.
void check_rope_kind(const JsonReader& rope, const std::string& where) {
  for (const char* key : {"rope_type", "type"}) {
    const auto kind = rope.optional<std::string>(key, "default");
    check(kind == "default", where, ": ", key, " '", kind, "' is not supported; expected 'default' or none");
  }
  expect(rope, where, "partial_rotary_factor", 1.0);
}

double read_rope_theta(const JsonReader& json, const std::string& where) {
  double theta = json.optional<double>("rope_theta", LlamaConfig{}.rope_theta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!json.has(key)) continue;
    const std::string inner_where = where + ": " + key;
    const JsonReader rope(json.required<Json>(key), inner_where);
    check_rope_kind(rope, inner_where);
    const double inner = rope.optional<double>("rope_theta", theta);
    check(!json.has("rope_theta") || inner == theta, where, ": rope_theta is ", theta, " but ", key, " says ",
          inner, "; expected the same value or only one of them");
    theta = inner;
    rope.refuse_unread();
  }
  return theta;
}

void refuse_other_architectures(const JsonReader& json, const std::string& where) {
  const auto type = json.required<std::string>("model_type");
  check(type == "llama", where, ": model_type '", type, "' is not supported; expected 'llama'");
  const Json names = json.optional<Json>("architectures", Json::array());
  check(names.is_array() && (names.empty() || names == Json::array({"LlamaForCausalLM"})), where,
        ": architectures must be [\"LlamaForCausalLM\"], got ", names.dump());
  expect<std::string>(json, where, "hidden_act", "silu");
  expect(json, where, "attention_bias", false);
  expect(json, where, "mlp_bias", false);
  expect(json, where, "attention_dropout", 0.0);
  expect(json, where, "rope_interleaved", false);
}

// Of published weights, under the old key or the new; what training uses is --precision's to say.
void check_dtype(const JsonReader& json, const std::string& where) {
  const auto old = json.optional<std::string>("torch_dtype", "float32");
  const auto now = json.optional<std::string>("dtype", old);
  for (const auto& dtype : {old, now})
    check(dtype == "float32" || dtype == "bfloat16" || dtype == "float16" || dtype == "auto", where,
          ": dtype must be float32, bfloat16 or float16, got '", dtype, "'");
  check(!json.has("torch_dtype") || old == now, where, ": torch_dtype is '", old, "' but dtype is '", now,
        "'; expected the same or only one of them");
}

void check_positive(std::int64_t value, const char* key, const std::string& where) {
  check(value >= 1, where, ": ", key, " must be at least 1, got ", value);
}

void check_tensor(std::int64_t rows, std::int64_t columns, const char* name, const std::string& where) {
  check(rows <= kLargestTensor / columns, where, ": the ", name, " [", rows, ", ", columns,
        "] would hold more than 2^40 elements; check the sizes");
}

}  // namespace

LlamaConfig load_config(const std::string& model) {
  if (const auto preset = find_preset(model)) return *preset;
  std::error_code error;
  std::filesystem::path path = model;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  const bool is_file = std::filesystem::is_regular_file(path, error);
  check(error != std::errc::permission_denied, "--model ", path.string(), ": ", error.message());
  check(is_file, "no model ", model, ": expected a preset (", preset_names(),
        "), a folder with config.json, or a config.json");
  return parse_config(read_json(path), path.string());
}

LlamaConfig parse_config(Json object, const std::string& where) {
  const JsonReader json(std::move(object), where);
  refuse_other_architectures(json, where);
  LlamaConfig config;
  config.vocab_size = json.required<std::int64_t>("vocab_size");
  config.hidden_size = json.required<std::int64_t>("hidden_size");
  config.intermediate_size = json.required<std::int64_t>("intermediate_size");
  config.num_layers = json.required<std::int64_t>("num_hidden_layers");
  config.num_heads = json.required<std::int64_t>("num_attention_heads");
  config.num_kv_heads = json.optional<std::int64_t>("num_key_value_heads", config.num_heads);
  check_positive(config.num_heads, "num_attention_heads", where);
  if (json.has("head_dim")) {
    config.head_dim = json.required<std::int64_t>("head_dim");
  } else {
    check(config.hidden_size % config.num_heads == 0, where, ": hidden_size ", config.hidden_size,
          " is not a multiple of num_attention_heads ", config.num_heads, "; change one or give head_dim");
    config.head_dim = config.hidden_size / config.num_heads;
  }
  config.max_positions = json.optional<std::int64_t>("max_position_embeddings", 2048);
  config.rope_theta = read_rope_theta(json, where);
  config.norm_eps = json.optional<double>("rms_norm_eps", 1e-6);
  config.tied_embeddings = json.optional<bool>("tie_word_embeddings", false);
  config.initializer_range = json.optional<double>("initializer_range", 0.02);

  check_dtype(json, where);
  for (const char* key : kIrrelevant) json.ignore(key);
  json.refuse_unread();
  validate(config, where);
  return config;
}

void validate(const LlamaConfig& config, const std::string& where) {
  check_positive(config.vocab_size, "vocab_size", where);
  check_positive(config.hidden_size, "hidden_size", where);
  check_positive(config.intermediate_size, "intermediate_size", where);
  check_positive(config.num_layers, "num_hidden_layers", where);
  check_positive(config.num_heads, "num_attention_heads", where);
  check_positive(config.num_kv_heads, "num_key_value_heads", where);
  check_positive(config.head_dim, "head_dim", where);
  check_positive(config.max_positions, "max_position_embeddings", where);
  check(config.num_layers <= kMostLayers, where, ": num_hidden_layers must be at most ", kMostLayers,
        ", got ", config.num_layers);
  check(config.num_heads % config.num_kv_heads == 0, where, ": num_attention_heads ", config.num_heads,
        " is not a multiple of num_key_value_heads ", config.num_kv_heads);
  check(config.head_dim % 2 == 0, where, ": head_dim must be even for rotary positions, got ",
        config.head_dim);

  check_tensor(config.vocab_size, config.hidden_size, "embedding", where);
  check_tensor(config.intermediate_size, config.hidden_size, "MLP weight", where);
  check_tensor(config.num_heads, config.head_dim, "heads", where);
  check_tensor(config.num_heads * config.head_dim, config.hidden_size, "query weight", where);
  check_tensor(config.max_positions, config.head_dim, "rotary table", where);

  check(std::isfinite(config.rope_theta) && config.rope_theta > 0, where,
        ": rope_theta must be above 0, got ", config.rope_theta);
  check(std::isfinite(config.norm_eps) && config.norm_eps > 0, where, ": rms_norm_eps must be above 0, got ",
        config.norm_eps);
  check(std::isfinite(config.initializer_range) && config.initializer_range >= 0, where,
        ": initializer_range must be at least 0, got ", config.initializer_range);
}

std::uint64_t parameter_count(const LlamaConfig& config) {
  const std::int64_t query = config.num_heads * config.head_dim * config.hidden_size;
  const std::int64_t key = config.num_kv_heads * config.head_dim * config.hidden_size;
  const std::int64_t mlp = 3 * config.hidden_size * config.intermediate_size;
  const std::int64_t block = 2 * query + 2 * key + mlp + 2 * config.hidden_size;
  const std::int64_t embedding = config.vocab_size * config.hidden_size;
  const std::int64_t embeddings = config.tied_embeddings ? embedding : 2 * embedding;
  return static_cast<std::uint64_t>(embeddings + config.num_layers * block + config.hidden_size);
}

Json to_json(const LlamaConfig& config) {
  return Json{
      {"architectures", Json::array({"LlamaForCausalLM"})},
      {"model_type", "llama"},
      {"hidden_act", "silu"},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"intermediate_size", config.intermediate_size},
      {"num_hidden_layers", config.num_layers},
      {"num_attention_heads", config.num_heads},
      {"num_key_value_heads", config.num_kv_heads},
      {"head_dim", config.head_dim},
      {"max_position_embeddings", config.max_positions},
      {"rope_theta", config.rope_theta},
      {"rms_norm_eps", config.norm_eps},
      {"tie_word_embeddings", config.tied_embeddings},
      {"initializer_range", config.initializer_range},
      {"attention_bias", false},
      {"mlp_bias", false},
  };
}

}  // namespace snug::models
