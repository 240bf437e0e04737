#include "snug/capture/capture.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "snug/base/error.h"
#include "snug/hooks/region.h"

namespace snug::capture {
namespace {

const auto kMetaFloat = at::TensorOptions(at::kFloat).device(at::kMeta);

std::string message(const std::function<void(memory::Tracker&)>& run) {
  try {
    capture(c10::kMeta, run);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Capture, AModelIsBuiltOnMetaWithoutMemory) {
  auto captured = capture(c10::kMeta, [](memory::Tracker& tracker) {
    auto layer = on_meta([] { return torch::nn::Linear(1 << 18, 1 << 18); });  // 256 GiB
    EXPECT_TRUE(layer->weight.is_meta());
    EXPECT_EQ(tracker.live_bytes(), ((std::uint64_t{1} << 36) + (1 << 18)) * 4);
  });
  EXPECT_EQ(captured.live_at_end.total, 0u);
  EXPECT_GT(captured.operators, 0u);
}

TEST(Capture, PredictsOnMetaWhatIsMeasuredOnTheCpu) {
  at::set_num_threads(1);
  auto run = [](c10::Device device) {
    return capture(device, [&](memory::Tracker& tracker) {
      at::Tensor w = at::ones({64, 64}, at::TensorOptions(device)).requires_grad_();
      tracker.adopt({w}, trace::Category::Parameter);
      at::Tensor x = at::ones({32, 64}, at::TensorOptions(device));
      hooks::RegionScope scope("all");
      at::Tensor h = at::silu(x.mm(w));
      (h * h.mm(w)).sum().backward();
    });
  };
  const Captured predicted = run(c10::kMeta), measured = run(c10::kCPU);
  EXPECT_EQ(predicted.peak.total, measured.peak.total);
  EXPECT_EQ(predicted.peak.bytes, measured.peak.bytes);
  EXPECT_EQ(predicted.category_peaks, measured.category_peaks);
  EXPECT_EQ(predicted.operators, measured.operators);
}

TEST(Capture, NamesTheOperationThatNeedsValuesAndItsRegion) {
  const std::string text = message([](memory::Tracker&) {
    hooks::RegionScope scope("layers.3");
    at::ones({2}, kMetaFloat).sum().item();
  });
  EXPECT_NE(text.find("aten::_local_scalar_dense"), std::string::npos) << text;
  EXPECT_NE(text.find("layers.3"), std::string::npos) << text;
}

TEST(Capture, NamesAnOperationWithoutAMetaKernel) {
  const std::string text = message([](memory::Tracker&) { at::nonzero(at::ones({2}, kMetaFloat)); });
  EXPECT_NE(text.find("aten::nonzero"), std::string::npos) << text;
}

TEST(Capture, RefusesAutocast) {
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const std::string text = message([](memory::Tracker&) { at::ones({2}, kMetaFloat).mul(2); });
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_NE(text.find("autocast"), std::string::npos) << text;
}

TEST(Capture, AnErrorOfTheModelPassesUntouched) {
  EXPECT_THROW(capture(c10::kMeta,
                       [](memory::Tracker&) {
                         at::ones({2, 3}, kMetaFloat).mm(at::ones({2, 3}, kMetaFloat));
                       }),
               c10::Error);
}

TEST(Capture, OutsideTheScopeFactoriesGoWhereTheyAlwaysWent) {
  on_meta([] { return at::ones({1}); });
  EXPECT_TRUE(at::ones({1}).is_cpu());
}

}  // namespace
}  // namespace snug::capture
