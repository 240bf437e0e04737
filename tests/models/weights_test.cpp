#include "snug/models/weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "snug/base/error.h"
#include "snug/io/safetensors_writer.h"
#include "tests/support/temporary_folder.h"

namespace snug::models {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using Tensors = std::map<std::string, at::Tensor>;

ModelConfig small(Family family, bool tied = false) {
  return {.family = family,
          .vocab_size = 20,
          .hidden_size = 16,
          .intermediate_size = 24,
          .num_layers = 2,
          .num_heads = 4,
          .num_kv_heads = family == Family::Gpt2 ? 4 : 2,
          .head_dim = 4,
          .max_positions = 8,
          .tied_embeddings = tied};
}

Tensors tensors_of(const LanguageModel& model) {
  Tensors tensors;
  for (const auto& item : model.named_parameters()) tensors[item.key()] = item.value().detach();
  return tensors;
}

void write(const std::filesystem::path& path, const Tensors& tensors) {
  std::vector<io::TensorSource> sources;
  for (const auto& [name, tensor] : tensors) sources.push_back(io::source_of(name, tensor));
  io::write_safetensors(path, sources);
}

class Weights : public ::testing::Test {
 protected:
  // What load_weights() says, or nothing. check_weights() must say the same.
  std::string refusal(const ModelConfig& config = small(Family::Llama)) {
    const std::string message = message_of<Error>([&] { load_weights(*make_model(config), folder_.path()); });
    EXPECT_EQ(message_of<Error>([&] { check_weights(config, folder_.path()); }), message);
    return message;
  }

  void expect_refusal(const Tensors& tensors, const std::string& part) {
    write(folder_ / "model.safetensors", tensors);
    const std::string message = refusal();
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }

  TemporaryFolder folder_;
};

TEST_F(Weights, OfEveryFamilyGoWhereTheyBelong) {
  for (const Family family : {Family::Llama, Family::Mistral, Family::Qwen2, Family::Qwen3, Family::Gpt2})
    for (const bool tied : {false, true}) {
      const ModelConfig config = small(family, tied);
      const auto source = make_model(config);
      {
        at::NoGradGuard no_grad;
        for (at::Tensor& parameter : source->parameters()) parameter.normal_();
      }
      write(folder_ / "model.safetensors", tensors_of(*source));
      const auto model = make_model(config, {.fresh = false});
      load_weights(*model, folder_.path());
      const Tensors expected = tensors_of(*source);
      for (const auto& [name, tensor] : tensors_of(*model))
        EXPECT_TRUE(at::equal(tensor, expected.at(name))) << name;
      EXPECT_NO_THROW(check_weights(config, folder_.path()));
    }
}

TEST_F(Weights, TakeTheTypeOfTheModel) {
  const auto source = make_model(small(Family::Llama));
  write(folder_ / "model.safetensors", tensors_of(*source));
  const auto model = make_model(small(Family::Llama), {.tensors = at::kBFloat16, .fresh = false});
  load_weights(*model, folder_.path());
  const Tensors expected = tensors_of(*source);
  for (const auto& [name, tensor] : tensors_of(*model))
    EXPECT_TRUE(at::equal(tensor, expected.at(name).to(at::kBFloat16))) << name;
}

TEST_F(Weights, MustBeThoseOfTheModel) {
  const Tensors all = tensors_of(*make_model(small(Family::Llama)));
  Tensors tensors = all;
  tensors.erase("model.layers.1.mlp.up_proj.weight");
  expect_refusal(tensors, "'model.layers.1.mlp.up_proj.weight' [24, 16] is in no file");
  tensors.erase("model.norm.weight");
  expect_refusal(tensors, "nor are 1 others");
  tensors = all;
  tensors["model.layers.0.self_attn.q_proj.bias"] = at::zeros({16});
  expect_refusal(tensors, "'model.layers.0.self_attn.q_proj.bias' is no parameter of the model");
  tensors = all;
  tensors["lm_head.weight"] = at::zeros({21, 16});
  expect_refusal(tensors, "'lm_head.weight': the model needs [20, 16], got [21, 16]");
  tensors = all;
  tensors["model.norm.weight"] = at::zeros({16}, at::kLong);
  expect_refusal(tensors, "expected F32, BF16, F16 or F64, got I64");
  tensors["model.norm.weight"] = at::zeros({16}, at::kFloat8_e4m3fn);
  expect_refusal(tensors, "expected F32, BF16, F16 or F64, got F8_E4M3");
}

TEST_F(Weights, OfAHeadThatIsTheEmbeddingAreNotNeeded) {
  Tensors tensors = tensors_of(*make_model(small(Family::Llama, /*tied=*/true)));
  tensors["lm_head.weight"] = tensors.at("model.embed_tokens.weight").clone();
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = at::ones({2});
  write(folder_ / "model.safetensors", tensors);
  EXPECT_NO_THROW(check_weights(small(Family::Llama, true), folder_.path()));
  EXPECT_NO_THROW(load_weights(*make_model(small(Family::Llama, true)), folder_.path()));
  tensors["lm_head.weight"][0][0] += 1;
  write(folder_ / "model.safetensors", tensors);
  EXPECT_NE(message_of<Error>([&] {
              load_weights(*make_model(small(Family::Llama, true)), folder_.path());
            }).find("'lm_head.weight' differs from the embedding"),
            std::string::npos);
}

TEST_F(Weights, InShardsAreWhereTheIndexSays) {
  const Tensors all = tensors_of(*make_model(small(Family::Llama)));
  Tensors first, second;
  Json places = Json::object();
  for (const auto& [name, tensor] : all) {
    const bool is_first = name.find("layers.0") != std::string::npos;
    (is_first ? first : second)[name] = tensor;
    places[name] = is_first ? "model-00001-of-00002.safetensors" : "model-00002-of-00002.safetensors";
  }
  const auto index = [&](const Json& map) {
    testing::write_file(folder_ / "model.safetensors.index.json",
                        Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
  };
  write(folder_ / "model-00001-of-00002.safetensors", first);
  write(folder_ / "model-00002-of-00002.safetensors", second);
  index(places);
  const auto model = make_model(small(Family::Llama), {.fresh = false});
  load_weights(*model, folder_.path());
  for (const auto& [name, tensor] : tensors_of(*model)) EXPECT_TRUE(at::equal(tensor, all.at(name))) << name;

  Json changed = places;
  changed["model.norm.weight"] = "model-00001-of-00002.safetensors";
  index(changed);
  EXPECT_NE(refusal().find("'model.norm.weight' is not in model-00001-of-00002.safetensors"),
            std::string::npos);
  changed = places;
  changed.erase("model.norm.weight");
  index(changed);
  EXPECT_NE(refusal().find("'model.norm.weight' in model-00002-of-00002.safetensors is not named"),
            std::string::npos);
  changed = places;
  changed["model.norm.weight"] = "../model-00002-of-00002.safetensors";
  index(changed);
  EXPECT_NE(refusal().find("expected a file of the same folder"), std::string::npos);
  index(places);
  std::filesystem::remove(folder_ / "model-00002-of-00002.safetensors");
  EXPECT_NE(refusal().find("'model-00002-of-00002.safetensors' is missing"), std::string::npos);
  index(Json::array());
  EXPECT_NE(refusal().find("weight_map must be an object"), std::string::npos);
}

TEST_F(Weights, AreMissedWhereThereAreNone) {
  EXPECT_NE(refusal().find("no weights: expected model.safetensors"), std::string::npos);
  testing::write_file(folder_ / "pytorch_model.bin", "x");
  EXPECT_NE(refusal().find("pytorch_model.bin is not read"), std::string::npos);
}

}  // namespace
}  // namespace snug::models
