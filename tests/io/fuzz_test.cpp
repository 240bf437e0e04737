// Random damage to everything that is read from outside: safetensors, indices, config.json, token files,
// training states. Each is read or refused with an Error; nothing crashes, hangs or reads outside its file.
// SNUG_FUZZ=n: so many inputs of each kind, a million for the figure; SNUG_SEED=n repeats a run.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "snug/base/error.h"
#include "snug/io/checksum.h"
#include "snug/io/safetensors.h"
#include "snug/io/safetensors_writer.h"
#include "snug/io/token_file.h"
#include "snug/io/training_state.h"
#include "snug/io/weight_files.h"
#include "snug/models/config.h"
#include "snug/models/presets.h"
#include "tests/io/raw_safetensors.h"
#include "tests/support/mutate.h"
#include "tests/support/random_suite.h"
#include "tests/support/temporary_folder.h"

namespace snug::io {
namespace {

using testing::mutate;
using testing::read_file;
using testing::TemporaryFolder;
using testing::write_file;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : engine_() % limit; }

 private:
  std::mt19937_64 engine_;
};

// What mutations of bytes rarely hit upon.
const char* const kWords[] = {"-1",
                              "0",
                              "1e400",
                              "9223372036854775807",
                              "18446744073709551615",
                              "1152921504606846976",
                              "null",
                              "true",
                              "[]",
                              "{}",
                              "\"\"",
                              "\"F32\"",
                              "\"BF16\"",
                              "0.5",
                              "[0,0]",
                              "\"dtype\"",
                              "\"../x\"",
                              "2"};

// One value of a JSON text, or any of its bytes.
void mutate_json(std::string& text, Random& random) {
  if (random.below(2) == 0) return mutate(text, random);
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i + 1 < text.size(); ++i)
    if (text[i] == ':' || text[i] == '[' || text[i] == ',') starts.push_back(i + 1);
  if (starts.empty()) return mutate(text, random);
  const std::size_t at = starts[random.below(starts.size())];
  const std::size_t end = std::min(text.find_first_of(",]}", at), text.size());
  text.replace(at, end - at, kWords[random.below(std::size(kWords))]);
}

class Fuzz : public ::testing::Test {
 protected:
  static constexpr int kUsual = 20'000;

  // Calls `read` with so many damaged copies. Anything but an Error fails; some must be good, and most bad.
  template <class Damage, class Read>
  void run(const std::vector<std::string>& originals, Damage damage, Read read) {
    const auto count = static_cast<int>(random_suite::size("SNUG_FUZZ", kUsual));
    int refused = 0;
    for (int i = 0; i < count; ++i) {
      std::string bytes = originals[random_.below(originals.size())];
      for (std::size_t times = random_.below(4); times > 0; --times) damage(bytes);
      try {
        read(bytes);
      } catch (const Error&) {
        ++refused;
      } catch (const std::exception& error) {
        FAIL() << error.what() << " for: " << bytes.substr(0, 2000);
      }
    }
    EXPECT_GT(refused, count / 4);
    EXPECT_LT(refused, count);
  }

  std::uint64_t seed_ = random_suite::seed();
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, "SNUG_SEED=" + std::to_string(seed_)};
  Random random_{seed_};
  TemporaryFolder folder_;
};

std::string safetensors_file(const TemporaryFolder& folder) {
  write_safetensors(
      folder / "original.safetensors",
      {source_of("model.norm.weight", at::randn({5})), source_of("a", at::randn({2, 3}).to(at::kBFloat16)),
       source_of("empty", at::zeros({0, 4})), source_of("scalar", at::scalar_tensor(3))},
      {{"format", "pt"}});
  return read_file(folder / "original.safetensors");
}

// Header and data apart, and the length made right half of the time, so that damage gets past the first
// check.
void damage_safetensors(std::string& bytes, Random& random) {
  if (bytes.size() < 9 || random.below(8) == 0) return mutate(bytes, random);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  length = std::min<std::uint64_t>(length, bytes.size() - 8);
  std::string header = bytes.substr(8, length), data = bytes.substr(8 + length);
  if (random.below(4) > 0)
    mutate_json(header, random);
  else if (!data.empty())
    mutate(data, random);
  if (random.below(2) == 0)
    bytes = testing::safetensors_bytes(header, data);
  else
    bytes = bytes.substr(0, 8) + header + data;
}

TEST_F(Fuzz, SafetensorsInMemory) {
  run(
      {safetensors_file(folder_)}, [&](std::string& bytes) { damage_safetensors(bytes, random_); },
      [&](const std::string& bytes) {
        // A copy of its own size: a sanitizer sees a read beyond it.
        const std::vector<std::byte> copy(reinterpret_cast<const std::byte*>(bytes.data()),
                                          reinterpret_cast<const std::byte*>(bytes.data()) + bytes.size());
        for (const TensorEntry& entry : parse_safetensors_header(copy, "x").entries)
          ASSERT_TRUE(entry.begin <= entry.end && entry.end <= bytes.size());
      });
}

TEST_F(Fuzz, SafetensorsMapped) {
  run(
      {safetensors_file(folder_)}, [&](std::string& bytes) { damage_safetensors(bytes, random_); },
      [&](const std::string& bytes) {
        write_file(folder_ / "x.safetensors", bytes);
        const SafetensorsFile file(folder_ / "x.safetensors");
        for (const TensorEntry& entry : file.entries())
          if (entry.bytes() > 0) file.tensor(entry).clone();
      });
}

TEST_F(Fuzz, AnIndexOfShards) {
  write_safetensors(folder_ / "model-1.safetensors", {source_of("a", at::ones({2}))});
  write_safetensors(folder_ / "model-2.safetensors", {source_of("b", at::ones({3}))});
  run(
      {R"({"metadata": {"total_size": 20}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})"},
      [&](std::string& bytes) { mutate_json(bytes, random_); },
      [&](const std::string& bytes) {
        write_file(folder_ / "model.safetensors.index.json", bytes);
        open_weights(folder_.path());
      });
}

TEST_F(Fuzz, Configs) {
  std::vector<std::string> originals;
  for (const char* name : {"tiny", "gpt2", "qwen2.5-0.5b", "qwen3-0.6b"})
    originals.push_back(models::to_json(*models::find_preset(name)).dump());
  originals.push_back(
      R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,)"
      R"("num_attention_heads": 4, "rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0,)"
      R"("low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}})");
  run(
      originals, [&](std::string& bytes) { mutate_json(bytes, random_); },
      [&](const std::string& bytes) {
        const models::ModelConfig config = models::parse_config(parse_json(bytes, "c.json"), "c.json");
        EXPECT_GT(models::parameter_count(config), 0u);
        EXPECT_EQ(models::parse_config(models::to_json(config), "again"), config);
      });
}

TEST_F(Fuzz, TokenFiles) {
  std::vector<std::string> originals;
  for (const auto& [magic, version, bytes] : {std::tuple(20240520, 1, 2), std::tuple(20240801, 7, 4)}) {
    std::vector<std::int32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = 50;
    originals.push_back(std::string(reinterpret_cast<const char*>(header.data()), 1024) +
                        std::string(50 * bytes, '\1'));
  }
  run(
      originals,
      [&](std::string& bytes) {
        if (random_.below(2) == 0 || bytes.size() < 16) return mutate(bytes, random_);
        bytes[random_.below(16)] = static_cast<char>(random_.below(256));
      },
      [&](const std::string& bytes) {
        write_file(folder_ / "x.bin", bytes);
        const TokenFile file(folder_ / "x.bin", 70000);
        std::vector<std::int64_t> tokens(file.size());
        file.read(0, tokens);
      });
}

TEST_F(Fuzz, TrainingStates) {
  const auto state = folder_ / "state";
  write_training_state(state, {.facts = {{"step", 3}, {"run", {{"lr", 0.5}}}},
                               .model_config = {{"model_type", "llama"}},
                               .model = {source_of("a", at::ones({2}))},
                               .optimizer = {source_of("exp_avg.a", at::ones({2}))}});
  run(
      {read_file(state / "state.json")},
      [&](std::string& bytes) {
        mutate_json(bytes, random_);
        if (random_.below(2) == 0) return;
        try {  // its own checksum made right, so that damage gets further
          Json json = parse_json(bytes, "state.json");
          json.erase("xxh3");
          json["xxh3"] = checksum_of(json.dump());
          bytes = json.dump();
        } catch (const Error&) {
        }
      },
      [&](const std::string& bytes) {
        write_file(state / "state.json", bytes);
        SavedState saved(state);
      });
}

}  // namespace
}  // namespace snug::io
