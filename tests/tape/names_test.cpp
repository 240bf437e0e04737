// How calls of regions are named.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>

#include <string>
#include <utility>
#include <vector>

#include "snug/tape/region.h"
#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

namespace ag = torch::autograd;

class Named : public testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(live_values(), 0) << "values are left"; }

  at::Tensor layer(const at::Tensor& h) {
    return region("layer", [&] { return at::tanh(at::mm(h, w)); });
  }

  at::Tensor x = at::ones({4, 4}), w = at::eye(4).requires_grad_();
};

TEST_F(Named, CallsOfOneForwardAreNumberedAndBeginAnewAfterABackward) {
  Recording recording(Fates::recompute(), {.describe = true});
  layer(layer(layer(x))).sum().backward();
  layer(layer(x)).sum().backward();
  EXPECT_EQ(names(recording.take_tapes()), (Names{"layer", "layer#2", "layer#3", "layer", "layer#2"}));
  const trace::Totals totals = recording.totals();
  EXPECT_EQ(totals.size(), 3u);
  EXPECT_TRUE(totals.contains("layer#3"));
}

TEST_F(Named, FatesAreAskedForByBothNames) {
  std::vector<std::pair<std::string, std::string>> asked;
  Recording recording(Fates([&](const ValueInfo& value) {
    if (value.operation == "aten::tanh") asked.emplace_back(value.region, value.outermost);
    return Fate::Recompute;
  }));
  layer(layer(x)).sum().backward();
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0], std::pair(std::string("layer"), std::string("layer")));
  EXPECT_EQ(asked[1], std::pair(std::string("layer"), std::string("layer#2")));
}

TEST_F(Named, ARegionThatSavesNothingDoesNotBreakTheCount) {
  Recording recording(Fates::recompute(), {.describe = true});
  at::Tensor h = layer(x);
  h = region("views", [&] { return h.view({-1}).view({4, 4}); });
  layer(h).sum().backward();
  EXPECT_EQ(names(recording.take_tapes()), (Names{"layer", "views", "layer#2"}));
}

TEST_F(Named, AnOutputThatIsDroppedOnTheWayDoesNotBreakTheCount) {
  Recording recording(Fates::recompute(), {.describe = true});
  at::Tensor h = layer(x);
  region("metric", [&] { return at::exp(h); });
  layer(h).sum().backward();
  EXPECT_EQ(names(recording.take_tapes()), (Names{"layer", "metric", "layer#2"}));
}

TEST_F(Named, AForwardThatThrewDoesNotCount) {
  Recording recording(Fates::recompute(), {.describe = true});
  EXPECT_ANY_THROW(at::mm(layer(layer(x)), at::ones({3, 3})));
  layer(x).sum().backward();
  const Names all = names(recording.take_tapes());
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all.back(), "layer");
}

TEST_F(Named, AStepThatEndsBeginsTheCountAnew) {
  Recording recording(Fates::recompute(), {.describe = true});
  at::Tensor held = layer(x);  // never asked for
  recording.take_tapes();
  layer(x).sum().backward();
  EXPECT_EQ(names(recording.take_tapes()), Names{"layer"});
}

TEST_F(Named, ABackwardThatPassesTheEnginesSlotByBeginsTheCountAnew) {
  Recording recording(Fates::recompute(), {.describe = true});
  for (int i = 0; i < 2; ++i) {
    at::Tensor loss = layer(x).sum();
    ag::Engine::get_base_engine().execute({ag::impl::gradient_edge(loss)}, {at::ones_like(loss)}, true, false,
                                          true);
  }
  EXPECT_EQ(names(recording.take_tapes()), (Names{"layer", "layer"}));
}

}  // namespace
}  // namespace snug::tape
