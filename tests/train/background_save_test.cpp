// States that are written beside the steps: what is saved is the moment of the save, and no step learns
// otherwise.
#include "snug/train/background_save.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "snug/base/error.h"
#include "snug/io/safetensors.h"
#include "snug/precision/grad_scaler.h"
#include "snug/session/session.h"
#include "snug/train/planning.h"
#include "snug/train/saved_run.h"
#include "snug/train/trainer.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"

namespace snug::train::background_save {
namespace {

namespace fs = std::filesystem;

// Opens for all numbers up to one.
class Gate {
 public:
  void open(std::int64_t number) {
    {
      const std::scoped_lock lock(mutex_);
      open_ = number;
    }
    changed_.notify_all();
  }
  void pass(std::int64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return number <= open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t open_ = 0;
};

class BackgroundSaveTest : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  at::Tensor saved(const std::string& name) const {
    const io::SafetensorsFile file(folder_ / "x.safetensors");
    return file.tensor(*file.find(name)).clone();
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(BackgroundSaveTest, WhatItWritesIsWhatWasThereWhenItBegan) {
  Gate gate;
  at::Tensor device = at::full({100}, 1.0), copied = at::full({100}, 2.0), waited_for = at::full({200}, 3.0);
  BackgroundSave save(400 + 400);  // for the first two
  const std::vector<io::TensorSource> sources{save.copied("device", device), save.in_place("a", copied, 0),
                                              save.in_place("b", waited_for, 1)};
  save.begin([&] {
    gate.pass(1);
    io::write_safetensors(folder_ / "x.safetensors", sources);
  });
  device.fill_(-1);
  save.before_write(7);  // has nothing there
  save.before_write(0);
  copied.fill_(-2);
  save.before_write(0);
  EXPECT_FALSE(save.is_over());
  std::thread update([&] {
    save.before_write(1);
    waited_for.fill_(-3);
  });
  gate.open(1);
  update.join();
  save.finish();
  EXPECT_TRUE(at::equal(saved("device"), at::full({100}, 1.0)));
  EXPECT_TRUE(at::equal(saved("a"), at::full({100}, 2.0)));
  EXPECT_TRUE(at::equal(saved("b"), at::full({200}, 3.0)));
  EXPECT_EQ(waited_for[0].item<double>(), -3);
}

TEST_F(BackgroundSaveTest, AnErrorLetsUpdatesGoOnAndIsThrownOnce) {
  at::Tensor state = at::ones({100});
  BackgroundSave save(0);
  const io::TensorSource source = save.in_place("a", state, 0);
  save.begin([] { throw RunError("the disk is full"); });
  save.before_write(0);
  EXPECT_EQ(testing::message_of<RunError>([&] { save.finish(); }), "the disk is full");
  save.finish();
}

TrainConfig wide() {
  TrainConfig config;
  config.model = models::parse_config({{"model_type", "llama"},
                                       {"vocab_size", 256},
                                       {"hidden_size", 128},
                                       {"intermediate_size", 352},
                                       {"num_hidden_layers", 2},
                                       {"num_attention_heads", 4},
                                       {"max_position_embeddings", 16}},
                                      "wide");
  config.steps = 3;
  config.batch_size = 2;
  config.micro_batch = 1;
  config.seq_len = 8;
  config.precision = Precision::Bf16;
  return config;
}

std::vector<TrainConfig> placements() {
  std::vector<TrainConfig> all{wide()};
  for (const auto& [states, gradients, weights] :
       {std::tuple(40, 0, 0), {100, 100, 0}, {100, 50, 100}, {100, 100, 100}})
    for (const auto update : {optim::UpdateTime::InStep, optim::UpdateTime::BeforeForward}) {
      TrainConfig& config = all.emplace_back(wide());
      config.states_on_host = states;
      config.gradients_on_host = gradients;
      config.weights_on_host = weights;
      config.update = update;
    }
  return all;
}

using Files = std::map<std::string, std::string>;

Files files_of(const fs::path& run) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(run / "state"))
    if (entry.is_regular_file())
      files[fs::relative(entry.path(), run).string()] = testing::read_file(entry.path());
  return files;
}

void expect_same(const Files& files, const Files& expected) {
  ASSERT_EQ(files.size(), expected.size());
  for (const auto& [name, bytes] : expected) EXPECT_TRUE(files.at(name) == bytes) << name;
}

// Host memory that a save cannot do without.
std::uint64_t copied_bytes(const TrainingSetup& setup) {
  std::uint64_t bytes = 0;
  for (const optim::StateTensor& state : setup.optimizer->state())
    bytes += state.is_on_host ? 0 : state.tensor.nbytes();
  for (const at::Tensor& parameter : setup.optimizer->parameters())
    bytes += setup.there && setup.there->has_weight(parameter) ? 0 : parameter.nbytes();
  return bytes + at::globalContext().defaultGenerator(at::kCPU).get_state().nbytes();
}

// Steps that are each saved, by a disk that begins when the next step has its gradients and then is slow.
enum class Room { None, ForTheDevice, Plenty };
std::vector<double> run_with_slow_disk(const TrainConfig& config, const fs::path& run, Room room) {
  Gate gate;
  if (room == Room::None) gate.open(config.steps);
  const auto slowly = [&](const fs::path& folder, io::TrainingState state, const io::WritingRanks*) {
    gate.pass(JsonReader(state.facts, "facts").required<std::int64_t>("step"));
    for (auto* sources : {&state.model, &state.optimizer})
      for (io::TensorSource& source : *sources)
        source.make = [make = source.make] {
          std::this_thread::sleep_for(std::chrono::microseconds(50));
          return make();
        };
    io::write_training_state(folder, state);
  };
  const io::TokenDataset data = open_data(config);
  RunSaver saver(run, config, run_facts(config, data), /*keep_last=*/100, slowly);
  Session session({}, {.by_hand = treatment(config).by_hand, .predicted = predict(config), .prove = false});
  at::manual_seed(config.seed);
  const auto made = [&] {
    const at::NoGradGuard no_grad;
    return TrainingSetup(config, config.device, session.account());
  };
  TrainingSetup setup = made();
  GradScaler scaler(at::kCPU, {.enabled = false});
  const std::uint64_t spare = room == Room::None           ? 0
                              : room == Room::ForTheDevice ? copied_bytes(setup)
                                                           : std::uint64_t{1} << 30;
  std::vector<double> losses;
  for (std::int64_t step = 1; step <= config.steps; ++step) {
    const io::Batch batch = data.batch(static_cast<std::uint64_t>(step), config.batch_size);
    const StepInputs inputs{.batch = batch,
                            .target_count = count_targets(batch.targets),
                            .lr = 1e-2,
                            .on_gradients = [&](const auto&) {
                              if (room != Room::None) gate.open(step - 1);
                            }};
    losses.push_back(run_step(setup, inputs, config, session.account()).loss.item<double>());
    session.end_step();
    const bool says = !saver.begin_save(step, setup, scaler, spare).empty();
    EXPECT_EQ(says, room == Room::None && step == 1);
  }
  gate.open(config.steps);
  EXPECT_EQ(saver.finish(), io::state_folder(run, config.steps));
  return losses;
}

TEST_F(BackgroundSaveTest, EveryStateIsThatOfASaveThatStopsTheRun) {
  const std::vector<double> losses = run_with_slow_disk(wide(), folder_ / "expected", Room::None);
  const Files expected = files_of(folder_ / "expected");
  EXPECT_EQ(io::saved_steps(folder_ / "expected").size(), 3u);
  for (const TrainConfig& config : placements())
    for (const Room room : {Room::ForTheDevice, Room::Plenty}) {
      SCOPED_TRACE(to_json(config).dump());
      const fs::path run = folder_ / "run";
      EXPECT_EQ(run_with_slow_disk(config, run, room), losses);
      expect_same(files_of(run), expected);
      fs::remove_all(run);
    }
}

TEST_F(BackgroundSaveTest, ARunThatSavesEveryStepNeedsWhatWasPredictedAndLearnsTheSame) {
  const auto run = [&](const TrainConfig& config, const fs::path& folder) {
    std::vector<double> losses;
    std::vector<std::string> said;
    const TrainResult result =
        train(config, {.out_dir = folder,
                       .on_step = [&](const StepMetrics& metrics) { losses.push_back(metrics.loss); },
                       .on_trouble = [&](const std::string& text) { said.push_back(text); },
                       .save = true,
                       .save_every = 1,
                       .keep_last = 100});
    EXPECT_EQ(result.measured.peak.total, result.predicted.peak.total);
    EXPECT_EQ(result.measured.host_bytes, result.predicted.host_bytes);
    EXPECT_EQ(result.state, io::state_folder(folder, config.steps));
    EXPECT_EQ(said.size(), config.host_budget_bytes == 0 ? 1u : 0u);
    for (const std::string& text : said)
      EXPECT_NE(text.find("`host_budget` leaves 0 bytes: the run waits while a state is written"),
                std::string::npos)
          << text;
    return losses;
  };
  TrainConfig stops = wide();
  stops.host_budget_bytes = 0;
  const std::vector<double> losses = run(stops, folder_ / "expected");
  const Files expected = files_of(folder_ / "expected");
  for (const TrainConfig& config : placements()) {
    SCOPED_TRACE(to_json(config).dump());
    EXPECT_EQ(run(config, folder_ / "run"), losses);
    expect_same(files_of(folder_ / "run"), expected);
    fs::remove_all(folder_ / "run");
  }
}

TEST_F(BackgroundSaveTest, ADiskThatFillsUpBesideTheStepsEndsTheRunAndLeavesWhatIsWhole) {
  for (TrainConfig config : placements()) {
    SCOPED_TRACE(to_json(config).dump());
    const fs::path run = folder_ / "run";
    config.steps = 1;
    train(config, {.out_dir = run, .save = true});
    config.steps = 4;
    {
      const testing::FileSizeLimit limit(fs::file_size(run / "state/step-1/optimizer.safetensors") / 2);
      const std::string message = testing::message_of<RunError>(
          [&] { train(config, {.out_dir = run, .save = true, .save_every = 2, .resume = true}); });
      EXPECT_NE(message.find("optimizer.safetensors: cannot write"), std::string::npos) << message;
      EXPECT_NE(message.find("state/step-1 is whole: `resume` goes on from there"), std::string::npos)
          << message;
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(run / "state"), {}), 1);
    EXPECT_EQ(train(config, {.out_dir = run, .save = true, .resume = true}).resumed, 1);
    fs::remove_all(run);
  }
}

TEST_F(BackgroundSaveTest, ARunThatFailsLeavesTheStateThatIsBeingWritten) {
  TrainConfig config = wide();
  config.states_on_host = 100;
  EXPECT_THROW(train(config, {.out_dir = folder_ / "run",
                              .on_step =
                                  [](const StepMetrics& metrics) {
                                    if (metrics.step == 3) throw RunError("enough");
                                  },
                              .save = true,
                              .save_every = 2}),
               RunError);
  EXPECT_EQ(io::saved_steps(folder_ / "run"), std::vector<std::int64_t>{2});
  config.steps = 5;
  EXPECT_EQ(train(config, {.out_dir = folder_ / "run", .resume = true}).resumed, 2);
}

}  // namespace
}  // namespace snug::train::background_save
