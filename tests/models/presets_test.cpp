#include "snug/models/presets.h"

#include <gtest/gtest.h>

namespace snug::models {
namespace {

TEST(Presets, HaveTheirPublishedParameterCounts) {
  EXPECT_EQ(parameter_count(*find_preset("llama2-7b")), 6'738'415'616u);
  EXPECT_EQ(parameter_count(*find_preset("llama3-8b")), 8'030'261'248u);
  EXPECT_EQ(parameter_count(*find_preset("llama-1.3b")), 1'264'674'816u);
  EXPECT_EQ(parameter_count(*find_preset("tiny")), 5'869'824u);
}

TEST(Presets, AreAllValid) {
  for (const char* name : {"tiny", "llama-1.3b", "llama2-7b", "llama3-8b"}) {
    ASSERT_TRUE(find_preset(name)) << name;
    EXPECT_NO_THROW(validate(*find_preset(name), name));
  }
  EXPECT_EQ(preset_names(), "tiny, llama-1.3b, llama2-7b, llama3-8b");
}

TEST(Presets, AreFoundByTheirWholeNameOnly) {
  EXPECT_FALSE(find_preset("llama"));
  EXPECT_FALSE(find_preset("TINY"));
  EXPECT_FALSE(find_preset(""));
}

}  // namespace
}  // namespace snug::models
