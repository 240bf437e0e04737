#include "snug/precision/autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"

namespace snug {
namespace {

TEST(AutocastTest, CastsInsideAndNotOutside) {
  const at::Tensor x = at::ones({2, 3}), weight = at::ones({4, 3});
  {
    Autocast autocast(at::kCPU);
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16);
    {
      Autocast half(at::kCPU, at::kHalf);
      EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kHalf);
    }
    EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kFloat);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

// With the cache, the second product would be made with the first weight.
TEST(AutocastTest, AWeightWrittenInPlaceIsSeen) {
  const at::Tensor x = at::ones({1, 3});
  at::Tensor weight = at::ones({1, 3}).requires_grad_();
  const auto twice = [&](bool keep) {
    Autocast autocast(at::kCPU, at::kBFloat16, keep);
    at::NoGradGuard no_grad;
    weight.fill_(1);
    at::linear(x, weight);
    weight.fill_(2);
    return at::linear(x, weight).item<double>();
  };
  EXPECT_EQ(twice(false), 6);
  EXPECT_EQ(twice(true), 3) << "torch's cache is no longer stale: the scope may use it by default";
  EXPECT_EQ(twice(false), 6) << "the cache must be empty after the scope";
}

TEST(AutocastTest, NothingIsHeldAfterwards) {
  const at::Tensor x = at::ones({1, 3});
  at::Tensor weight = at::ones({1, 3}).requires_grad_();
  const auto uses = weight.use_count();
  {
    Autocast autocast(at::kCPU, at::kBFloat16, /*keep_cast_weights=*/true);
    at::linear(x, weight);
  }
  EXPECT_EQ(weight.use_count(), uses);
}

TEST(AutocastTest, RefusesWhatCannotBe) {
  const auto message = [](auto device, auto dtype) {
    return testing::message_of<Error>([&] { Autocast(device, dtype); });
  };
  EXPECT_NE(message(at::kMeta, at::kBFloat16).find("Meta cannot see casts"), std::string::npos);
  EXPECT_NE(message(at::kCPU, at::kFloat).find("BFloat16 or Half"), std::string::npos);
}

}  // namespace
}  // namespace snug
