// Values that are on the host between forward and backward.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "snug/base/bytes.h"
#include "snug/memory/tracker.h"
#include "snug/tape/region.h"
#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

constexpr std::uint64_t kMatrix = 64 * 64 * 4;

std::shared_ptr<host::Store> store(std::uint64_t budget = 64_MiB) {
  return std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = budget});
}

RecordingOptions options(const std::shared_ptr<host::Store>& store) {
  return {.verify = true, .host = store, .prove = false};
}

// Saves its result, which is no region's input.
at::Tensor layer(const at::Tensor& x, int number) {
  return region("layers." + std::to_string(number), [&] { return at::tanh(x) + 0; });
}

at::Tensor make_input() {
  at::manual_seed(3);
  return at::randn({64, 64}).requires_grad_();
}

trace::RegionTotals all(const Recording& recording) {
  trace::RegionTotals sum;
  for (const auto& [name, totals] : recording.totals()) sum += totals;
  return sum;
}

TEST(Offload, MemoryGoesWhenTheNextRegionEndsAndIsBackWhenItsBackwardBegins) {
  const auto host = store();
  const at::Tensor x = make_input();
  memory::Tracker tracker;
  const std::uint64_t before = tracker.live_bytes();
  Recording recording(Fates::offload(), {.host = host, .prove = false});
  at::Tensor y = layer(x, 0);
  EXPECT_EQ(tracker.live_bytes() - before, 2 * kMatrix) << "the result, and what was saved: it is on its way";
  EXPECT_EQ(host->arena().used_bytes(), kMatrix);
  y = layer(y, 1);
  EXPECT_EQ(tracker.live_bytes() - before, 2 * kMatrix) << "only the second region's";
  EXPECT_EQ(host->arena().used_bytes(), 2 * kMatrix);
  y = layer(y, 2);
  EXPECT_EQ(tracker.live_bytes() - before, 2 * kMatrix);
  tracker.reset_peak();
  y.backward(at::ones({64, 64}));
  // At the first unpack: the result, its gradient twice, the last region's value, the one before it.
  EXPECT_LE(tracker.peak_bytes() - before, 6 * kMatrix);
  y.reset();
  EXPECT_EQ(host->arena().used_bytes(), 0u);
  EXPECT_EQ(host->arena().peak_bytes(), 3 * kMatrix);
  const trace::RegionTotals totals = all(recording);
  EXPECT_EQ(totals.offloaded_values, 3u);
  EXPECT_EQ(totals.offloaded_bytes, 3 * kMatrix);
  EXPECT_EQ(totals.kept_values, 0u);
  EXPECT_EQ(live_values(), 0);
}

TEST(Offload, WhatComesIntoARegionGoesToo) {
  const auto host = store();
  const at::Tensor x = make_input();
  Recording recording(Fates::offload(), options(host));
  at::Tensor y = x * 2;
  y = region("square", [&] { return y * y; });
  EXPECT_EQ(host->arena().used_bytes(), kMatrix) << "once, though it was saved twice";
  y.sum().backward();
  EXPECT_TRUE(at::allclose(x.grad(), 8 * x));
}

TEST(Offload, ALeafIsNotOffloaded) {
  const auto host = store();
  const at::Tensor x = make_input();
  Recording recording(Fates::offload(), options(host));
  const at::Tensor y = region("square", [&] { return x * x; });
  EXPECT_EQ(host->arena().used_bytes(), 0u);
}

TEST(Offload, OnlyTheSpanOfAViewMoves) {
  const auto host = store();
  const at::Tensor x = make_input();
  Recording recording(Fates::offload(), options(host));
  at::Tensor y = region("half", [&] { return at::exp(x).narrow(0, 8, 16).tanh().sin(); });
  // exp saves its result whole; tanh its own, and sin the same.
  EXPECT_EQ(host->arena().used_bytes(), kMatrix + 16 * 64 * 4);
  y = region("narrowed", [&] {
    const at::Tensor wide = y.detach().repeat({4, 1});
    return wide.narrow(0, 16, 16) * y;
  });
  EXPECT_EQ(host->arena().used_bytes(), kMatrix + 2 * 16 * 64 * 4) << "and a quarter of `wide`";
  const at::Tensor again = layer(y, 0);
  again.sum().backward();
  y.reset();
  EXPECT_GE(all(recording).checked, 3u);
  EXPECT_EQ(all(recording).differing, 0u);
}

TEST(Offload, AFullHostKeepsTheRestAndSaysSo) {
  const auto host = store(2 * kMatrix);
  const at::Tensor x = make_input();
  Recording recording(Fates::offload(), options(host));
  at::Tensor y = layer(layer(layer(x, 0), 1), 2);
  y.sum().backward();
  y.reset();
  const trace::RegionTotals totals = all(recording);
  EXPECT_EQ(totals.offloaded_values, 2u);
  EXPECT_EQ(totals.kept_values, 1u);
  ASSERT_EQ(totals.refused.size(), 1u);
  EXPECT_NE(totals.refused.begin()->first.second.find("host"), std::string::npos)
      << totals.refused.begin()->first.second;
}

// Only a part of it was to go: what stays is compared whole.
TEST(Offload, WhatFindsNoRoomIsStillVerified) {
  const auto host = store(1);
  const at::Tensor x = make_input();
  Recording recording(Fates::offload(), options(host));
  at::Tensor y = region("half", [&] { return at::exp(x.detach()).narrow(0, 8, 16) * x.narrow(0, 8, 16); });
  y.sum().backward();
  y.reset();
  EXPECT_EQ(all(recording).offloaded_values, 0u);
  EXPECT_EQ(all(recording).checked, 1u);
  EXPECT_EQ(all(recording).differing, 0u);
}

// The limit is of what is on the host at once: a second forward has what the first left, until a backward.
TEST(Offload, ForwardsWhoseBackwardHasNotBegunShareOneLimit) {
  RecordingOptions limited = options(store());
  limited.offload.bytes = 3 * kMatrix;
  Recording recording(Fates::offload(), limited);
  const auto forward = [&] { return layer(layer(make_input(), 0), 1); };
  at::Tensor first = forward(), second = forward();
  EXPECT_EQ(limited.host->arena().used_bytes(), 3 * kMatrix);
  second.backward(at::ones({64, 64}));
  first.backward(at::ones({64, 64}));
  first.reset(), second.reset();
  at::Tensor third = forward();
  EXPECT_EQ(limited.host->arena().used_bytes(), 2 * kMatrix);
  third.reset();
  EXPECT_EQ(limited.host->arena().used_bytes(), 0u);
}

// The copy may have been under way, so nobody may use it.
TEST(Offload, AWriteWhileTheCopyIsUnderWayIsRefusedLikeForAKeptValue) {
  const auto host = store();
  const at::Tensor x = make_input();
  Recording recording(Fates::offload(), options(host));
  at::Tensor y = region("tanh", [&] { return at::tanh(x); });
  {
    at::NoGradGuard no_grad;
    y.add_(1);
  }
  EXPECT_THROW(y.sum().backward(), c10::Error);
}

TEST(Offload, WhatSomebodyElseHoldsIsNotFetched) {
  const auto host = store();
  const at::Tensor x = make_input();
  memory::Tracker tracker;
  Recording recording(Fates::offload(), options(host));
  const at::Tensor held = region("tanh", [&] { return at::tanh(x); });
  const at::Tensor y = layer(held, 1);
  const at::Tensor gradient = at::ones({64, 64});
  const at::Tensor z = y + 0;
  const std::uint64_t before = tracker.live_bytes();
  tracker.reset_peak();
  z.backward(gradient);
  // tanh's result is held here: its region needs the two gradients, and the second region its own value.
  EXPECT_LE(tracker.peak_bytes() - before, 3 * kMatrix);
  EXPECT_EQ(all(recording).differing, 0u);
}

TEST(Offload, OnMetaMemoryComesAndGoesAlike) {
  const auto highest = [](c10::Device device) {
    const at::Tensor x = at::ones({64, 64}, device).requires_grad_();
    memory::Tracker tracker({.device = device});
    Recording recording(Fates::offload(), {.host = device.is_cpu() ? store() : nullptr, .prove = false});
    at::Tensor y = x;
    for (int i = 0; i < 4; ++i) y = layer(y, i);
    y.backward(at::ones({64, 64}, device));
    return tracker.peak_bytes();
  };
  EXPECT_EQ(highest(at::kMeta), highest(at::kCPU));
}

}  // namespace
}  // namespace snug::tape
