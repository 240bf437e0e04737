// A budget that a step which keeps nothing just met is met by a plan: models as people write them, small.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/session/session.h"
#include "snug/tape/region.h"

namespace snug::lean_budget {
namespace {

constexpr std::int64_t kWidth = 32, kLayers = 4, kHeads = 2, kVocabulary = 96, kRows = 8, kLength = 128;

struct Model {
  at::Tensor weight(at::IntArrayRef sizes) {
    weights.push_back(at::randn(sizes).mul_(0.1).requires_grad_());
    return weights.back();
  }
  std::vector<at::Tensor> weights;
  std::function<at::Tensor()> loss;
};

at::Tensor attention(const at::Tensor& x, const at::Tensor& qkv, const at::Tensor& out) {
  const auto sizes = x.sizes();
  const auto parts =
      at::linear(x, qkv).view({sizes[0], sizes[1], 3, kHeads, sizes[2] / kHeads}).permute({2, 0, 3, 1, 4});
  const at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, true);
  return at::linear(y.transpose(1, 2).reshape(sizes), out);
}

using Block = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor through(const std::vector<Block>& blocks, at::Tensor x) {
  for (std::size_t i = 0; i < blocks.size(); ++i)
    x = region("block" + std::to_string(i), [&] { return blocks[i](x); });
  return x;
}

// Embedding, head and loss are in no region.
void add_language_model(Model& model, std::vector<Block> blocks) {
  const at::Tensor table = model.weight({kVocabulary, kWidth}), head = model.weight({kVocabulary, kWidth});
  const at::Tensor tokens = at::randint(kVocabulary, {kRows, kLength + 1}, at::kLong);
  model.loss = [=] {
    const at::Tensor x = through(blocks, at::embedding(table, tokens.slice(1, 0, -1)));
    return at::cross_entropy_loss(at::linear(x, head).flatten(0, 1), tokens.slice(1, 1).reshape(-1));
  };
}

Model llama() {
  Model model;
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const at::Tensor qkv = model.weight({3 * kWidth, kWidth}), out = model.weight({kWidth, kWidth});
    const at::Tensor gate = model.weight({3 * kWidth, kWidth}), up = model.weight({3 * kWidth, kWidth});
    const at::Tensor down = model.weight({kWidth, 3 * kWidth});
    const at::Tensor norm1 = model.weight({kWidth}), norm2 = model.weight({kWidth});
    blocks.push_back([=](const at::Tensor& input) {
      const at::Tensor x = input + attention(at::rms_norm(input, {kWidth}, norm1, 1e-5), qkv, out);
      const at::Tensor h = at::rms_norm(x, {kWidth}, norm2, 1e-5);
      return x + at::linear(at::silu(at::linear(h, gate)) * at::linear(h, up), down);
    });
  }
  add_language_model(model, std::move(blocks));
  return model;
}

Model gpt2() {
  Model model;
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const at::Tensor qkv = model.weight({3 * kWidth, kWidth}), out = model.weight({kWidth, kWidth});
    const at::Tensor up = model.weight({4 * kWidth, kWidth}), down = model.weight({kWidth, 4 * kWidth});
    const at::Tensor norm1 = model.weight({kWidth}), norm2 = model.weight({kWidth});
    blocks.push_back([=](const at::Tensor& input) {
      const auto drop = [](const at::Tensor& t) { return at::dropout(t, 0.1, /*train=*/true); };
      const at::Tensor x = input + drop(attention(at::layer_norm(input, {kWidth}, norm1), qkv, out));
      const at::Tensor h = at::gelu(at::linear(at::layer_norm(x, {kWidth}, norm2), up));
      return x + drop(at::linear(h, down));
    });
  }
  add_language_model(model, std::move(blocks));
  return model;
}

// Every block ends with a relu, whose result it saves and the next block gets.
Model conv_net() {
  constexpr std::int64_t kChannels = 8;
  Model model;
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < kLayers; ++i) {
    const at::Tensor first = model.weight({kChannels, kChannels, 3, 3});
    const at::Tensor second = model.weight({kChannels, kChannels, 3, 3});
    const at::Tensor scale1 = model.weight({kChannels}), scale2 = model.weight({kChannels});
    blocks.push_back([=](const at::Tensor& x) {
      const auto norm = [](const at::Tensor& t, const at::Tensor& scale) {
        return at::batch_norm(t, scale, {}, {}, {}, /*training=*/true, 0.1, 1e-5, false);
      };
      const at::Tensor h = at::relu(norm(at::conv2d(x, first, {}, 1, 1), scale1));
      return at::relu(x + norm(at::conv2d(h, second, {}, 1, 1), scale2));
    });
  }
  const at::Tensor stem = model.weight({kChannels, 3, 3, 3}), head = model.weight({10, kChannels});
  const at::Tensor images = at::randn({8, 3, 16, 16});
  model.loss = [=] {
    const at::Tensor x = through(blocks, at::conv2d(images, stem, {}, 1, 1));
    return at::log_softmax(at::linear(x.mean({2, 3}), head), -1).select(1, 7).mean().neg();
  };
  return model;
}

// As convolutions, in a chain: what a block is given nobody has but itself and the block before.
Model chain_of_relus() {
  Model model;
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < 2 * kLayers; ++i) {
    const at::Tensor up = model.weight({kWidth, 4 * kWidth}), down = model.weight({4 * kWidth, kWidth});
    blocks.push_back([=](const at::Tensor& x) { return at::relu(at::mm(at::gelu(at::mm(x, up)), down)); });
  }
  const at::Tensor input = at::randn({1024, kWidth});
  model.loss = [=] { return through(blocks, input).pow(2).mean(); };
  return model;
}

struct Case {
  const char* name;
  Model (*make)();
};
void PrintTo(const Case& some, std::ostream* out) {
  *out << some.name;
}

class LeanBudget : public ::testing::TestWithParam<Case> {
 protected:
  // Steps with this budget; what the second one needed, which kept nothing and was sketched.
  std::uint64_t run(std::uint64_t budget, const plan::Hardware& hardware, int steps) {
    at::set_num_threads(1);
    at::manual_seed(3);
    session.reset();
    model = GetParam().make();
    said.clear();
    session.emplace(model.weights,
                    SessionOptions{.budget_bytes = budget,
                                   .prove = false,
                                   .hardware = hardware,
                                   .say = [this](const std::string& text) { said += text + "\n"; }});
    std::uint64_t lean = 0;
    for (int i = 0; i < steps; ++i) {
      model.loss().backward();
      for (at::Tensor& weight : model.weights) weight.mutable_grad().reset();
      session->end_step();
      if (i == 1) lean = session->last_peak_bytes();
    }
    return lean;
  }
  void expect_planned(std::uint64_t budget) {
    ASSERT_NE(session->plan(), nullptr) << said;
    EXPECT_TRUE(session->is_as_planned()) << said;
    EXPECT_LE(session->predicted_bytes(), budget);
    EXPECT_LE(session->measured().budget_use, budget);
  }
  Model model;
  std::string said;
  std::optional<Session> session;
};

TEST_P(LeanBudget, OfAStepThatKeepsNothingHasAPlan) {
  const std::uint64_t lean = run(1_GiB, plan::preset("cpu"), 2);
  run(lean, plan::preset("cpu"), 5);
  expect_planned(lean);
}

TEST_P(LeanBudget, OfAStepThatSendsItsInputsToTheHostHasAPlan) {
  plan::Hardware linked = plan::preset("cpu");
  linked.to_host_rate = linked.to_device_rate = linked.both_ways_rate = 1e10;
  const std::uint64_t on_device = run(1_GiB, plan::preset("cpu"), 2);
  const std::uint64_t lean = run(on_device, linked, 2);
  ASSERT_LT(lean, on_device);
  run(lean, linked, 5);
  expect_planned(lean);
}

INSTANTIATE_TEST_SUITE_P(Models, LeanBudget,
                         ::testing::Values(Case{"llama", llama}, Case{"gpt2", gpt2},
                                           Case{"conv_net", conv_net},
                                           Case{"chain_of_relus", chain_of_relus}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace snug::lean_budget
