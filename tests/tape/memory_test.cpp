// Bytes on the CPU, where every one is counted.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "snug/memory/tracker.h"
#include "snug/models/llama.h"
#include "snug/tape/region.h"
#include "snug/trace/closure.h"
#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

namespace ag = torch::autograd;

constexpr std::int64_t kTokens = 2 * 64, kHidden = 128, kFfn = 352, kLayers = 4, kVocabulary = 96;

models::Llama make_model(at::ScalarType dtype) {
  at::manual_seed(1);
  return models::Llama(models::ModelConfig{.vocab_size = kVocabulary,
                                           .hidden_size = kHidden,
                                           .intermediate_size = kFfn,
                                           .num_layers = kLayers,
                                           .num_heads = 4,
                                           .num_kv_heads = 4,
                                           .head_dim = 32,
                                           .max_positions = 64},
                       at::TensorOptions(dtype));
}
at::Tensor tokens() {
  return at::randint(kVocabulary, {2, 64}, at::kLong);
}

TEST(TapeMemory, WithAllRecomputedTheForwardLeavesTheRegionsInputs) {
  auto model = make_model(at::kFloat);
  const at::Tensor input = tokens(), target = tokens();
  model->loss_sum(input, target).backward();  // what is made once and stays: gradients, the rotary table
  memory::Tracker tracker;
  const std::uint64_t before = tracker.live_bytes();
  Recording recording(Fates::recompute());
  at::Tensor loss = model->loss_sum(input, target);
  const std::uint64_t left = tracker.live_bytes() - before;
  loss.backward();
  std::uint64_t exceptions = 0;
  for (const auto& [region, totals] : recording.totals())
    for (const auto& [why, some] : totals.refused) exceptions += some.bytes;
  const std::uint64_t table = 2 * 64 * 16 * 4;  // of rotary positions, an input of every block
  const std::uint64_t inputs = (kLayers + 1) * kTokens * kHidden * 4 + table;
  // Of the head's input and weight, made with the loss; it keeps its input no longer than that.
  const std::uint64_t head = (kTokens + kVocabulary) * kHidden * 4;
  EXPECT_EQ(left, inputs + head + exceptions + 4) << "4: the loss";
  EXPECT_EQ(exceptions, 0u);
}

double kept_units(const Fates& fates, at::ScalarType dtype) {
  auto model = make_model(dtype);
  const at::Tensor input = tokens(), target = tokens();
  Recording recording(fates);
  model->loss_sum(input, target).backward();
  const double unit = static_cast<double>(kTokens * kHidden) * static_cast<double>(c10::elementSize(dtype));
  const auto totals = recording.totals();
  // The rotary table is an input of every block, and there once.
  const double table = 2.0 * 64 * 16 * static_cast<double>(c10::elementSize(dtype));
  return (static_cast<double>(totals.at("layers.1").kept_bytes) - table) / unit;
}

TEST(TapeMemory, CheapRecomputationKeepsElevenAndAHalfUnitsPerBlock) {
  EXPECT_LE(kept_units(Fates::cheap(), at::kBFloat16), 11.6);
  EXPECT_GE(kept_units(Fates::cheap(), at::kBFloat16), 11.0) << "x, qkv, attention, projection, gate and up";
  EXPECT_LE(kept_units(Fates::cheap(), at::kFloat), 11.6);
  EXPECT_NEAR(kept_units(Fates::recompute(), at::kFloat), 1, 1e-9);
  EXPECT_GE(kept_units(Fates::keep(), at::kFloat), 15);
}

// Its backward asks for what it saved and computes nothing, so what is allocated meanwhile is what replay
// makes.
struct AskOnly : ag::Function<AskOnly> {
  static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x, const at::Tensor& saved,
                            const at::Tensor& also) {
    context->save_for_backward({saved, also});
    return x.view_as(x);
  }
  static ag::variable_list backward(ag::AutogradContext* context, const ag::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0], {}, {}};
  }
};

TEST(TapeMemory, ThePeakOfReplayIsWhatTheClosurePredicts) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    at::manual_seed(seed);
    at::Tensor x = at::randn({8, 8}).requires_grad_();
    memory::Tracker tracker;
    Recording recording(seed == 0 ? Fates::recompute() : dice(seed), {.describe = true, .prove = false});
    at::Tensor y = region("r", [&] {
      std::vector<at::Tensor> made{at::exp(x.detach())};
      at::Tensor out = x;
      for (int i = 0; i < 12; ++i) {
        const auto pick = [&] {
          return made[static_cast<std::size_t>(
              at::randint(static_cast<std::int64_t>(made.size()), {1}).item<std::int64_t>())];
        };
        switch (at::randint(5, {1}).item<int>()) {
          case 0:
            made.push_back(at::exp(pick()));
            break;
          case 1:
            made.push_back(at::add(pick(), pick().slice(0, 0, 1)));
            break;
          case 2:
            made.push_back(at::cat({pick(), pick()}, 0).slice(0, 0, 8));
            break;
          case 3:
            made.push_back(at::mul(pick(), pick()).sin_());
            break;
          default:
            made.push_back(std::get<0>(at::max(at::stack({pick(), pick()}), 0)));
            break;
        }
        if (i % 2) out = AskOnly::apply(out, pick(), pick());
      }
      return out;
    });
    // After it, what is offloaded has left.
    y = region("next", [&] { return y.view_as(y); });
    const at::Tensor gradient = at::ones({8, 8});
    const std::uint64_t before = tracker.live_bytes();
    tracker.reset_peak();
    ag::grad({y}, {x}, {gradient}, /*retain_graph=*/true);
    const std::uint64_t measured = tracker.peak_bytes() - before;
    y.reset();
    const auto tapes = recording.take_tapes();
    ASSERT_EQ(tapes.size(), 2u);
    std::vector<Fate> fates;
    for (const auto& value : tapes[0].values)  // what comes in is x, which is there whatever its fate
      fates.push_back(value.operation == trace::TapeValue::kOutside ? Fate::Keep : value.fate);
    ASSERT_EQ(measured, trace::closure(tapes[0], fates).peak_bytes) << "seed " << seed;
  }
}

TEST(TapeMemory, EveryByteOfAStepHasANameUnderATape) {
  auto model = make_model(at::kFloat);
  const at::Tensor input = tokens(), target = tokens();
  memory::Tracker tracker;
  tracker.adopt(model->parameters(), trace::Category::Parameter);
  Recording recording(Fates::recompute());
  model->loss_sum(input, target).backward();
  const auto peak = tracker.peak();
  EXPECT_LE(peak[trace::Category::Other], peak.total / 100);
  EXPECT_EQ(tracker.live_bytes(), tracker.allocator_bytes());
}

}  // namespace
}  // namespace snug::tape
