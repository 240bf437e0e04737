#include "snug/train/step.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "snug/models/llama.h"
#include "tests/train/random_shape.h"

namespace snug::train {
namespace {

struct Gradients {
  double loss;
  std::vector<at::Tensor> tensors;
};

class Split : public ::testing::TestWithParam<std::int64_t> {};

// Documents of unequal length: each row's targets end somewhere else, one row has none at all.
io::Batch unequal_documents(std::int64_t rows, std::int64_t tokens, std::int64_t vocabulary) {
  io::Batch batch{at::randint(vocabulary, {rows, tokens}, at::kLong),
                  at::randint(vocabulary, {rows, tokens}, at::kLong)};
  for (std::int64_t row = 0; row < rows; ++row) batch.targets[row].slice(0, (row * 7) % tokens).fill_(-100);
  return batch;
}

Gradients gradients(TrainConfig config, const io::Batch& batch, std::int64_t micro_batch,
                    std::int64_t head_chunks = 0) {
  at::manual_seed(5);
  models::Llama model(config.model);
  config.micro_batch = micro_batch;
  config.head_chunks = head_chunks;
  const double scale = 1.0 / static_cast<double>(count_targets(batch.targets));
  Gradients result{accumulate_gradients(*model, batch, config, scale).item<double>(), {}};
  for (const auto& parameter : model->parameters()) result.tensors.push_back(parameter.grad());
  return result;
}

TEST_P(Split, OfOneGlobalBatchGivesTheSameLossAndGradients) {
  TrainConfig config = random_shape(11);
  at::manual_seed(1);
  const io::Batch batch = unequal_documents(12, 33, config.model.vocab_size);
  const Gradients whole = gradients(config, batch, 12),
                  split = gradients(config, batch, GetParam(), /*head_chunks=*/GetParam() + 1);
  EXPECT_NEAR(split.loss, whole.loss, 1e-6 * std::abs(whole.loss));
  for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
    const double error = (split.tensors[i] - whole.tensors[i]).norm().item<double>();
    EXPECT_LE(error, 1e-6 * whole.tensors[i].norm().item<double>()) << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(MicroBatches, Split, ::testing::Values(1, 2, 3, 4, 6));

// A loss scale of 1 is one: what overflows is not used.
TEST(RunStep, SkipsWhatIsNotFiniteAtEveryScale) {
  TrainConfig config = random_shape(12);
  config.precision = Precision::Fp16;
  config.micro_batch = config.batch_size;
  memory::Tracker tracker;
  TrainingSetup setup(config, c10::kCPU, Account(tracker));
  const at::Tensor tokens =
      at::randint(config.model.vocab_size, {config.batch_size, config.seq_len}, at::kLong);
  const io::Batch batch{tokens, tokens};
  std::vector<at::Tensor> before;
  for (std::size_t i = 0; i < setup.optimizer->parameters().size(); ++i)
    before.push_back(setup.optimizer->exact(i));
  for (const double scale : {1.0, 8.0}) {
    const StepResult result =
        run_step(setup,
                 {.batch = batch,
                  .target_count = tokens.numel(),
                  .lr = 0.1,
                  .loss_scale = scale,
                  .on_gradients = [](const auto& gradients) { gradients[0].fill_(NAN); }},
                 config, Account(tracker));
    EXPECT_TRUE(std::isnan(result.gradient_norm.item<double>()));
  }
  for (std::size_t i = 0; i < before.size(); ++i)
    EXPECT_TRUE(at::equal(setup.optimizer->exact(i), before[i])) << "parameter " << i;
}

TEST(CountTargets, LeavesOutIgnoredOnesAndRefusesABatchOfNothing) {
  EXPECT_EQ(count_targets(at::tensor({1, -100, 3})), 2);
  EXPECT_THROW(count_targets(at::full({3}, -100, at::kLong)), std::runtime_error);
}

}  // namespace
}  // namespace snug::train
