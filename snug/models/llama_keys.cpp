// Llama's config.json and those of the families that took its keys over. Both spellings of rotary settings
// are read: rope_theta and rope_scaling at the top, or rope_parameters{rope_theta, rope_type, ...}.
#include <algorithm>
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

// The entries of layer_types, if it is there, as whether each layer slides.
std::optional<std::vector<bool>> read_layer_types(const JsonReader& json, const std::string& where,
                                                  std::int64_t layers) {
  if (!json.has("layer_types")) return std::nullopt;
  const Json kinds = json.required<Json>("layer_types");
  check(kinds.is_array() && std::ssize(kinds) == layers, where, ": layer_types must be a list of ", layers,
        " entries, one for each of num_hidden_layers, got ", kinds.dump());
  std::vector<bool> slides;
  for (const Json& kind : kinds) {
    check(kind == "full_attention" || kind == "sliding_attention", where, ": layer_types ", kind.dump(),
          " is not supported; expected \"full_attention\" or \"sliding_attention\"");
    slides.push_back(kind == "sliding_attention");
  }
  return slides;
}

// Mistral's layers all slide, unless the window is said to be null: one that is left out means a window, too.
std::int64_t mistral_window(const JsonReader& json) {
  if (!json.contains("sliding_window")) return *defaults(Family::Mistral).sliding_window;
  return json.has("sliding_window") ? json.required<std::int64_t>("sliding_window") : 0;
}

// Qwen's files carry the size of a window, most of them one that is not used.
std::int64_t qwen_window(const JsonReader& json, const std::string& where) {
  expect(json, where, "use_mrope", false);
  json.ignore("sliding_window");
  if (!json.optional<bool>("use_sliding_window", false)) return 0;
  return json.optional<std::int64_t>("sliding_window", 4096);
}

// Which layers see the last tokens only, and how many.
void read_window(const JsonReader& json, const std::string& where, ModelConfig& config) {
  const bool is_qwen = config.family == Family::Qwen2 || config.family == Family::Qwen3;
  const bool is_mistral = config.family == Family::Mistral;
  config.window = is_mistral ? mistral_window(json) : is_qwen ? qwen_window(json, where) : 0;
  check(config.window != 0 || !json.has("sliding_window") || is_qwen, where,
        ": sliding_window must be at least 1, got 0; null is attention to all tokens before");
  const std::int64_t first = is_qwen ? json.optional<std::int64_t>("max_window_layers", 28) : 0;
  const auto types = read_layer_types(json, where, config.num_layers);
  if (config.window == 0) {
    check(!types || std::ranges::find(*types, true) == types->end(), where,
          ": layer_types has \"sliding_attention\", but no window is set: expected ",
          is_qwen ? "use_sliding_window true and sliding_window" : "\"full_attention\" everywhere");
    return;
  }
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) config.slides.push_back(layer >= first);
  check(is_qwen || !types || *types == config.slides, where,
        ": with a sliding_window every layer slides; expected layer_types to be left out, got ",
        json.optional<Json>("layer_types", nullptr).dump());
  if (types) config.slides = *types;
}

void refuse_other_arithmetic(const JsonReader& json, const std::string& where) {
  expect<std::string>(json, where, "hidden_act", "silu");
  expect(json, where, "attention_bias", false);
  expect(json, where, "mlp_bias", false);
  expect(json, where, "attention_dropout", 0.0);
  expect(json, where, "rope_interleaved", false);
}

void write_qwen_window(Json& json, const ModelConfig& config) {
  json["use_sliding_window"] = config.window > 0;
  if (config.window == 0) return;
  json["sliding_window"] = config.window;
  Json types = Json::array();
  for (const bool slides : config.slides) types.push_back(slides ? "sliding_attention" : "full_attention");
  json["layer_types"] = types;
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
  ModelConfig config{.family = family};
  config.vocab_size = json.required<std::int64_t>("vocab_size");
  config.hidden_size = json.required<std::int64_t>("hidden_size");
  config.intermediate_size = json.required<std::int64_t>("intermediate_size");
  config.num_layers = json.required<std::int64_t>("num_hidden_layers");
  check_positive(config.num_layers, "num_hidden_layers", where);
  check(config.num_layers <= kMostLayers, where, ": num_hidden_layers must be at most ", kMostLayers,
        ", got ", config.num_layers);
  read_window(json, where, config);
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
  if (config.family == Family::Mistral)
    json["sliding_window"] = config.window > 0 ? Json(config.window) : Json(nullptr);
  if (config.family == Family::Qwen2 || config.family == Family::Qwen3) write_qwen_window(json, config);
  if (config.family == Family::Qwen2) return;  // has no such keys
  if (config.family != Family::Mistral) json["attention_bias"] = false;
  if (config.family == Family::Llama) json["mlp_bias"] = false;
}

}  // namespace snug::models
