#include "snug/tape/checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "snug/base/error.h"
#include "snug/memory/tracker.h"
#include "tests/tape/problems.h"

namespace snug {
namespace {

using tape::same_bits;

class Checkpoint : public testing::Test {
 protected:
  void SetUp() override {
    at::manual_seed(5);
    for (int i = 0; i < 6; ++i) {
      layers->push_back(torch::nn::Linear(32, 32));
      layers->push_back(torch::nn::GELU());
      layers->push_back(torch::nn::Dropout(0.2));
    }
  }
  void TearDown() override { EXPECT_EQ(tape::live_values(), 0); }

  template <class Forward>
  std::vector<at::Tensor> gradients(Forward forward) {
    layers->zero_grad();
    at::manual_seed(1);
    at::Tensor x = at::ones({64, 32}).requires_grad_();
    forward(x).pow(2).sum().backward();
    std::vector<at::Tensor> all{x.grad()};
    for (const at::Tensor& parameter : layers->parameters()) all.push_back(parameter.grad().clone());
    return all;
  }
  std::vector<at::Tensor> plain() {
    return gradients([&](at::Tensor x) { return layers->forward(x); });
  }

  torch::nn::Sequential layers;
};

TEST_F(Checkpoint, GivesTheGradientsOfThePlainCall) {
  EXPECT_TRUE(same_bits(plain(), gradients([&](at::Tensor x) {
                          return checkpoint([&](at::Tensor y) { return layers->forward(y); }, x);
                        })));
}

TEST_F(Checkpoint, ReturnsWhateverTheFunctionReturns) {
  at::Tensor x = at::ones({4}).requires_grad_();
  const auto [sum, count] =
      checkpoint([](const at::Tensor& y, int n) { return std::pair(at::exp(y * n).sum(), n); }, x, 3);
  sum.backward();
  EXPECT_EQ(count, 3);
  EXPECT_TRUE(at::equal(x.grad(), at::exp(at::ones({4}) * 3) * 3));
}

TEST_F(Checkpoint, WithoutTheStateOfTheGeneratorDropoutDiffers) {
  const auto drawn_anew = gradients([&](at::Tensor x) {
    return checkpoint(
        CheckpointOptions{.preserve_rng_state = false}, [&](at::Tensor y) { return layers->forward(y); }, x);
  });
  EXPECT_FALSE(same_bits(plain(), drawn_anew));
}

TEST_F(Checkpoint, Nests) {
  EXPECT_TRUE(same_bits(plain(), gradients([&](at::Tensor x) {
                          return checkpoint(
                              [&](at::Tensor y) {
                                for (std::size_t i = 0; i < layers->size(); i += 3)
                                  y = checkpoint(
                                      [&](at::Tensor z) {
                                        for (std::size_t k = i; k < i + 3; ++k)
                                          z = (layers->begin() + static_cast<std::ptrdiff_t>(k))->forward(z);
                                        return z;
                                      },
                                      y);
                                return y;
                              },
                              x);
                        })));
}

TEST_F(Checkpoint, InsideARecordingItBringsItsOwnFates) {
  tape::Recording recording(tape::Fates::keep());
  EXPECT_TRUE(same_bits(plain(), gradients([&](at::Tensor x) {
                          return region("outer", [&] {
                            return checkpoint([&](at::Tensor y) { return layers->forward(y); }, x);
                          });
                        })));
  EXPECT_GT(recording.totals().at("outer").replays, 10u);
}

TEST_F(Checkpoint, SequentialKeepsTheBordersOfItsParts) {
  const auto expected = plain();
  std::uint64_t left[3] = {};
  const std::size_t segments[3] = {1, 3, 6};
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(same_bits(
        expected, gradients([&](at::Tensor x) { return checkpoint_sequential(layers, segments[i], x); })));
    memory::Tracker tracker;
    at::Tensor y = checkpoint_sequential(layers, segments[i], at::ones({64, 32}).requires_grad_());
    left[i] = tracker.live_bytes();
  }
  EXPECT_GT(left[0], left[1]) << "one part is plain";
  EXPECT_GT(left[0], left[2]);
}

TEST_F(Checkpoint, SequentialNamesAWrongNumberOfParts) {
  EXPECT_THROW(checkpoint_sequential(layers, 0, at::ones({64, 32})), Error);
  EXPECT_THROW(checkpoint_sequential(layers, 19, at::ones({64, 32})), Error);
}

TEST_F(Checkpoint, WithoutGradientsItIsAPlainCall) {
  at::NoGradGuard no_grad;
  layers->eval();
  at::Tensor x = at::ones({4, 32});
  EXPECT_TRUE(at::equal(layers->forward(x), checkpoint([&](at::Tensor y) { return layers->forward(y); }, x)));
}

TEST_F(Checkpoint, AnInputWrittenAfterwardsIsRefused) {
  at::Tensor x = at::ones({4, 32}) * 2;
  at::Tensor y = checkpoint([&](const at::Tensor& z) { return at::sigmoid(layers->forward(z)); }, x);
  x.add_(1);
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace snug
