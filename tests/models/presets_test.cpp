#include "snug/models/presets.h"

#include <gtest/gtest.h>

#include <string>

#include "snug/models/language_model.h"

namespace snug::models {
namespace {

struct Published {
  const char* name;
  std::uint64_t parameters;
};

constexpr Published kPublished[] = {
    {"tiny", 5'869'824},           {"llama-1.3b", 1'264'674'816},
    {"llama2-7b", 6'738'415'616},  {"llama3-8b", 8'030'261'248},
    {"gpt2", 124'439'808},         {"gpt2-medium", 354'823'168},
    {"gpt2-large", 774'030'080},   {"gpt2-xl", 1'557'611'200},
    {"qwen2.5-0.5b", 494'032'768}, {"qwen2.5-1.5b", 1'543'714'304},
    {"qwen2.5-3b", 3'085'938'688}, {"qwen2.5-7b", 7'615'616'512},
    {"qwen3-0.6b", 596'049'920},   {"qwen3-1.7b", 1'720'574'976},
    {"qwen3-4b", 4'022'468'096},   {"qwen3-8b", 8'190'735'360},
};

TEST(Presets, HaveTheirPublishedParameterCounts) {
  for (const auto& [name, parameters] : kPublished) {
    ASSERT_TRUE(find_preset(name)) << name;
    const ModelConfig config = *find_preset(name);
    EXPECT_NO_THROW(validate(config, name));
    EXPECT_EQ(parameter_count(config), parameters) << name;
    std::int64_t counted = 0;
    const auto model = make_model(config, {.tensors = at::kMeta});
    for (const at::Tensor& parameter : model->parameters()) counted += parameter.numel();
    EXPECT_EQ(counted, static_cast<std::int64_t>(parameters)) << name;
  }
}

TEST(Presets, AreAllListed) {
  std::string names;
  for (const auto& [name, parameters] : kPublished) names += names.empty() ? name : std::string(", ") + name;
  EXPECT_EQ(preset_names(), names);
}

TEST(Presets, AreFoundByTheirWholeNameOnly) {
  EXPECT_FALSE(find_preset("llama"));
  EXPECT_FALSE(find_preset("TINY"));
  EXPECT_FALSE(find_preset(""));
}

}  // namespace
}  // namespace snug::models
