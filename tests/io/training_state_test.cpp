#include "snug/io/training_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "snug/base/error.h"
#include "snug/io/checksum.h"
#include "tests/support/temporary_folder.h"

namespace snug::io {
namespace {

using testing::message_of;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

class State : public ::testing::Test {
 protected:
  void SetUp() override {
    write_training_state(state_, {.facts = {{"step", 3}},
                                  .model_config = {{"model_type", "llama"}},
                                  .model = {source_of("a", at::ones({2}))},
                                  .optimizer = {source_of("exp_avg.a", at::ones({2}))},
                                  .companions = {{"tokenizer.json", "{}"}}});
  }

  TemporaryFolder folder_;
  const std::filesystem::path state_ = folder_ / "step-3";
};

TEST_F(State, EveryFileHasAChecksum) {
  EXPECT_EQ(SavedState(state_).facts(), facts_of(state_));
  for (const char* name : {"config.json", "model.safetensors", "optimizer.safetensors", "tokenizer.json"}) {
    const std::string good = read_file(state_ / name);
    std::string bad = good;
    bad.back() ^= 1;
    write_file(state_ / name, bad);
    const auto finds = [&](auto check) {
      return message_of<Error>([&] { check(state_); }).starts_with((state_ / name).string() + ": is damaged");
    };
    EXPECT_TRUE(finds([](const auto& folder) { SavedState saved(folder); })) << name;
    const bool is_of_model = std::string(name) != "optimizer.safetensors";
    EXPECT_TRUE(!is_of_model || finds(check_saved_model)) << name;
    EXPECT_TRUE(std::string(name) != "config.json" || finds(check_saved_config));
    write_file(state_ / name, good);
  }
}

TEST_F(State, OneWithoutChecksumsOfCompanionsIsReadAsBefore) {
  Json json = read_json(state_ / "state.json");
  json["files"].erase("tokenizer.json");
  json.erase("xxh3");
  json["xxh3"] = checksum_of(json.dump());
  write_file(state_ / "state.json", json.dump());
  write_file(state_ / "tokenizer.json", "another");
  EXPECT_NO_THROW(SavedState saved(state_));
}

}  // namespace
}  // namespace snug::io
