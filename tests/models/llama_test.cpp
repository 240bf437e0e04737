#include "snug/models/llama.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>

#include "snug/base/error.h"
#include "snug/hooks/region.h"
#include "tests/support/allocation_log.h"

namespace snug::models {
namespace {

ModelConfig small(bool tied) {
  return {.vocab_size = 29,
          .hidden_size = 24,
          .intermediate_size = 40,
          .num_layers = 2,
          .num_heads = 6,
          .num_kv_heads = 2,
          .head_dim = 8,
          .max_positions = 32,
          .tied_embeddings = tied};
}

at::Tensor random_tokens(std::int64_t batch, std::int64_t tokens) {
  return at::randint(29, {batch, tokens}, at::kLong);
}

class LlamaTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    at::manual_seed(7);
    at::set_num_threads(1);  // at these sizes threads only wait for one another
  }
};

TEST_P(LlamaTest, ParametersAreNamedAsPublished) {
  std::set<std::string> expected{"model.embed_tokens.weight", "model.norm.weight"};
  if (!GetParam()) expected.insert("lm_head.weight");
  for (std::string layer : {"0", "1"}) {
    for (std::string name :
         {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
          "mlp.up_proj", "mlp.down_proj", "input_layernorm", "post_attention_layernorm"}) {
      expected.insert("model.layers." + layer + "." + name + ".weight");
    }
  }
  Llama model(small(GetParam()));
  std::set<std::string> names;
  for (const auto& parameter : model->named_parameters()) names.insert(parameter.key());
  EXPECT_EQ(names, expected);
  EXPECT_TRUE(model->named_buffers().is_empty());
}

TEST_P(LlamaTest, HoldsAsManyParametersAsTheConfigSays) {
  Llama model(small(GetParam()));
  std::int64_t count = 0;
  for (const auto& parameter : model->parameters()) count += parameter.numel();
  std::int64_t block = 24 * 48 + 2 * 24 * 16 + 48 * 24 + 3 * 24 * 40 + 2 * 24;
  EXPECT_EQ(count, (GetParam() ? 1 : 2) * 29 * 24 + 2 * block + 24);
  EXPECT_EQ(static_cast<std::uint64_t>(count), parameter_count(small(GetParam())));
}

TEST_P(LlamaTest, StartsAsTheConfigSays) {
  auto config = small(GetParam());
  config.initializer_range = 0.5;
  Llama model(config);
  for (const auto& parameter : model->named_parameters()) {
    if (parameter->dim() == 1) {
      EXPECT_TRUE(parameter->equal(at::ones_like(*parameter))) << parameter.key();
    } else {
      EXPECT_NEAR(parameter->std().item<double>(), 0.5, 0.06) << parameter.key();
      EXPECT_NEAR(parameter->mean().item<double>(), 0.0, 0.06) << parameter.key();
    }
    EXPECT_TRUE(parameter->requires_grad()) << parameter.key();
  }
}

// The published computation in plain operations, from the named parameters alone.
at::Tensor plain_logits(const Llama& model, const at::Tensor& tokens) {
  auto config = model->config();
  auto parameters = model->named_parameters();
  auto weight = [&](const std::string& name) { return parameters[name + ".weight"]; };
  auto norm = [&](const at::Tensor& x, const std::string& name) {
    return x * (x.pow(2).mean(-1, true) + config.norm_eps).rsqrt() * weight(name);
  };
  auto count = tokens.size(1);
  auto frequency =
      at::pow(config.rope_theta, -at::arange(0, config.head_dim, 2, at::kDouble) / config.head_dim);
  auto angle = at::outer(at::arange(count, at::kDouble), frequency);
  angle = at::cat({angle, angle}, -1);
  auto rotate = [&](const at::Tensor& x) {
    auto halves = x.chunk(2, -1);
    return x * angle.cos() + at::cat({-halves[1], halves[0]}, -1) * angle.sin();
  };
  auto future = at::ones({count, count}, at::kBool).triu(1);

  auto x = weight("model.embed_tokens").index({tokens});
  for (std::int64_t i = 0; i < config.num_layers; ++i) {
    auto name = "model.layers." + std::to_string(i) + ".";
    auto h = norm(x, name + "input_layernorm");
    auto heads = [&](const std::string& projection) {
      auto y = h.matmul(weight(name + "self_attn." + projection).t());
      return y.view({tokens.size(0), count, -1, config.head_dim}).transpose(1, 2);
    };
    auto group = config.num_heads / config.num_kv_heads;
    auto q = rotate(heads("q_proj")), k = rotate(heads("k_proj")).repeat_interleave(group, 1);
    auto scores = (q.matmul(k.transpose(2, 3)) / std::sqrt(config.head_dim)).masked_fill(future, -1e30);
    auto mixed =
        scores.softmax(-1).matmul(heads("v_proj").repeat_interleave(group, 1)).transpose(1, 2).flatten(2);
    x = x + mixed.matmul(weight(name + "self_attn.o_proj").t());
    h = norm(x, name + "post_attention_layernorm");
    auto gate = h.matmul(weight(name + "mlp.gate_proj").t());
    auto up = h.matmul(weight(name + "mlp.up_proj").t());
    x = x + (gate * gate.sigmoid() * up).matmul(weight(name + "mlp.down_proj").t());
  }
  return norm(x, "model.norm").matmul(weight(config.tied_embeddings ? "model.embed_tokens" : "lm_head").t());
}

TEST_P(LlamaTest, LogitsEqualThePublishedComputation) {
  auto config = small(GetParam());
  config.initializer_range = 0.3;
  Llama model(config, at::kDouble);
  auto tokens = random_tokens(3, 11);
  auto logits = model->logits(tokens), plain = plain_logits(model, tokens);
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{3, 11, 29}));
  EXPECT_LT((logits - plain).abs().max().item<double>(), 1e-5);  // rope angles are fp32
  EXPECT_GT(plain.abs().max().item<double>(), 0.1);
}

TEST_P(LlamaTest, LossIsASumOverCountedTargets) {
  Llama model(small(GetParam()));
  auto tokens = random_tokens(4, 9), targets = random_tokens(4, 9);
  targets[1].fill_(-100);
  targets[2][3] = -100;
  auto loss = model->loss_sum(tokens, targets);
  EXPECT_EQ(loss.dim(), 0);

  auto picked =
      model->logits(tokens).log_softmax(-1).gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  EXPECT_NEAR(loss.item<double>(), -picked.masked_fill(targets == -100, 0).sum().item<double>(), 1e-3);

  auto parts = model->loss_sum(tokens.slice(0, 0, 1), targets.slice(0, 0, 1)) +
               model->loss_sum(tokens.slice(0, 1, 4), targets.slice(0, 1, 4));
  EXPECT_NEAR(loss.item<double>(), parts.item<double>(), 1e-3);
}

TEST_P(LlamaTest, LearnsAFewTokensByHeart) {
  for (auto dtype : {at::kFloat, at::kBFloat16}) {
    Llama model(small(GetParam()), dtype);
    auto tokens = random_tokens(2, 8), targets = random_tokens(2, 8);
    double first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
      auto loss = model->loss_sum(tokens, targets);
      EXPECT_EQ(loss.scalar_type(), at::kFloat);
      loss.backward();
      at::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) {
        parameter.sub_(parameter.grad(), 0.005);
        parameter.mutable_grad().reset();
      }
      last = loss.item<double>();
      if (step == 0) first = last;
    }
    EXPECT_NEAR(first, 16 * std::log(29), 1.0) << dtype;
    EXPECT_LT(last, 0.7 * first) << dtype;
  }
}

TEST_P(LlamaTest, BuildsOnMetaWithoutMemory) {
  auto lines = snug::testing::allocations_during(at::kCPU, [] { Llama model(small(GetParam()), at::kMeta); });
  EXPECT_TRUE(lines.empty()) << lines.front();
}

INSTANTIATE_TEST_SUITE_P(UntiedAndTied, LlamaTest, ::testing::Bool());

struct Visits : hooks::RegionListener {
  void before_forward(hooks::RegionId id) override { names.push_back(hooks::region_name(id)); }
  std::vector<std::string> names;
};

TEST(Llama, RunsAndBindsEachPartInItsRegion) {
  Llama model(small(false));
  Visits visits;
  {
    hooks::RegionListenerGuard guard(visits);
    model->loss_sum(random_tokens(1, 4), random_tokens(1, 4));
  }
  EXPECT_EQ(visits.names, (std::vector<std::string>{"embed", "layers.0", "layers.1", "head"}));

  auto parameters = model->named_parameters();
  auto region = [&](const char* name) {
    return hooks::region_name(hooks::region_of_parameter(parameters[name]));
  };
  EXPECT_EQ(region("model.embed_tokens.weight"), "embed");
  EXPECT_EQ(region("model.layers.1.mlp.up_proj.weight"), "layers.1");
  EXPECT_EQ(region("model.norm.weight"), "head");
  EXPECT_EQ(region("lm_head.weight"), "head");
}

TEST(Llama, SaysWhatIsWrongWithItsInputs) {
  Llama model(small(false));
  EXPECT_THROW(model->logits(at::ones({4}, at::kLong)), Error);
  EXPECT_THROW(model->logits(at::ones({1, 33}, at::kLong)), Error);
  EXPECT_THROW(model->loss_sum(at::ones({1, 4}, at::kLong), at::ones({1, 5}, at::kLong)), Error);
}

}  // namespace
}  // namespace snug::models
