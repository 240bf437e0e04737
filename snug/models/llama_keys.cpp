// Llama's config.json and those of the families that took its keys over. Both spellings of rotary settings
// are read: rope_theta and rope_scaling at the top, or rope_parameters{rope_theta, rope_type, ...}.
#include <string>

#include "snug/base/error.h"
#include "snug/models/config_keys.h"

namespace snug::models {
namespace {

using ops::RopeScaling;

// What transformers takes for a key that is missing.
struct Defaults {
  std::int64_t max_positions = 0;
  std::int64_t kv_heads = 0;  // 0: as many as there are heads
  std::int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  std::optional<std::int64_t> sliding_window;
};

Defaults defaults(Family family) {
  switch (family) {
    case Family::Mistral:
      return {.max_positions = 131072, .kv_heads = 8, .sliding_window = 4096};
    case Family::Qwen2:
      return {.max_positions = 32768, .kv_heads = 32};
    case Family::Qwen3:
      return {.max_positions = 32768, .kv_heads = 32, .head_dim = 128};
    default:
      return {.max_positions = 2048};
  }
}

// The object under rope_scaling or rope_parameters, whose kind has two names.
std::optional<RopeScaling> read_scaling(const JsonReader& rope, const std::string& where) {
  const auto old_kind = rope.optional<std::string>("type", "default");
  const auto kind = rope.optional<std::string>("rope_type", old_kind);
  check(!rope.has("type") || kind == old_kind, where, ": rope_type is '", kind, "' but type is '", old_kind,
        "'; expected the same or only one of them");
  expect(rope, where, "partial_rotary_factor", 1.0);
  if (kind == "default") return std::nullopt;
  check(kind == "linear" || kind == "llama3", where, ": rope_type '", kind,
        "' is not supported; expected 'default', 'linear', 'llama3' or none");
  RopeScaling scaling{.factor = rope.required<double>("factor")};
  if (kind == "llama3") {
    scaling.kind = RopeScaling::Kind::Llama3;
    scaling.low_turns = rope.required<double>("low_freq_factor");
    scaling.high_turns = rope.required<double>("high_freq_factor");
    scaling.original_positions = rope.required<std::int64_t>("original_max_position_embeddings");
  }
  return scaling;
}

void read_rope(const JsonReader& json, const std::string& where, ModelConfig& config) {
  config.rope_theta = json.optional<double>("rope_theta", config.rope_theta);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!json.has(key)) continue;
    const std::string inner_where = where + ": " + key;
    const JsonReader rope(json.required<Json>(key), inner_where);
    const auto scaling = read_scaling(rope, inner_where);
    check(!config.rope_scaling || !scaling || scaling == config.rope_scaling, where,
          ": rope_parameters and rope_scaling differ; expected the same or only one of them");
    if (scaling) config.rope_scaling = scaling;
    const double inner = rope.optional<double>("rope_theta", config.rope_theta);
    check(!json.has("rope_theta") || inner == config.rope_theta, where, ": rope_theta is ", config.rope_theta,
          " but ", key, " says ", inner, "; expected the same value or only one of them");
    config.rope_theta = inner;
    rope.refuse_unread();
  }
}

// Attention to a few thousand tokens back only; some models carry the size of a window that they do not use.
void refuse_window(const JsonReader& json, const std::string& where, Family family) {
  const Json kinds = json.optional<Json>("layer_types", Json::array());
  check(kinds.is_array(), where, ": layer_types must be a list, got ", kinds.dump());
  for (const Json& kind : kinds)
    check(kind == "full_attention", where, ": layer_types ", kind.dump(),
          " is not supported; expected \"full_attention\" everywhere");
  if (family == Family::Qwen2 || family == Family::Qwen3) {
    expect(json, where, "use_sliding_window", false);
    json.ignore("sliding_window");
    json.ignore("max_window_layers");
    expect(json, where, "use_mrope", false);
    return;
  }
  if (family != Family::Mistral) return;
  // Said to be null, not left out: a key that is missing means a window, too.
  const Json window = json.contains("sliding_window") ? json.optional<Json>("sliding_window", nullptr)
                                                      : Json(*defaults(family).sliding_window);
  check(window.is_null(), where, ": sliding_window ", window.dump(),
        " is not supported; expected null, which is attention to all tokens before");
}

void refuse_other_arithmetic(const JsonReader& json, const std::string& where) {
  expect<std::string>(json, where, "hidden_act", "silu");
  expect(json, where, "attention_bias", false);
  expect(json, where, "mlp_bias", false);
  expect(json, where, "attention_dropout", 0.0);
  expect(json, where, "rope_interleaved", false);
}

Json scaling_to_json(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::Linear) return {{"rope_type", "linear"}, {"factor", scaling.factor}};
  return {{"rope_type", "llama3"},
          {"factor", scaling.factor},
          {"low_freq_factor", scaling.low_turns},
          {"high_freq_factor", scaling.high_turns},
          {"original_max_position_embeddings", scaling.original_positions}};
}

}  // namespace

ModelConfig read_llama_keys(const JsonReader& json, const std::string& where, Family family) {
  const Defaults missing = defaults(family);
  refuse_other_arithmetic(json, where);
  refuse_window(json, where, family);
  ModelConfig config{.family = family};
  config.vocab_size = json.required<std::int64_t>("vocab_size");
  config.hidden_size = json.required<std::int64_t>("hidden_size");
  config.intermediate_size = json.required<std::int64_t>("intermediate_size");
  config.num_layers = json.required<std::int64_t>("num_hidden_layers");
  config.num_heads = json.required<std::int64_t>("num_attention_heads");
  const bool says_kv_heads = json.contains("num_key_value_heads");  // if only null: as many as heads
  config.num_kv_heads = json.optional<std::int64_t>(
      "num_key_value_heads", says_kv_heads || missing.kv_heads == 0 ? config.num_heads : missing.kv_heads);
  check_positive(config.num_heads, "num_attention_heads", where);
  if (json.has("head_dim") || missing.head_dim > 0) {
    config.head_dim = json.optional<std::int64_t>("head_dim", missing.head_dim);
  } else {
    check(config.hidden_size % config.num_heads == 0, where, ": hidden_size ", config.hidden_size,
          " is not a multiple of num_attention_heads ", config.num_heads, "; change one or give head_dim");
    config.head_dim = config.hidden_size / config.num_heads;
  }
  config.max_positions = if_given<std::int64_t>(json, "max_position_embeddings", missing.max_positions);
  read_rope(json, where, config);
  config.norm_eps = if_given(json, "rms_norm_eps", 1e-6);
  config.tied_embeddings = if_given(json, "tie_word_embeddings", false);
  config.initializer_range = if_given(json, "initializer_range", 0.02);
  return config;
}

void write_llama_keys(Json& json, const ModelConfig& config) {
  json["hidden_act"] = "silu";
  json["vocab_size"] = config.vocab_size;
  json["hidden_size"] = config.hidden_size;
  json["intermediate_size"] = config.intermediate_size;
  json["num_hidden_layers"] = config.num_layers;
  json["num_attention_heads"] = config.num_heads;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["head_dim"] = config.head_dim;
  json["max_position_embeddings"] = config.max_positions;
  json["rope_theta"] = config.rope_theta;
  if (config.rope_scaling) json["rope_scaling"] = scaling_to_json(*config.rope_scaling);
  json["rms_norm_eps"] = config.norm_eps;
  json["tie_word_embeddings"] = config.tied_embeddings;
  json["initializer_range"] = config.initializer_range;
  if (config.family == Family::Mistral) json["sliding_window"] = nullptr;
  if (config.family == Family::Qwen2 || config.family == Family::Qwen3) json["use_sliding_window"] = false;
  if (config.family == Family::Qwen2) return;  // has no such keys
  if (config.family != Family::Mistral) json["attention_bias"] = false;
  if (config.family == Family::Llama) json["mlp_bias"] = false;
}

}  // namespace snug::models
