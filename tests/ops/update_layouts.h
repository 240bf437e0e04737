// Parameters in every layout that an optimizer's step takes, and their bits.
#pragma once

#include <cstdint>
#include <limits>

#include "tests/ops/update_cases.h"

namespace snug::testing {

struct Layout {
  at::ScalarType weights, gradients, masters;
};

// With zero moments, at step 0.
inline ops::AdamWTensors every_layout(const std::vector<std::int64_t>& sizes, c10::Device device) {
  at::manual_seed(11);
  ops::AdamWTensors tensors;
  for (const Layout layout : {Layout{at::kFloat, at::kFloat, at::kFloat},
                              {at::kBFloat16, at::kBFloat16, at::kFloat},
                              {at::kBFloat16, at::kFloat, at::kFloat},
                              {at::kHalf, at::kHalf, at::kFloat},
                              {at::kHalf, at::kFloat, at::kFloat},
                              {at::kBFloat16, at::kBFloat16, at::kShort},
                              {at::kBFloat16, at::kFloat, at::kShort}})
    for (const std::int64_t size : sizes) {
      const at::Tensor start = at::randn({size}).to(device), weight = start.to(layout.weights);
      const at::Tensor zeros = at::zeros_like(start);
      tensors.weights.push_back(weight);
      tensors.gradients.push_back(at::randn({size}).to(device).to(layout.gradients));
      tensors.masters.push_back(layout.weights == at::kFloat   ? weight
                                : layout.masters == at::kShort ? zeros.to(at::kShort)
                                                               : weight.to(at::kFloat));
      tensors.exp_avgs.push_back(zeros.clone());
      tensors.exp_avg_sqs.push_back(zeros.clone());
      tensors.steps.push_back(at::zeros({}, zeros.options()));
    }
  return tensors;
}

inline ops::AdamWTensors copies_of(const ops::AdamWTensors& tensors, c10::Device device) {
  ops::AdamWTensors copies;
  for (const AdamWList list : kAdamWLists)
    for (const at::Tensor& tensor : tensors.*list)
      (copies.*list)
          .push_back(tensor.to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  for (std::size_t i = 0; i < copies.weights.size(); ++i)
    if (copies.weights[i].scalar_type() == at::kFloat) copies.masters[i] = copies.weights[i];
  return copies;
}

// The first moments become momenta.
inline ops::SgdTensors sgd_of(const ops::AdamWTensors& tensors, bool has_momentum) {
  ops::SgdTensors sgd{{tensors.weights, tensors.gradients, tensors.masters}};
  if (has_momentum) sgd.momenta = tensors.exp_avgs;
  return sgd;
}

// Infinities, NaNs, denormal numbers and zeros of both signs are among them. Steps stay.
inline void fill_with_random_bits(ops::AdamWTensors& tensors) {
  at::manual_seed(12);
  for (const AdamWList list : kAdamWLists)
    if (list != &ops::AdamWTensors::steps)
      for (const at::Tensor& tensor : tensors.*list) {
        const at::Tensor shorts = tensor.view(at::kShort);
        shorts.copy_(at::randint(-32768, 32768, shorts.sizes(), at::kLong));
        if (tensor.scalar_type() == at::kShort) continue;
        for (const double special : {0.0, -0.0, 1e-40, -1e-6, std::numeric_limits<double>::infinity(),
                                     -std::numeric_limits<double>::infinity(), 3e4, 1e-7})
          tensor.masked_fill_((at::rand(tensor.sizes()) < 0.05).to(tensor.device()), special);
      }
}

inline at::Tensor bits_of(const at::Tensor& tensor) {
  const at::Tensor here = tensor.cpu();
  return here.view(here.element_size() == 4 ? at::kInt : at::kShort);
}

inline void expect_same_bits(const ops::AdamWTensors& some, const ops::AdamWTensors& others,
                             const std::string& what) {
  for (std::size_t list = 0; list + 1 < kAdamWLists.size(); ++list)  // not the steps
    for (std::size_t i = 0; i < some.weights.size(); ++i) {
      const at::Tensor &one = (some.*kAdamWLists[list])[i], &other = (others.*kAdamWLists[list])[i];
      const at::Tensor differ = bits_of(one).ne(bits_of(other));
      EXPECT_FALSE(differ.any().item<bool>())
          << what << ": list " << list << ", parameter " << i << ", " << some.weights[i].scalar_type() << " "
          << some.gradients[i].scalar_type() << " " << some.masters[i].scalar_type() << ", "
          << differ.sum().item<std::int64_t>() << " of " << one.numel() << ", "
          << one.cpu().masked_select(differ)[0].item<double>() << " and "
          << other.cpu().masked_select(differ)[0].item<double>();
    }
}

}  // namespace snug::testing
