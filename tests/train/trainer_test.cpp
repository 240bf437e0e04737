#include "snug/train/trainer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "snug/base/error.h"
#include "snug/io/training_state.h"
#include "snug/memory/out_of_budget.h"
#include "snug/report/peak.h"
#include "snug/train/planning.h"
#include "tests/support/random_suite.h"
#include "tests/support/temporary_folder.h"
#include "tests/train/random_shape.h"

namespace snug::train {
namespace {

namespace fs = std::filesystem;
using trace::Category;

class Trainer : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    folder = fs::temp_directory_path() / ("snug-train-" + std::to_string(getpid()));
    fs::remove_all(folder);
  }
  void TearDown() override { fs::remove_all(folder); }
  fs::path folder;
};

TrainConfig small() {
  TrainConfig config;
  config.model_name = "tiny";
  config.model = models::load_config("tiny");
  config.steps = 2;
  config.batch_size = config.micro_batch = 2;
  config.seq_len = 64;
  return config;
}

TEST_F(Trainer, PredictsTheMeasuredPeakToTheByteForTenShapes) {
  const std::uint64_t seed = random_suite::seed();
  for (std::uint64_t i = 0; i < 10; ++i) {
    const TrainConfig config = random_shape(seed + i);
    const TrainResult result = train(config);
    SCOPED_TRACE("seed " + std::to_string(seed + i) + ": " + to_json(config).dump());
    EXPECT_EQ(result.predicted.peak.total, result.measured.peak.total);
    EXPECT_EQ(result.predicted.peak.bytes, result.measured.peak.bytes);
  }
}

TEST_F(Trainer, PredictsTheMeasuredPeakToTheByteWhateverIsOffloaded) {
  const std::uint64_t seed = random_suite::seed();
  for (std::uint64_t i = 0; i < 6; ++i) {
    TrainConfig config = random_shape(seed + i);
    config.recompute = static_cast<Recompute>(i % 3);
    const bool has_one_value = config.recompute == Recompute::Block;  // what comes in
    config.offload = OffloadLimit{.share = i < 3 || has_one_value ? 1 : 0.6};
    const TrainResult result = train(config);
    SCOPED_TRACE("seed " + std::to_string(seed + i) + ": " + to_json(config).dump());
    EXPECT_EQ(result.predicted.peak.total, result.measured.peak.total);
    EXPECT_GT(result.measured.host_bytes, 0u);
    EXPECT_LE(result.measured.host_bytes, result.predicted.host_bytes);
  }
}

TEST_F(Trainer, AlmostNothingAtThePeakIsUnclaimed) {
  const TrainResult result = train(small());  // 8 layers, hidden 256
  EXPECT_LE(result.measured.peak[Category::Other] * 100, result.measured.peak.total);
  EXPECT_GT(result.measured.peak[Category::Parameter], 0u);
  EXPECT_GT(result.measured.peak[Category::Activation], 0u);
  EXPECT_EQ(result.measured.peak[Category::Optimizer],
            2 * result.measured.peak[Category::Parameter] + 4 * 74);
}

TEST_F(Trainer, TheBudgetAtTheMeasuredPeakHoldsAndBelowItStops) {
  TrainConfig config = small();
  const std::uint64_t peak = train(config).measured.peak.total;
  config.budget_bytes = peak;
  EXPECT_EQ(train(config).measured.peak.total, peak);
  config.budget_bytes = peak - peak / 100;
  try {
    train(config);
    FAIL() << "passed the budget";
  } catch (const memory::OutOfBudget& error) {
    EXPECT_GT(error.alive()[Category::Parameter], 0u);
    EXPECT_FALSE(error.alive().regions.empty());
    EXPECT_NE(std::string(error.what()).find("layers."), std::string::npos) << error.what();
  }
}

TEST_F(Trainer, RecomputationChangesMemoryAndNothingElse) {
  TrainConfig config = small();
  config.seq_len = 128;
  const TrainResult plain = train(config);
  for (Recompute recompute : {Recompute::Cheap, Recompute::Block}) {
    config.recompute = recompute;
    const TrainResult result = train(config);
    EXPECT_EQ(result.last_loss, plain.last_loss) << name(recompute);
    EXPECT_EQ(result.measured.peak.total, result.predicted.peak.total) << name(recompute);
    EXPECT_LT(result.measured.peak.total, plain.measured.peak.total) << name(recompute);
    const auto& block = result.measured.recomputed.at("layers.0");
    EXPECT_GT(block.dropped_bytes, 0u);
    EXPECT_GT(block.replays, 0u);
    EXPECT_GT(block.replay_seconds, 0);
  }
}

TEST_F(Trainer, TheTraceHoldsTheTapesOfTheFirstStep) {
  TrainConfig config = small();
  fs::create_directories(folder);
  train(config, {.trace = folder / "trace", .traced_steps = 2, .tapes = true});
  const trace::Trace trace = trace::load(folder / "trace");
  ASSERT_EQ(trace.tapes.size(), static_cast<std::size_t>(config.model.num_layers) + 2);
  EXPECT_EQ(trace.tapes.front().region, "embed");
  EXPECT_EQ(trace.tapes.back().region, "head");
  EXPECT_EQ(trace.tapes[1].structure_hash(), trace.tapes[2].structure_hash());
  EXPECT_GT(trace.tapes[1].saves.size(), 10u);
  EXPECT_EQ(trace.tapes[1].values.front().fate, trace::Fate::Keep);
}

TEST_F(Trainer, LossFallsOnDataThatCanBeLearned) {
  TrainConfig config = small();
  fs::create_directories(folder);
  std::ofstream text(folder / "text.txt");
  for (int i = 0; i < 500; ++i) text << "the quick brown fox jumps over the lazy dog. ";
  text.close();
  config.data = folder / "text.txt";
  config.steps = 30;
  config.optimizer.lr = 1e-3;
  const TrainResult result = train(config);
  EXPECT_EQ(result.steps, 30);
  EXPECT_LT(*result.last_loss, 0.7 * *result.first_loss);
}

TEST_F(Trainer, TheSameSeedGivesTheSameLosses) {
  const TrainResult first = train(small()), second = train(small());
  EXPECT_EQ(first.last_loss, second.last_loss);
}

TEST_F(Trainer, Bf16KeepsAnExactMasterAndItsPeakIsPredicted) {
  TrainConfig config = small();
  config.precision = Precision::Bf16;
  std::vector<double> losses;
  for (const auto& [master, bytes] :
       {std::pair{optim::Master::Split, 10u}, std::pair{optim::Master::Fp32, 12u}}) {
    config.optimizer.master = master;
    const TrainResult result = train(config);
    const auto& peak = result.measured.peak;
    EXPECT_EQ(peak[Category::Optimizer], bytes / 2 * peak[Category::Parameter] + 4 * 74);
    EXPECT_NEAR(static_cast<double>(peak.total), static_cast<double>(result.predicted.peak.total),
                0.01 * peak.total);
    losses.push_back(*result.last_loss);
  }
  EXPECT_NEAR(losses[0], losses[1], 1e-3);
}

TEST_F(Trainer, WritesTheRunDirectory) {
  TrainConfig config = small();
  const fs::path out = folder / "run";
  train(config, {.out_dir = out, .trace = out / "trace", .traced_steps = 1});
  std::ifstream metrics(out / "metrics.jsonl");
  std::string line;
  std::int64_t lines = 0;
  while (std::getline(metrics, line)) {
    const Json json = Json::parse(line);
    EXPECT_EQ(json.at("step"), ++lines);
    for (const char* key : {"loss", "tokens_per_second", "peak_bytes"})
      EXPECT_TRUE(json.at(key).is_number()) << key;
  }
  EXPECT_EQ(lines, 2);
  EXPECT_EQ(read_json(out / "config.json").at("batch_size"), 2);
  const report::Summary summary = report::summarise(out / "trace");
  EXPECT_EQ(summary.steps, 1u);
  EXPECT_FALSE(summary.cut_short);
  EXPECT_THROW(train(config, {.out_dir = out}), Error) << "a run is there already";
}

TEST_F(Trainer, StopsAfterTheCurrentStepWhenAsked) {
  TrainConfig config = small();
  config.steps = 1000;
  std::atomic<bool> stop{false};
  const TrainResult result =
      train(config, {.out_dir = folder / "run",
                     .on_step = [&](const StepMetrics& metrics) { stop = metrics.step == 2; },
                     .stop = &stop});
  EXPECT_EQ(result.steps, 2);
  EXPECT_TRUE(result.interrupted);
  std::ifstream metrics(folder / "run" / "metrics.jsonl");
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(metrics), {}, '\n'), 2);
}

TEST_F(Trainer, TheTraceOfARunThatRanOutOfMemoryIsKept) {
  TrainConfig config = small();
  config.budget_bytes = train(config).measured.peak.total * 9 / 10;
  try {
    train(config, {.out_dir = folder / "run", .trace = folder / "run" / "trace"});
    FAIL() << "passed the budget";
  } catch (const memory::OutOfBudget& error) {
    const report::Summary summary = report::summarise(folder / "run" / "trace");
    EXPECT_LE(summary.peak.total, *config.budget_bytes);
    EXPECT_GE(summary.peak.total, error.alive().total);
  }
}

TEST_F(Trainer, ARunThatIsStoppedAtOnceHasNoLoss) {
  const std::atomic<bool> stop{true};
  const TrainResult result = train(small(), {.stop = &stop});
  EXPECT_EQ(result.steps, 0);
  EXPECT_TRUE(result.interrupted);
  EXPECT_FALSE(result.first_loss);
  EXPECT_FALSE(result.last_loss);
}

TEST_F(Trainer, ALossThatIsNotFiniteEndsTheRunUnlessAllowed) {
  TrainConfig config = small();
  config.steps = 6;
  config.optimizer.lr = 1e30;
  EXPECT_THROW(train(config), RunError);
  config.allow_nan = true;
  EXPECT_EQ(train(config).steps, 6);
}

TEST_F(Trainer, WithTwoThreadsTheDifferenceIsNamedByCategory) {
  at::set_num_threads(2);
  TrainConfig config = small();
  config.seq_len = 200;
  const TrainResult result = train(config);
  const auto& predicted = result.predicted.peak;
  const auto& measured = result.measured.peak;
  for (Category category : trace::kAllCategories) {
    if (category == Category::Temporary) continue;
    EXPECT_EQ(predicted[category], measured[category]) << trace::name(category);
  }
  EXPECT_NEAR(static_cast<double>(predicted.total), static_cast<double>(measured.total),
              0.01 * measured.total);
}

TEST_F(Trainer, ThePredictedMaximumOfTemporariesIsThatOfAStep) {
  const capture::Captured captured = predict(small(), {.steps = 1});
  EXPECT_LT(captured.category_peaks[static_cast<std::size_t>(Category::Temporary)],
            captured.peak[Category::Parameter]);
}

TEST(TrainConfig, RefusesWhatCannotRun) {
  auto message = [](auto change) {
    TrainConfig config = small();
    change(config);
    try {
      validate(config);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(message([](auto&) {}), "accepted");
  EXPECT_EQ(message([](auto& c) { c.batch_size = 0; }), "`batch_size` must be at least 1, got 0");
  EXPECT_EQ(message([](auto& c) {
              c.micro_batch = 3;
              c.batch_size = 8;
            }),
            "`micro_batch` 3 does not divide `batch_size` 8");
  EXPECT_NE(message([](auto& c) { c.seq_len = 1 << 20; }).find("positions"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.optimizer.master = optim::Master::Split; }).find("`master`"),
            std::string::npos);
  EXPECT_NE(message([](auto& c) {
              c.device = c10::kCUDA;
              c.model.head_dim = 100;
            }).find("`allow_quadratic`"),
            std::string::npos);
  EXPECT_NE(message([](auto& c) { c.allow_quadratic = true; }).find("has no use"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.optimizer.lr = NAN; }).find("`lr`"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.optimizer.lr = 1e99; }).find("`lr`"), std::string::npos);
  EXPECT_NE(message([](auto& c) { c.optimizer.warmup = 3; }).find("`warmup`"), std::string::npos);
}

// One step in the middle overflows: it and no other is left out, is said to be, and halves the scale.
TEST_F(Trainer, Fp16SurvivesAnOverflow) {
  TrainConfig config = small();
  config.precision = Precision::Fp16;
  config.steps = 5;
  config.loss_scale = 1024;
  config.optimizer.lr = 1e-3;
  std::vector<StepMetrics> steps;
  const auto run = [&](std::int64_t overflow_at) {
    steps.clear();
    fs::remove_all(folder);
    return train(config, {.out_dir = folder,
                          .on_step = [&](const StepMetrics& metrics) { steps.push_back(metrics); },
                          .on_gradients =
                              [&](std::int64_t step, const std::vector<at::Tensor>& gradients) {
                                if (step != overflow_at) return;
                                gradients[3].flatten()[5].fill_(std::numeric_limits<double>::infinity());
                              }});
  };
  const TrainResult result = run(3);
  ASSERT_EQ(steps.size(), 5u);
  for (const StepMetrics& metrics : steps) {
    EXPECT_EQ(metrics.skipped, metrics.step == 3) << "step " << metrics.step;
    EXPECT_EQ(metrics.loss_scale, metrics.step <= 3 ? 1024 : 512) << "step " << metrics.step;
    EXPECT_TRUE(std::isfinite(metrics.loss));
  }
  EXPECT_EQ(result.skipped, 1);
  EXPECT_EQ(result.loss_scale, 512);
  EXPECT_EQ(result.predicted.peak.total, result.measured.peak.total);
  EXPECT_LT(*result.last_loss, *result.first_loss);
  std::ifstream lines(folder / "metrics.jsonl");
  std::string line;
  for (int step = 1; std::getline(lines, line); ++step)
    EXPECT_EQ(line.find("\"skipped\":true") != std::string::npos, step == 3) << line;

  EXPECT_EQ(run(0).skipped, 0);
  config.precision = Precision::Bf16;
  try {
    run(2);
    FAIL() << "it went on";
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("`allow_nan` to go on"), std::string::npos) << error.what();
  }
  config.allow_nan = true;
  EXPECT_EQ(run(2).steps, 5);
}

TEST_F(Trainer, Fp16GivesUpWhenNoScaleHelps) {
  TrainConfig config = small();
  config.precision = Precision::Fp16;
  config.steps = 8;
  config.loss_scale = 4;
  const auto always = [](std::int64_t, const std::vector<at::Tensor>& gradients) {
    gradients[0].fill_(std::numeric_limits<double>::quiet_NaN());
  };
  try {
    train(config, {.on_gradients = always});
    FAIL() << "it went on";
  } catch (const RunError& error) {
    EXPECT_NE(std::string(error.what()).find("loss scale fell below 1 at step 3"), std::string::npos)
        << error.what();
  }
}

// Quick to save.
TrainConfig little() {
  TrainConfig config = small();
  config.model = models::parse_config({{"model_type", "llama"},
                                       {"vocab_size", 64},
                                       {"hidden_size", 16},
                                       {"intermediate_size", 32},
                                       {"num_hidden_layers", 1},
                                       {"num_attention_heads", 2},
                                       {"max_position_embeddings", 16}},
                                      "little");
  config.batch_size = config.micro_batch = 4;
  config.seq_len = 8;
  return config;
}

TEST_F(Trainer, AResumeWithoutAStateLosesNoMetrics) {
  train(little(), {.out_dir = folder});
  const auto size = fs::file_size(folder / "metrics.jsonl");
  const std::string message =
      testing::message_of<Error>([&] { train(little(), {.out_dir = folder, .resume = true}); });
  EXPECT_NE(message.find("holds 2 steps and no state to go on from: choose another `out_dir`"),
            std::string::npos)
      << message;
  EXPECT_EQ(fs::file_size(folder / "metrics.jsonl"), size);
  fs::resize_file(folder / "metrics.jsonl", 20);  // half a line
  EXPECT_EQ(train(little(), {.out_dir = folder, .resume = true}).steps, 2);
}

TEST_F(Trainer, TheLastFiniteStateStaysHoweverManyNansFollow) {
  TrainConfig config = little();
  config.steps = 5;
  config.allow_nan = true;
  config.optimizer.lr = 1e30;
  config.optimizer.clip = 0;
  const TrainOptions options{.out_dir = folder, .save = true, .save_every = 1, .keep_last = 1};
  train(config, options);
  EXPECT_EQ(io::saved_steps(folder), (std::vector<std::int64_t>{1, 5}));
  config.steps = 6;  // also of a run that goes on
  TrainOptions later = options;
  later.resume = true;
  train(config, later);
  EXPECT_EQ(io::saved_steps(folder), (std::vector<std::int64_t>{1, 6}));
}

TEST_F(Trainer, AResumeSaysIfTheBatchIsSplitOtherwise) {
  TrainConfig config = little();
  train(config, {.out_dir = folder, .save = true});
  std::vector<std::string> said;
  const auto resume = [&](std::int64_t micro_batch) {
    config.micro_batch = micro_batch;
    ++config.steps;
    said.clear();
    train(config, {.out_dir = folder,
                   .on_trouble = [&](const std::string& text) { said.push_back(text); },
                   .save = true,
                   .resume = true});
  };
  resume(4);
  EXPECT_EQ(said, std::vector<std::string>());
  resume(2);
  EXPECT_EQ(said,
            std::vector<std::string>{"the batch is now split 2 x 2, it was 4 x 1: last bits may differ"});
}

}  // namespace
}  // namespace snug::train
