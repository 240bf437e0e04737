// GPT-2's config.json.
#include "snug/base/error.h"
#include "snug/models/config_keys.h"

namespace snug::models {
namespace {

// Of no use here. Dropout is one of them: none of our models drops anything.
constexpr const char* kIrrelevantInGpt2[] = {
    "attn_pdrop",
    "embd_pdrop",
    "n_ctx",
    "n_special",
    "predict_special_tokens",
    "resid_pdrop",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
};

void refuse_other_gpt2_arithmetic(const JsonReader& json, const std::string& where) {
  const auto activation = json.optional<std::string>("activation_function", "gelu_new");
  check(activation == "gelu_new" || activation == "gelu_pytorch_tanh", where, ": activation_function '",
        activation, "' is not supported; expected 'gelu_new'");
  expect(json, where, "scale_attn_weights", true);
  expect(json, where, "scale_attn_by_inverse_layer_idx", false);
  expect(json, where, "reorder_and_upcast_attn", false);
  expect(json, where, "add_cross_attention", false);
}

}  // namespace

ModelConfig read_gpt2_keys(const JsonReader& json, const std::string& where) {
  refuse_other_gpt2_arithmetic(json, where);
  ModelConfig config{.family = Family::Gpt2};
  config.vocab_size = json.required<std::int64_t>("vocab_size");
  config.hidden_size = json.required<std::int64_t>("n_embd");
  config.num_layers = json.required<std::int64_t>("n_layer");
  config.num_heads = json.required<std::int64_t>("n_head");
  check_positive(config.hidden_size, "n_embd", where);
  check_positive(config.num_heads, "n_head", where);
  check(config.hidden_size % config.num_heads == 0, where, ": n_embd ", config.hidden_size,
        " is not a multiple of n_head ", config.num_heads);
  config.num_kv_heads = config.num_heads;
  config.head_dim = config.hidden_size / config.num_heads;
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // validate() says more
  config.intermediate_size =
      json.optional<std::int64_t>("n_inner", config.hidden_size <= kMost ? 4 * config.hidden_size : kMost);
  config.max_positions = if_given<std::int64_t>(json, "n_positions", 1024);
  config.norm_eps = if_given(json, "layer_norm_epsilon", 1e-5);
  config.tied_embeddings = if_given(json, "tie_word_embeddings", true);
  config.initializer_range = if_given(json, "initializer_range", 0.02);
  for (const char* key : kIrrelevantInGpt2) json.ignore(key);
  return config;
}

void write_gpt2_keys(Json& json, const ModelConfig& config) {
  json["activation_function"] = "gelu_new";
  json["vocab_size"] = config.vocab_size;
  json["n_embd"] = config.hidden_size;
  json["n_inner"] = config.intermediate_size;
  json["n_layer"] = config.num_layers;
  json["n_head"] = config.num_heads;
  json["n_positions"] = config.max_positions;
  json["layer_norm_epsilon"] = config.norm_eps;
  json["tie_word_embeddings"] = config.tied_embeddings;
  json["initializer_range"] = config.initializer_range;
}

}  // namespace snug::models
