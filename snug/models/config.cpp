#include "snug/models/config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "snug/base/error.h"
#include "snug/io/training_state.h"
#include "snug/io/weight_files.h"
#include "snug/models/config_keys.h"
#include "snug/models/presets.h"

namespace snug::models {
namespace {

// Written by Hugging Face or by hub authors; none changes the model's sizes or its arithmetic in training.
constexpr const char* kIrrelevant[] = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "_num_labels",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "bos_token_id",
    "decoder_start_token_id",
    "do_sample",
    "early_stopping",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "is_llama_config",
    "label2id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_sequence_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "sep_token_id",
    "task_specific_params",
    "temperature",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers.js_config",
    "transformers_version",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
};

constexpr std::int64_t kLargestTensor = std::int64_t{1} << 40;

struct FamilyName {
  Family family;
  const char* model_type;
  const char* architecture;
};

constexpr std::array kFamilies = {
    FamilyName{Family::Llama, "llama", "LlamaForCausalLM"},
    FamilyName{Family::Mistral, "mistral", "MistralForCausalLM"},
    FamilyName{Family::Qwen2, "qwen2", "Qwen2ForCausalLM"},
    FamilyName{Family::Qwen3, "qwen3", "Qwen3ForCausalLM"},
    FamilyName{Family::Gpt2, "gpt2", "GPT2LMHeadModel"},
};

FamilyName find_family(const std::string& model_type, const std::string& where) {
  std::string known;
  for (const FamilyName& family : kFamilies) {
    if (model_type == family.model_type) return family;
    known += concat(known.empty() ? "'" : ", '", family.model_type, "'");
  }
  fail(where, ": model_type '", model_type, "' is not supported; expected one of ", known);
}

Family read_family(const JsonReader& json, const std::string& where) {
  const FamilyName family = find_family(json.required<std::string>("model_type"), where);
  const Json names = json.optional<Json>("architectures", Json::array());
  check(names.is_array() && (names.empty() || names == Json::array({family.architecture})), where,
        ": architectures must be [\"", family.architecture, "\"], got ", names.dump());
  return family.family;
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

void pass_over_unknown(const JsonReader& json, const std::string& where, UnknownKeys* unknown) {
  const Json unread = json.unread();
  for (const auto& [key, value] : unread.items()) {
    const bool means_nothing = value.is_null() || (value.is_boolean() && !value.get<bool>());
    check(means_nothing || (unknown && std::ranges::find(unknown->let_pass, key) != unknown->let_pass.end()),
          where, ": unknown key ", Json(key).dump(), ", ", value.dump(),
          ": correct its spelling, or let it pass with `ignore_keys` ", key,
          " if training can do without what it says");
    if (unknown) unknown->ignored.push_back(concat(key, " (", value.dump(), ")"));
  }
}

void check_tensor(std::int64_t rows, std::int64_t columns, const char* name, const std::string& where) {
  check(rows <= kLargestTensor / columns, where, ": the ", name, " [", rows, ", ", columns,
        "] would hold more than 2^40 elements; check the sizes");
}

void check_above_zero(double value, const char* key, const std::string& where) {
  check(std::isfinite(value) && value > 0, where, ": ", key, " must be above 0, got ", value);
}

void validate_rope(const ModelConfig& config, const std::string& where) {
  check(config.head_dim % 2 == 0, where, ": head_dim must be even for rotary positions, got ",
        config.head_dim);
  check_tensor(config.max_positions, config.head_dim, "rotary table", where);
  check_above_zero(config.rope_theta, "rope_theta", where);
  if (!config.rope_scaling) return;
  const ops::RopeScaling& scaling = *config.rope_scaling;
  check(std::isfinite(scaling.factor) && scaling.factor >= 1, where, ": factor must be at least 1, got ",
        scaling.factor);
  if (scaling.kind != ops::RopeScaling::Kind::Llama3) return;
  check_positive(scaling.original_positions, "original_max_position_embeddings", where);
  check(std::isfinite(scaling.high_turns) && scaling.low_turns > 0 && scaling.high_turns > scaling.low_turns,
        where, ": low_freq_factor must be above 0 and high_freq_factor above that, got ", scaling.low_turns,
        " and ", scaling.high_turns);
}

std::int64_t llama_block(const ModelConfig& config) {
  const std::int64_t queries = config.num_heads * config.head_dim;
  const std::int64_t keys = config.num_kv_heads * config.head_dim;
  const std::int64_t matrices = (2 * queries + 2 * keys + 3 * config.intermediate_size) * config.hidden_size;
  const std::int64_t biases = config.family == Family::Qwen2 ? queries + 2 * keys : 0;
  const std::int64_t head_norms = config.family == Family::Qwen3 ? 2 * config.head_dim : 0;
  return matrices + biases + head_norms + 2 * config.hidden_size;
}

std::int64_t gpt2_block(const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const std::int64_t matrices = 4 * hidden * hidden + 2 * hidden * intermediate;
  return matrices + 5 * hidden + intermediate + 4 * hidden;
}

}  // namespace

ModelConfig load_config(const std::string& model, UnknownKeys* unknown) {
  if (const auto preset = find_preset(model)) return *preset;
  io::refuse_what_is_no_model(model);
  std::error_code error;
  std::filesystem::path path = model;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  const bool is_file = std::filesystem::is_regular_file(path, error);
  check(error != std::errc::permission_denied, "`model` ", path.string(), ": ", error.message());
  check(is_file, "no model ", model, ": expected a preset (", preset_names(),
        "), a folder with config.json, or a config.json");
  if (path.filename() == "config.json" && io::is_training_state(path.parent_path()))
    io::check_saved_config(path.parent_path());
  return parse_config(read_json(path), path.string(), unknown);
}

ModelConfig parse_config(Json object, const std::string& where, UnknownKeys* unknown) {
  const JsonReader json(std::move(object), where);
  const Family family = read_family(json, where);
  const ModelConfig config =
      family == Family::Gpt2 ? read_gpt2_keys(json, where) : read_llama_keys(json, where, family);
  check_dtype(json, where);
  for (const char* key : {"quantization_config", "dual_chunk_attention_config"})
    check(!json.has(key), where, ": ", key, " is not supported");
  for (const char* key : kIrrelevant) json.ignore(key);
  pass_over_unknown(json, where, unknown);
  validate(config, where);
  return config;
}

void validate(const ModelConfig& config, const std::string& where) {
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

  check_tensor(config.vocab_size, config.hidden_size, "embedding", where);
  check_tensor(config.intermediate_size, config.hidden_size, "MLP weight", where);
  check_tensor(config.num_heads, config.head_dim, "heads", where);
  check_tensor(config.num_heads * config.head_dim, config.hidden_size, "query weight", where);
  if (config.family == Family::Gpt2) {
    check_tensor(config.max_positions, config.hidden_size, "positions", where);
  } else {
    validate_rope(config, where);
  }
  if (config.window != 0) {
    check_positive(config.window, "sliding_window", where);
    ensure(std::ssize(config.slides) == config.num_layers, "as many layers slide or not as there are");
  }
  check_above_zero(config.norm_eps, config.family == Family::Gpt2 ? "layer_norm_epsilon" : "rms_norm_eps",
                   where);
  check(std::isfinite(config.initializer_range) && config.initializer_range >= 0, where,
        ": initializer_range must be at least 0, got ", config.initializer_range);
}

std::uint64_t parameter_count(const ModelConfig& config) {
  const bool gpt2 = config.family == Family::Gpt2;
  const std::int64_t embedding = config.vocab_size * config.hidden_size;
  const std::int64_t positions = gpt2 ? config.max_positions * config.hidden_size : 0;
  const std::int64_t blocks = config.num_layers * (gpt2 ? gpt2_block(config) : llama_block(config));
  const std::int64_t norm = config.hidden_size * (gpt2 ? 2 : 1);
  const std::int64_t embeddings = config.tied_embeddings ? embedding : 2 * embedding;
  return static_cast<std::uint64_t>(embeddings + positions + blocks + norm);
}

Json to_json(const ModelConfig& config) {
  Json json;
  for (const FamilyName& family : kFamilies) {
    if (family.family != config.family) continue;
    json["architectures"] = Json::array({family.architecture});
    json["model_type"] = family.model_type;
  }
  if (config.family == Family::Gpt2) {
    write_gpt2_keys(json, config);
  } else {
    write_llama_keys(json, config);
  }
  return json;
}

}  // namespace snug::models
