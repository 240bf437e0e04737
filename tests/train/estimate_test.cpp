#include "snug/train/estimate.h"

#include <gtest/gtest.h>

#include "snug/base/error.h"

namespace snug::train {
namespace {

constexpr std::uint64_t kBillion = 1'000'000'000;

TEST(Estimate, SevenBillionInFp32WithAdamWIs112Gigabytes) {
  const StateBytes states = estimate_states({.parameters = 7 * kBillion});
  EXPECT_EQ(states.parameters, 28 * kBillion);
  EXPECT_EQ(states.gradients, 28 * kBillion);
  EXPECT_EQ(states.optimizer, 56 * kBillion);
  EXPECT_EQ(states.total(), 112 * kBillion);
}

TEST(Estimate, SixteenBitWeightsHaveAMaster) {
  const auto optimizer = [](Precision precision, std::optional<Master> master, OptimizerKind kind) {
    return bytes_per_parameter(precision, master, kind).optimizer;
  };
  EXPECT_EQ(optimizer(Precision::Bf16, {}, OptimizerKind::AdamW), 10u);
  EXPECT_EQ(optimizer(Precision::Bf16, Master::Split, OptimizerKind::Sgd), 2u);
  EXPECT_EQ(optimizer(Precision::Bf16, Master::Fp32, OptimizerKind::AdamW), 12u);
  EXPECT_EQ(optimizer(Precision::Fp16, {}, OptimizerKind::AdamW), 12u);
  EXPECT_EQ(optimizer(Precision::Fp32, {}, OptimizerKind::Sgd), 0u);
}

TEST(Estimate, AMasterWithoutUseIsRefused) {
  EXPECT_THROW(bytes_per_parameter(Precision::Fp32, Master::Fp32, OptimizerKind::AdamW), Error);
  EXPECT_THROW(bytes_per_parameter(Precision::Fp16, Master::Split, OptimizerKind::AdamW), Error);
  EXPECT_THROW(parse_master("fp16"), Error);
}

TEST(Estimate, EachZeroStageShardsOneMoreCategory) {
  const auto held = [](std::int64_t stage) {
    return estimate_states({.parameters = 1001, .zero_stage = stage, .ranks = 10});
  };
  EXPECT_EQ(held(0).total(), 16u * 1001);
  EXPECT_EQ(held(1).optimizer, 8u * 101);
  EXPECT_EQ(held(1).gradients, 4u * 1001);
  EXPECT_EQ(held(2).gradients, 4u * 101);
  EXPECT_EQ(held(2).parameters, 4u * 1001);
  EXPECT_EQ(held(3).parameters, 4u * 101);
}

TEST(Estimate, RanksStagesAndCountsHaveBounds) {
  EXPECT_THROW(estimate_states({.parameters = 0}), Error);
  EXPECT_THROW(estimate_states({.parameters = std::uint64_t{1} << 60}), Error);
  EXPECT_THROW(estimate_states({.parameters = 1, .zero_stage = 4}), Error);
  EXPECT_THROW(estimate_states({.parameters = 1, .zero_stage = 1, .ranks = 0}), Error);
}

}  // namespace
}  // namespace snug::train
