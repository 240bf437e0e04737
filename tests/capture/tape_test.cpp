// The tape of a forward is the same on Meta, where it costs nothing, as on the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "snug/capture/capture.h"
#include "snug/models/llama.h"
#include "snug/trace/closure.h"

namespace snug::capture {
namespace {

struct Shape {
  std::int64_t hidden, ffn, layers, heads, kv_heads, batch, tokens;
  bool tied;
};

std::vector<trace::RegionTape> tapes(const Shape& shape, at::ScalarType dtype, c10::Device device) {
  const models::ModelConfig config{.vocab_size = 128,
                                   .hidden_size = shape.hidden,
                                   .intermediate_size = shape.ffn,
                                   .num_layers = shape.layers,
                                   .num_heads = shape.heads,
                                   .num_kv_heads = shape.kv_heads,
                                   .head_dim = shape.hidden / shape.heads,
                                   .max_positions = 256,
                                   .tied_embeddings = shape.tied};
  return capture(device,
                 [&](memory::Tracker&) {
                   models::Llama model(config, at::TensorOptions(device).dtype(dtype));
                   const at::Tensor tokens =
                       at::zeros({shape.batch, shape.tokens}, at::TensorOptions(at::kLong).device(device));
                   model->loss_sum(tokens, tokens).backward();
                 },
                 {.tapes = true})
      .tapes;
}

TEST(CapturedTapes, OnMetaAreThoseOfTheCpu) {
  for (const Shape& shape : {Shape{64, 176, 3, 4, 4, 2, 32, false}, Shape{96, 200, 2, 6, 2, 3, 17, true},
                             Shape{128, 352, 4, 8, 1, 1, 64, false}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      const auto predicted = tapes(shape, dtype, c10::kMeta), measured = tapes(shape, dtype, c10::kCPU);
      ASSERT_EQ(measured.size(), static_cast<std::size_t>(shape.layers) + 2);
      ASSERT_EQ(predicted.size(), measured.size());
      for (std::size_t i = 0; i < measured.size(); ++i) {
        EXPECT_EQ(predicted[i].region, measured[i].region);
        EXPECT_EQ(predicted[i].structure_hash(), measured[i].structure_hash()) << measured[i].region;
        EXPECT_TRUE(predicted[i] == measured[i]) << measured[i].region;
      }
    }
  }
}

TEST(CapturedTapes, BlocksOfOneKindHaveOneHashWhateverTheirSize) {
  const auto small = tapes({64, 176, 3, 4, 4, 2, 32, false}, at::kFloat, c10::kMeta);
  const auto large = tapes({128, 352, 3, 8, 8, 1, 64, false}, at::kFloat, c10::kMeta);
  EXPECT_EQ(small[1].structure_hash(), small[2].structure_hash());
  EXPECT_EQ(small[1].structure_hash(), large[2].structure_hash());
  EXPECT_NE(small[0].structure_hash(), small[1].structure_hash());
}

TEST(CapturedTapes, EveryPresetHasTheStructureOfASmallModelOnTheCpu) {
  const auto gqa = tapes({64, 176, 1, 4, 2, 1, 16, false}, at::kBFloat16, c10::kCPU);
  const auto mha = tapes({64, 176, 1, 4, 4, 1, 16, false}, at::kBFloat16, c10::kCPU);
  for (const char* name : {"tiny", "llama-1.3b", "llama2-7b", "llama3-8b"}) {
    const models::ModelConfig config = models::load_config(name);
    const auto large = capture(c10::kMeta,
                               [&](memory::Tracker&) {
                                 const auto options = at::TensorOptions(c10::kMeta);
                                 models::Llama model(config, options.dtype(at::kBFloat16));
                                 const at::Tensor tokens = at::empty({2, 128}, options.dtype(at::kLong));
                                 model->loss_sum(tokens, tokens).backward();
                               },
                               {.tapes = true})
                           .tapes;
    ASSERT_EQ(large.size(), static_cast<std::size_t>(config.num_layers) + 2) << name;
    const auto& small = config.num_kv_heads == config.num_heads ? mha : gqa;
    for (std::size_t i = 1; i + 1 < large.size(); ++i)
      EXPECT_EQ(large[i].structure_hash(), small[1].structure_hash()) << name << " " << large[i].region;
    EXPECT_EQ(large.back().structure_hash(), small.back().structure_hash()) << name;
  }
}

TEST(CapturedTapes, SayWhatRecomputationWouldCost) {
  const auto tape = tapes({64, 176, 3, 4, 4, 2, 32, false}, at::kFloat, c10::kMeta).at(1);
  const auto all = trace::closure(tape, std::vector(tape.values.size(), trace::Fate::Recompute));
  const auto none = trace::closure(tape, std::vector(tape.values.size(), trace::Fate::Keep));
  EXPECT_GT(none.kept_bytes, 10 * all.kept_bytes);
  EXPECT_GT(all.operations.size(), 5u);
  EXPECT_TRUE(none.operations.empty());
}

}  // namespace
}  // namespace snug::capture
