// What an optimizer's step must do on every device.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "snug/ops/update.h"

namespace snug::testing {

inline const ops::AdamWNumbers kNumbers{.lr = 1e-2, .weight_decay = 0.1, .eps = 1e-4};

enum class Master { Fp32, Split };

// Bf16 parameters with zero moments, sizes that no vector divides among them.
inline ops::AdamWTensors half_parameters(Master master, at::ScalarType gradients, c10::Device device) {
  at::manual_seed(3);
  ops::AdamWTensors tensors;
  for (const std::int64_t size : {1, 7, 64, 1000, 20000}) {
    const at::Tensor weight = at::randn({size}, at::kFloat).to(at::kBFloat16).to(device);
    tensors.weights.push_back(weight);
    tensors.gradients.push_back(at::empty({size}, weight.options().dtype(gradients)));
    tensors.masters.push_back(master == Master::Fp32 ? weight.to(at::kFloat)
                                                     : at::zeros({size}, weight.options().dtype(at::kShort)));
    for (auto* state : {&tensors.exp_avgs, &tensors.exp_avg_sqs})
      state->push_back(at::zeros({size}, weight.options().dtype(at::kFloat)));
    tensors.steps.push_back(at::zeros({}, weight.options().dtype(at::kFloat)));
  }
  return tensors;
}

using AdamWList = std::vector<at::Tensor> ops::AdamWTensors::*;
inline const std::vector<AdamWList> kAdamWLists{
    &ops::AdamWTensors::weights,  &ops::AdamWTensors::gradients,   &ops::AdamWTensors::masters,
    &ops::AdamWTensors::exp_avgs, &ops::AdamWTensors::exp_avg_sqs, &ops::AdamWTensors::steps};

inline void append(ops::AdamWTensors& all, const ops::AdamWTensors& some) {
  for (const AdamWList list : kAdamWLists)
    (all.*list).insert((all.*list).end(), (some.*list).begin(), (some.*list).end());
}

// Every kind that a step takes, in one list.
inline ops::AdamWTensors mixed_parameters(c10::Device device) {
  ops::AdamWTensors mixed = half_parameters(Master::Split, at::kBFloat16, device);
  append(mixed, half_parameters(Master::Split, at::kFloat, device));
  append(mixed, half_parameters(Master::Fp32, at::kBFloat16, device));
  for (const auto& [weights, gradients] :
       {std::pair{at::kHalf, at::kHalf}, {at::kHalf, at::kFloat}, {at::kFloat, at::kFloat}}) {
    ops::AdamWTensors some = half_parameters(Master::Fp32, gradients, device);
    for (at::Tensor& weight : some.weights) weight = weight.to(weights);
    if (weights == at::kFloat) some.masters = some.weights;
    append(mixed, some);
  }
  return mixed;
}

inline void expect_equal(const ops::AdamWTensors& some, const ops::AdamWTensors& others) {
  for (std::size_t list = 0; list < kAdamWLists.size(); ++list)
    for (std::size_t i = 0; i < some.weights.size(); ++i)
      EXPECT_TRUE(at::equal((some.*kAdamWLists[list])[i], (others.*kAdamWLists[list])[i]))
          << "list " << list << ", parameter " << i;
}

// All of a parameter but its step, which must lie with the others'.
inline void move_parameter(ops::AdamWTensors& tensors, std::size_t i, c10::Device device) {
  for (const AdamWList list : kAdamWLists)
    if (list != &ops::AdamWTensors::steps) (tensors.*list)[i] = (tensors.*list)[i].to(device);
}

inline void take_step(ops::AdamWTensors& tensors, int step, const ops::UpdateControl& control = {}) {
  at::manual_seed(static_cast<std::uint64_t>(100 + step));
  for (at::Tensor& gradient : tensors.gradients)
    gradient.copy_(at::randn(gradient.sizes(), at::kFloat) * (step % 3 + 0.1));
  for (at::Tensor& count : tensors.steps) count.add_(1);
  ops::adamw_(tensors, kNumbers, control);
}

// Bits of the weight above, those of the remainder added to them.
inline at::Tensor joined(const at::Tensor& weight, const at::Tensor& remainder) {
  const at::Tensor high = weight.view(at::kShort).to(at::kInt).bitwise_left_shift(16);
  return (high + remainder.to(at::kInt)).view(at::kFloat);
}

inline void expect_split_is_the_master_bit_for_bit(c10::Device device) {
  for (const auto gradients : {at::kFloat, at::kBFloat16}) {
    auto whole = half_parameters(Master::Fp32, gradients, device);
    auto split = half_parameters(Master::Split, gradients, device);
    for (int step = 0; step < 20; ++step) {
      take_step(whole, step);
      take_step(split, step);
      for (std::size_t i = 0; i < whole.weights.size(); ++i) {
        ASSERT_TRUE(at::equal(joined(split.weights[i], split.masters[i]), whole.masters[i]))
            << "step " << step << ", parameter " << i;
        ASSERT_TRUE(at::equal(split.exp_avgs[i], whole.exp_avgs[i]));
        ASSERT_TRUE(at::equal(split.exp_avg_sqs[i], whole.exp_avg_sqs[i]));
        // But for ties.
        ASSERT_LE(split.weights[i].ne(whole.weights[i]).sum().item<std::int64_t>(), 5);
      }
    }
  }
}

// An fp32 parameter is its own master: the same numbers through torch's fused step.
inline void expect_torchs_step(c10::Device device, double tolerance) {
  at::manual_seed(4);
  ops::AdamWTensors ours;
  std::vector<at::Tensor> weights, exp_avgs, exp_avg_sqs, steps;
  for (const std::int64_t size : {3, 64, 20000}) {
    const at::Tensor weight = at::randn({size}, at::kFloat).to(device);
    ours.weights.push_back(weight);
    ours.masters.push_back(weight);
    ours.gradients.push_back(at::empty_like(weight));
    ours.exp_avgs.push_back(at::zeros_like(weight));
    ours.exp_avg_sqs.push_back(at::zeros_like(weight));
    ours.steps.push_back(at::zeros({}, weight.options()));
    weights.push_back(weight.clone());
    exp_avgs.push_back(at::zeros_like(weight));
    exp_avg_sqs.push_back(at::zeros_like(weight));
    steps.push_back(at::zeros({}, weight.options()));
  }
  for (int step = 0; step < 20; ++step) {
    take_step(ours, step);
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(weights, ours.gradients, exp_avgs, exp_avg_sqs, {}, steps, kNumbers.lr, kNumbers.beta1,
                      kNumbers.beta2, kNumbers.weight_decay, kNumbers.eps, false, false);
    for (std::size_t i = 0; i < weights.size(); ++i)
      ASSERT_TRUE(at::allclose(ours.weights[i], weights[i], tolerance, tolerance)) << "step " << step;
  }
}

inline void expect_a_factor_multiplies_gradients(c10::Device device) {
  auto scaled = half_parameters(Master::Split, at::kFloat, device);
  auto plain = half_parameters(Master::Split, at::kFloat, device);
  const at::Tensor factor = at::full({}, 0.5, at::TensorOptions(device));
  take_step(scaled, 0, {.factor = factor});
  take_step(plain, 0);
  for (std::size_t i = 0; i < plain.weights.size(); ++i)
    EXPECT_TRUE(at::allclose(scaled.exp_avgs[i], plain.exp_avgs[i] * 0.5, 1e-6, 0)) << i;
}

inline void expect_a_skipped_step_writes_nothing(c10::Device device) {
  const auto copies = [](const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copied;
    for (const at::Tensor& tensor : tensors) copied.push_back(tensor.clone());
    return copied;
  };
  auto tensors = half_parameters(Master::Split, at::kBFloat16, device);
  take_step(tensors, 0);
  const auto weights = copies(tensors.weights), masters = copies(tensors.masters),
             exp_avgs = copies(tensors.exp_avgs);
  const at::Tensor skip = at::ones({}, at::TensorOptions(device));
  take_step(tensors, 1, {.skip = skip});
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_TRUE(at::equal(tensors.weights[i], weights[i])) << i;
    EXPECT_TRUE(at::equal(tensors.masters[i], masters[i])) << i;
    EXPECT_TRUE(at::equal(tensors.exp_avgs[i], exp_avgs[i])) << i;
  }
  take_step(tensors, 1, {.skip = at::zeros_like(skip)});
  EXPECT_FALSE(at::equal(tensors.exp_avgs[4], exp_avgs[4]));
}

inline void expect_a_mixed_list_is_its_parameters_one_by_one(c10::Device device) {
  auto together = mixed_parameters(device), apart = mixed_parameters(device);
  for (int step = 0; step < 5; ++step) {
    take_step(together, step);
    for (std::size_t i = 0; i < apart.weights.size(); ++i) {
      ops::AdamWTensors one;
      for (const AdamWList list : kAdamWLists) (one.*list).push_back((apart.*list)[i]);
      one.gradients[0].copy_(together.gradients[i]);
      one.steps[0].add_(1);
      ops::adamw_(one, kNumbers);
    }
  }
  expect_equal(together, apart);
  EXPECT_FALSE(at::equal(together.weights[4], mixed_parameters(device).weights[4]));
}

// One list after the other lies where no vector may be read. Its neighbours in memory stay as they are.
inline void expect_misaligned_views_take_the_same_step(c10::Device device) {
  for (const AdamWList list : kAdamWLists) {
    auto aligned = mixed_parameters(device), shifted = mixed_parameters(device);
    std::vector<at::Tensor> rooms;
    for (std::size_t i = 0; i < shifted.weights.size(); ++i) {
      at::Tensor& tensor = (shifted.*list)[i];
      const at::Tensor room = rooms.emplace_back(at::full({tensor.numel() + 2}, 7, tensor.options()));
      tensor = room.narrow(0, 1, tensor.numel()).view(tensor.sizes()).copy_(tensor);
      if (shifted.weights[i].scalar_type() == at::kFloat) shifted.masters[i] = shifted.weights[i];
    }
    for (int step = 0; step < 3; ++step) {
      take_step(aligned, step);
      take_step(shifted, step);
    }
    expect_equal(shifted, aligned);
    for (const at::Tensor& room : rooms)
      for (const std::int64_t end : {std::int64_t{0}, room.numel() - 1})
        EXPECT_EQ(room[end].item<double>(), 7) << room.numel() << " " << room.scalar_type();
  }
}

// fp16 weights with an fp32 master that takes the steps of an fp32 parameter, bit for bit; SGD too.
inline void expect_half_follows_its_master(c10::Device device) {
  at::manual_seed(8);
  const at::Tensor start = at::randn({1000}).to(at::kHalf).to(device);
  for (const double momentum : {0.0, 0.9}) {
    ops::SgdTensors half{{{start.clone()}, {at::empty_like(start)}, {start.to(at::kFloat)}}};
    const at::Tensor weight = start.to(at::kFloat);
    ops::SgdTensors whole{{{weight}, {at::empty_like(weight)}, {weight}}};
    if (momentum != 0) half.momenta = {at::zeros_like(weight)}, whole.momenta = {at::zeros_like(weight)};
    for (int step = 0; step < 5; ++step) {
      half.gradients[0].copy_(at::randn({1000}));
      whole.gradients[0].copy_(half.gradients[0]);
      for (const auto* tensors : {&half, &whole})
        ops::sgd_(*tensors, {.lr = 0.1, .momentum = momentum, .weight_decay = 0.1});
      ASSERT_TRUE(at::equal(half.masters[0], weight)) << "step " << step << ", momentum " << momentum;
      ASSERT_TRUE(at::equal(half.weights[0], weight.to(at::kHalf)));
    }
    EXPECT_FALSE(at::allclose(weight, start.to(at::kFloat)));
  }
}

}  // namespace snug::testing
