#include "snug/optim/optimizer.h"

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <limits>

#include "snug/optim/sgd.h"
#include "snug/base/error.h"
#include "tests/support/temporary_folder.h"
#include "tests/optim/trajectory.h"

namespace snug::optim {
namespace {

using testing::message_of;

std::string refusal(std::vector<at::Tensor> parameters) {
  return message_of<Error>([&] { Sgd optimizer(std::move(parameters)); });
}

TEST(Optimizer, ZeroGradFreesTheGradients) {
  auto parameters = testing::random_parameters();
  Sgd optimizer(parameters);
  testing::give_gradients(parameters, 0);
  parameters[1].mutable_grad().reset();
  EXPECT_EQ(optimizer.gradients().size(), 3u);
  optimizer.zero_grad();
  for (const auto& parameter : parameters) EXPECT_FALSE(parameter.grad().defined());
  EXPECT_TRUE(optimizer.gradients().empty());
  EXPECT_NO_THROW(optimizer.step(0.1));
}

TEST(Optimizer, LeavesTheParametersAsTrainableLeaves) {
  for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    auto parameters = testing::random_parameters(dtype);
    Sgd optimizer(parameters);
    testing::give_gradients(parameters, 0);
    optimizer.step(0.1);
    for (const auto& parameter : optimizer.parameters()) {
      EXPECT_TRUE(parameter.is_leaf());
      EXPECT_TRUE(parameter.requires_grad());
    }
    for (const auto& state : optimizer.state()) EXPECT_FALSE(state.tensor.requires_grad());
  }
}

TEST(Optimizer, RefusesOtherDtypes) {
  EXPECT_EQ(refusal({at::ones({2}), at::ones({2}, at::kInt)}),
            "parameter 1 is Int; expected Float, BFloat16 or Half");
  EXPECT_EQ(refusal({at::ones({2}, at::kDouble)}), "parameter 0 is Double; expected Float, BFloat16 or Half");
}

TEST(Optimizer, RefusesParametersItCannotUpdate) {
  EXPECT_EQ(refusal({}), "an optimizer needs at least one parameter, got none");
  EXPECT_EQ(refusal({at::ones({2}), at::Tensor()}), "parameter 1 is undefined");
  EXPECT_EQ(refusal({at::ones({2, 3}).t()}),
            "parameter 0 of shape [3, 2] is not contiguous; make it so before it goes to the optimizer");
  const at::Tensor tied = at::ones({2});
  EXPECT_EQ(refusal({tied, at::ones({2}), tied}),
            "parameter 2 is parameter 0 again; give tied parameters once");
  EXPECT_EQ(refusal({at::ones({2}), at::ones({2}, at::kMeta)}),
            "parameter 1 is on meta, parameter 0 on cpu; expected one device");
}

TEST(Optimizer, RefusesASparseGradient) {
  std::vector<at::Tensor> parameters{at::ones({3, 2}).requires_grad_()};
  parameters[0].mutable_grad() = at::ones({3, 2}).to_sparse();
  Sgd optimizer(parameters);
  EXPECT_EQ(message_of<Error>([&] { optimizer.step(0.1); }),
            "the gradient of parameter 0 is Sparse; expected a dense one");
}

TEST(Optimizer, RefusesALearningRateThatIsNoNumber) {
  Sgd optimizer({at::ones({2})});
  EXPECT_EQ(message_of<Error>([&] { optimizer.step(std::numeric_limits<double>::quiet_NaN()); }),
            "lr must be finite and at least 0, got nan");
}

// As with torch's own optimizers: autograd sees that the weight is not what the forward used.
TEST(Optimizer, AStepBetweenForwardAndBackwardIsSeen) {
  std::vector<at::Tensor> parameters{at::ones({3, 3}).requires_grad_()};
  Sgd optimizer(parameters);
  const at::Tensor x = at::ones({3, 3}).requires_grad_();
  const at::Tensor loss = at::mm(x, parameters[0]).sum();
  parameters[0].mutable_grad() = at::ones({3, 3});
  optimizer.step(0.1);
  EXPECT_THROW(loss.backward(), c10::Error);
}

}  // namespace
}  // namespace snug::optim
