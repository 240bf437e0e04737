#include "snug/models/config.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/error.h"
#include "snug/io/training_state.h"
#include "snug/models/presets.h"
#include "snug/models/slow_sizes.h"
#include "tests/support/temporary_folder.h"

namespace snug::models {
namespace {

using testing::message_of;
using testing::TemporaryFolder;

Json small() {
  return Json::parse(
      R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
      "num_hidden_layers": 2, "num_attention_heads": 4})");
}

Json with(const std::string& key, Json value) {
  Json json = small();
  json[key] = std::move(value);
  return json;
}

std::string write_config(const TemporaryFolder& folder, const Json& json) {
  testing::write_file(folder / "config.json", json.dump());
  return (folder / "config.json").string();
}

std::string refusal(const std::string& key, Json value) {
  return message_of<Error>([&] { parse_config(with(key, value), "c.json"); });
}

TEST(Config, TakesHuggingFacesDefaultsForKeysThatAreMissing) {
  const ModelConfig config = parse_config(small(), "c.json");
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.norm_eps, 1e-6);
  EXPECT_FALSE(config.tied_embeddings);
  EXPECT_EQ(config.initializer_range, 0.02);
}

TEST(Config, ReadsThePublishedFormOfTransformers4) {
  const ModelConfig config = parse_config(Json::parse(R"({
      "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 128000, "eos_token_id": [128001, 128009], "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 8192, "model_type": "llama",
      "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pad_token_id": null,
      "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0",
      "use_cache": true, "vocab_size": 128256})"),
                                          "c.json");
  EXPECT_EQ(config, *find_preset("llama3-8b"));
}

TEST(Config, ReadsThePublishedFormOfTransformers5) {
  Json json = small();
  json["dtype"] = "float32";
  json["head_dim"] = 32;
  json["mlp_bias"] = false;
  json["rope_parameters"] = {{"rope_theta", 250000.0}, {"rope_type", "default"}};
  const ModelConfig config = parse_config(json, "c.json");
  EXPECT_EQ(config.rope_theta, 250000.0);
  EXPECT_EQ(config.head_dim, 32);
}

TEST(Config, AcceptsTheSameThetaTwice) {
  Json json = with("rope_theta", 5000);
  json["rope_parameters"] = {{"rope_theta", 5000.0}};
  EXPECT_EQ(parse_config(json, "c.json").rope_theta, 5000.0);
}

TEST(Config, SurvivesAWriteAndARead) {
  TemporaryFolder folder;
  for (const char* name :
       {"tiny", "llama-1.3b", "llama2-7b", "llama3-8b", "gpt2", "qwen2.5-7b", "qwen3-0.6b"}) {
    const ModelConfig config = *find_preset(name);
    const std::string path = write_config(folder, to_json(config));
    EXPECT_EQ(load_config(path), config);
    EXPECT_EQ(load_config(folder.path().string()), config);
  }
}

TEST(Config, ReadsLlama3sRotaryScalingInBothSpellings) {
  const ops::RopeScaling expected{.kind = ops::RopeScaling::Kind::Llama3,
                                  .factor = 8,
                                  .low_turns = 1,
                                  .high_turns = 4,
                                  .original_positions = 8192};
  Json scaling = {{"rope_type", "llama3"},
                  {"factor", 8.0},
                  {"low_freq_factor", 1.0},
                  {"high_freq_factor", 4.0},
                  {"original_max_position_embeddings", 8192}};
  const ModelConfig old = parse_config(with("rope_scaling", scaling), "c.json");
  EXPECT_EQ(old.rope_scaling, expected);
  EXPECT_EQ(parse_config(to_json(old), "c.json"), old);
  scaling["rope_theta"] = 500000.0;
  const ModelConfig now = parse_config(with("rope_parameters", scaling), "c.json");
  EXPECT_EQ(now.rope_scaling, expected);
  EXPECT_EQ(now.rope_theta, 500000.0);
}

TEST(Config, RefusesRotaryScalingThatItCannotDo) {
  EXPECT_NE(refusal("rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}).find("'yarn' is not supported"),
            std::string::npos);
  EXPECT_NE(refusal("rope_scaling", {{"type", "linear"}}).find("factor"), std::string::npos);
  EXPECT_NE(refusal("rope_scaling", {{"type", "linear"}, {"factor", 0.5}}).find("at least 1"),
            std::string::npos);
  EXPECT_NE(refusal("rope_scaling", {{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2.0}})
                .find("expected the same"),
            std::string::npos);
  EXPECT_NE(refusal("rope_scaling", {{"rope_type", "llama3"},
                                     {"factor", 8.0},
                                     {"low_freq_factor", 4.0},
                                     {"high_freq_factor", 4.0},
                                     {"original_max_position_embeddings", 8192}})
                .find("high_freq_factor above that"),
            std::string::npos);
}

Json of_family(const std::string& model_type, const Json& more = Json::object()) {
  Json json = with("model_type", model_type);
  json["num_key_value_heads"] = 2;
  json.update(more);
  return json;
}

TEST(Config, KnowsTheFamiliesThatTookLlamasKeysOver) {
  EXPECT_EQ(parse_config(of_family("mistral"), "c.json").family, Family::Mistral);
  EXPECT_EQ(parse_config(of_family("qwen2"), "c.json").family, Family::Qwen2);
  const ModelConfig qwen3 = parse_config(of_family("qwen3"), "c.json");
  EXPECT_EQ(qwen3.family, Family::Qwen3);
  EXPECT_EQ(qwen3.head_dim, 128);
}

std::vector<std::int64_t> windows(const ModelConfig& config) {
  std::vector<std::int64_t> windows;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) windows.push_back(config.window_of(layer));
  return windows;
}

TEST(Config, AllOfMistralsLayersSlide) {
  using Windows = std::vector<std::int64_t>;
  const auto read = [](const Json& more) {
    return windows(parse_config(of_family("mistral", more), "c.json"));
  };
  EXPECT_EQ(read(Json::object()), Windows({4096, 4096}));  // as in Mistral 7B v0.1, but for its file's own
  EXPECT_EQ(read({{"sliding_window", 100}}), Windows({100, 100}));
  EXPECT_EQ(read({{"sliding_window", nullptr}}), Windows({0, 0}));
}

TEST(Config, QwensLayersSlideFromOneOnOrAsListed) {
  using Windows = std::vector<std::int64_t>;
  for (const char* family : {"qwen2", "qwen3"}) {
    const auto read = [&](const Json& more) {
      return windows(parse_config(of_family(family, more), "c.json"));
    };
    EXPECT_EQ(read({{"sliding_window", 131072}, {"max_window_layers", 28}}), Windows({0, 0}));
    EXPECT_EQ(read({{"use_sliding_window", true}, {"sliding_window", 50}, {"max_window_layers", 1}}),
              Windows({0, 50}));
    EXPECT_EQ(read({{"use_sliding_window", true}, {"sliding_window", 50}}), Windows({0, 0}));
    EXPECT_EQ(read({{"use_sliding_window", true},
                    {"sliding_window", 50},
                    {"layer_types", {"sliding_attention", "full_attention"}}}),
              Windows({50, 0}));
  }
}

TEST(Config, WindowsSurviveAWriteAndARead) {
  for (const Json& json :
       {of_family("mistral", {{"sliding_window", 100}}),
        of_family("qwen2", {{"use_sliding_window", true}, {"sliding_window", 9}, {"max_window_layers", 1}}),
        of_family("qwen3", {{"use_sliding_window", true}, {"max_window_layers", 0}})}) {
    const ModelConfig config = parse_config(json, "c.json");
    EXPECT_EQ(parse_config(to_json(config), "c.json"), config) << to_json(config).dump();
  }
}

TEST(Config, RefusesWindowsThatContradictThemselves) {
  const auto message = [](const std::string& family, const Json& more) {
    return message_of<Error>([&] { parse_config(of_family(family, more), "c.json"); });
  };
  const Json mixed = {"full_attention", "sliding_attention"};
  EXPECT_NE(message("mistral", {{"sliding_window", 0}}).find("sliding_window must be at least 1, got 0"),
            std::string::npos);
  EXPECT_NE(message("mistral", {{"sliding_window", -5}}).find("sliding_window must be at least 1"),
            std::string::npos);
  EXPECT_NE(message("mistral", {{"layer_types", mixed}}).find("every layer slides"), std::string::npos);
  EXPECT_NE(message("qwen2", {{"layer_types", mixed}}).find("use_sliding_window true"), std::string::npos);
  EXPECT_NE(message("llama", {{"layer_types", mixed}}).find("\"full_attention\" everywhere"),
            std::string::npos);
  EXPECT_NE(message("qwen3", {{"layer_types", {"full_attention"}}}).find("a list of 2 entries"),
            std::string::npos);
  EXPECT_NE(message("qwen3", {{"layer_types", {"linear_attention", "full_attention"}}})
                .find("\"linear_attention\" is not supported"),
            std::string::npos);
}

TEST(Config, PassesOverUnknownKeysThatMeanNothing) {
  Json json = with("attention_sinks", nullptr);
  json["use_new_thing"] = false;
  UnknownKeys unknown;
  EXPECT_EQ(parse_config(json, "c.json", &unknown), parse_config(small(), "c.json"));
  EXPECT_EQ(unknown.ignored, std::vector<std::string>({"attention_sinks (null)", "use_new_thing (false)"}));
}

TEST(Config, LetsNamedKeysPass) {
  const Json json = with("residual_scale", 2);
  UnknownKeys unknown{.let_pass = {"residual_scale"}};
  parse_config(json, "c.json", &unknown);
  EXPECT_EQ(unknown.ignored, std::vector<std::string>({"residual_scale (2)"}));
  EXPECT_EQ(
      refusal("residual_scale", 2),
      "c.json: unknown key \"residual_scale\", 2: correct its spelling, or let it pass with `ignore_keys` "
      "residual_scale if training can do without what it says");
  UnknownKeys other{.let_pass = {"vocab_size"}};  // a key that is known is read all the same
  EXPECT_EQ(parse_config(small(), "c.json", &other).vocab_size, 100);
  EXPECT_TRUE(other.ignored.empty());
}

TEST(Config, ReadsGpt2AsPublished) {
  const ModelConfig config = parse_config(Json::parse(R"({
      "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
      "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
      "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
      "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
      "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})"),
                                          "c.json");
  EXPECT_EQ(config, *find_preset("gpt2"));
}

TEST(Config, ReadsKeysThatOldFilesCarry) {
  Json json = to_json(*find_preset("gpt2-medium"));
  for (const char* key :
       {"n_special", "predict_special_tokens", "output_past", "_num_labels", "id2label", "label2id"})
    json[key] = 1;
  EXPECT_EQ(parse_config(json, "c.json"), *find_preset("gpt2-medium"));
  EXPECT_EQ(refusal("quantization_config", Json::object({{"bits", 4}})),
            "c.json: quantization_config is not supported");
}

TEST(Config, TakesNoKeyHeadsForAsManyAsHeads) {
  Json json = of_family("qwen2");
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse_config(json, "c.json").num_kv_heads, 4);
}

TEST(Config, RefusesGpt2sOtherArithmetic) {
  Json json = to_json(*find_preset("gpt2"));
  json["activation_function"] = "relu";
  EXPECT_NE(message_of<Error>([&] { parse_config(json, "c.json"); }).find("'relu' is not supported"),
            std::string::npos);
  json = to_json(*find_preset("gpt2"));
  json["n_head"] = 7;
  EXPECT_NE(message_of<Error>([&] { parse_config(json, "c.json"); }).find("n_embd 768 is not a multiple"),
            std::string::npos);
}

TEST(Config, ListsTheFamiliesForAnotherOne) {
  EXPECT_EQ(refusal("model_type", "mamba"),
            "c.json: model_type 'mamba' is not supported; expected one of 'llama', 'mistral', 'qwen2', "
            "'qwen3', 'gpt2'");
}

TEST(Config, LoadsPresetsByName) {
  EXPECT_EQ(load_config("tiny"), *find_preset("tiny"));
}

TEST(Config, ListsThePresetsForAnUnknownModel) {
  EXPECT_EQ(message_of<Error>([] { load_config("llama-9b"); }),
            "no model llama-9b: expected a preset (" + preset_names() +
                "), a folder with config.json, or a config.json");
}

TEST(Config, RefusesAFolderWithoutConfig) {
  TemporaryFolder folder;
  EXPECT_NE(message_of<Error>([&] { load_config(folder.path().string()); }).find("a folder with config.json"),
            std::string::npos);
}

TEST(Config, NamesTheFileOfAKeyThatIsMissing) {
  TemporaryFolder folder;
  Json json = small();
  json.erase("hidden_size");
  const std::string path = write_config(folder, json);
  const std::string message = message_of<Error>([&] { load_config(path); });
  EXPECT_NE(message.find(path), std::string::npos) << message;
  EXPECT_NE(message.find("hidden_size"), std::string::npos) << message;
}

TEST(Config, RefusesValuesOfTheWrongType) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"hidden_size", "64"},
                                                 {"hidden_size", 64.0},
                                                 {"vocab_size", true},
                                                 {"rope_theta", "10000"},
                                                 {"tie_word_embeddings", 1},
                                                 {"hidden_act", 3},
                                                 {"attention_bias", "no"},
                                                 {"rope_parameters", 1},
                                                 {"rope_scaling", "linear"},
                                                 {"torch_dtype", 16},
                                                 {"num_key_value_heads", Json::array()}}) {
    const std::string message = refusal(key, value);
    EXPECT_EQ(message.find("c.json"), 0u) << message;
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
}

TEST(Config, RefusesWhatTheModelCannotDo) {
  EXPECT_EQ(refusal("hidden_act", "gelu"),
            "c.json: hidden_act must be \"silu\", got \"gelu\"; nothing else is supported");
  EXPECT_EQ(refusal("attention_bias", true),
            "c.json: attention_bias must be false, got true; nothing else is supported");
  EXPECT_EQ(refusal("mlp_bias", true), "c.json: mlp_bias must be false, got true; nothing else is supported");
  EXPECT_EQ(refusal("rope_interleaved", true),
            "c.json: rope_interleaved must be false, got true; nothing else is supported");
  EXPECT_EQ(refusal("attention_dropout", 0.1),
            "c.json: attention_dropout must be 0.0, got 0.1; nothing else is supported");
}

TEST(Config, NamesARopeScalingThatIsNotSupported) {
  EXPECT_EQ(refusal("rope_parameters", {{"rope_theta", 1e4}, {"rope_type", "yarn"}}),
            "c.json: rope_parameters: rope_type 'yarn' is not supported; expected 'default', 'linear', "
            "'llama3' or none");
  EXPECT_EQ(parse_config(with("rope_scaling", {{"rope_type", "default"}}), "c.json").rope_theta, 10000.0);
}

TEST(Config, RefusesTwoThetasThatDiffer) {
  Json json = with("rope_theta", 5000.0);
  json["rope_parameters"] = {{"rope_theta", 6000.0}};
  EXPECT_EQ(message_of<Error>([&] { parse_config(json, "c.json"); }),
            "c.json: rope_theta is 5000 but rope_parameters says 6000; expected the same value or only one "
            "of them");
}

TEST(Config, NamesAKeyItDoesNotKnow) {
  EXPECT_NE(refusal("quantization_config", Json::object()).find("quantization_config"), std::string::npos);
  EXPECT_NE(refusal("rope_parameters", {{"factor", 2}}).find("factor"), std::string::npos);
}

TEST(Config, RefusesSizesThatDoNotDivide) {
  EXPECT_EQ(refusal("num_attention_heads", 3),
            "c.json: hidden_size 64 is not a multiple of num_attention_heads 3; change one or give head_dim");
  EXPECT_EQ(refusal("num_key_value_heads", 3),
            "c.json: num_attention_heads 4 is not a multiple of num_key_value_heads 3");
  EXPECT_EQ(refusal("head_dim", 15), "c.json: head_dim must be even for rotary positions, got 15");
}

TEST(Config, RefusesSizesThatAreNotPositive) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (int value : {0, -4}) {
      EXPECT_EQ(refusal(key, value), concat("c.json: ", key, " must be at least 1, got ", value));
    }
  }
}

TEST(Config, RefusesAbsurdSizesInsteadOfOverflowing) {
  EXPECT_EQ(refusal("vocab_size", std::int64_t{1} << 40),
            "c.json: the embedding [1099511627776, 64] would hold more than 2^40 elements; check the sizes");
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (std::int64_t value : {std::numeric_limits<std::int64_t>::max(),
                               std::numeric_limits<std::int64_t>::max() - 3, std::int64_t{1} << 62}) {
      EXPECT_EQ(refusal(key, value).find("c.json: "), 0u) << key;
    }
  }
  EXPECT_EQ(refusal("num_hidden_layers", 10'001),
            "c.json: num_hidden_layers must be at most 10000, got 10001");
}

TEST(Config, AcceptsTheLargestTensor) {
  ModelConfig config = parse_config(small(), "c.json");
  config.vocab_size = (std::int64_t{1} << 40) / 64;
  EXPECT_NO_THROW(validate(config, "c.json"));
  EXPECT_EQ(parameter_count(config),
            (std::uint64_t{2} << 40) + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64);
}

TEST(Config, RefusesFloatsOutOfRange) {
  EXPECT_EQ(refusal("rope_theta", 0), "c.json: rope_theta must be above 0, got 0");
  EXPECT_EQ(refusal("rms_norm_eps", -1e-5), "c.json: rms_norm_eps must be above 0, got -1e-05");
  EXPECT_EQ(refusal("initializer_range", -0.02), "c.json: initializer_range must be at least 0, got -0.02");
}

TEST(Config, RefusesNullWhereOnlyLeavingOutMeansSomething) {
  EXPECT_EQ(refusal("max_position_embeddings", nullptr),
            "c.json: \"max_position_embeddings\" must be an integer, got null");
  EXPECT_EQ(refusal("rms_norm_eps", nullptr), "c.json: \"rms_norm_eps\" must be a number, got null");
  for (const char* key : {"head_dim", "num_key_value_heads", "rope_scaling"})  // as Hugging Face writes them
    EXPECT_NO_THROW(parse_config(with(key, nullptr), "c.json")) << key;
}

TEST(Config, OfAStateIsFoundDamagedBeforeItIsParsed) {
  const TemporaryFolder folder;
  io::write_training_state(folder / "state", {.facts = {{"step", 1}}, .model_config = small()});
  const auto path = folder / "state" / "config.json";
  std::string text = testing::read_file(path);
  text[text.find(':')] = '!';
  testing::write_file(path, text);
  for (const std::string& model : {path.string(), path.parent_path().string()})
    EXPECT_TRUE(message_of<Error>([&] { load_config(model); }).starts_with(path.string() + ": is damaged"));
}

TEST(Config, SizesThatMakeAGpuSlowAreNamed) {
  ModelConfig config = parse_config(small(), "c.json");
  config.hidden_size = 1004, config.intermediate_size = 2816;
  config.num_heads = 8, config.num_kv_heads = 2, config.head_dim = 128;
  const std::vector<std::string> slow = slow_sizes(config, at::kBFloat16);
  ASSERT_EQ(slow.size(), 1u);
  EXPECT_TRUE(slow[0].starts_with("hidden_size 1004 is no multiple of 8")) << slow[0];
  EXPECT_TRUE(slow[0].ends_with("1008 is one")) << slow[0];
  EXPECT_TRUE(slow_sizes(config, at::kFloat).empty());
  config.hidden_size = 1024, config.head_dim = 80;
  ASSERT_EQ(slow_sizes(config, at::kBFloat16).size(), 1u);
  EXPECT_TRUE(slow_sizes(config, at::kBFloat16)[0].starts_with("head_dim 80: "));
  config.head_dim = 64, config.vocab_size = 50257;
  EXPECT_TRUE(slow_sizes(config, at::kBFloat16).empty()) << "the loss pads its words";
}

TEST(Config, CountsTiedEmbeddingsOnce) {
  ModelConfig config = parse_config(small(), "c.json");
  const std::uint64_t untied = parameter_count(config);
  config.tied_embeddings = true;
  EXPECT_EQ(untied - parameter_count(config), 100u * 64u);
}

}  // namespace
}  // namespace snug::models
