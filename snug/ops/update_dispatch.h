// The lists of one update, whatever the optimizer, for the kernels of a device. Internal to ops.
#pragma once

#include <ATen/ops/empty.h>

#include <optional>
#include <variant>

#include "snug/ops/update.h"
#include "snug/ops/update_rules.h"

namespace snug::ops {

using AnyRule = std::variant<AdamWRule, SgdRule<false>, SgdRule<true>>;

struct UpdateLists {
  at::TensorList weights, gradients, masters;
  at::TensorList states[2];  // as many as the rule has
  at::TensorList steps;      // or none
  const std::optional<at::Tensor>&factor, &skip;
  Arithmetic arithmetic;
};

inline WeightKind weight_kind(const at::Tensor& weight, const at::Tensor& master) {
  if (weight.scalar_type() == at::kFloat) return WeightKind::Plain;
  if (master.scalar_type() == at::kShort) return WeightKind::Remainder;
  return weight.scalar_type() == at::kHalf ? WeightKind::HalfMaster : WeightKind::Bf16Master;
}

// The operators of a device, by its `update(rule, lists)` and `correct(rule, steps, corrections)`.
template <class Device>
struct UpdateOperators {
  static void adamw(at::TensorList weights, at::TensorList gradients, at::TensorList masters,
                    at::TensorList exp_avgs, at::TensorList exp_avg_sqs, at::TensorList steps,
                    const std::optional<at::Tensor>& factor, const std::optional<at::Tensor>& skip, double lr,
                    double beta1, double beta2, double weight_decay, double eps, bool as_cuda) {
    const AdamWRule rule{.lr = static_cast<float>(lr),
                         .beta1 = static_cast<float>(beta1),
                         .beta2 = static_cast<float>(beta2),
                         .weight_decay = static_cast<float>(weight_decay),
                         .eps = static_cast<float>(eps),
                         .kept = static_cast<float>(1 - lr * weight_decay)};
    Device::update(
        rule,
        {weights, gradients, masters, {exp_avgs, exp_avg_sqs}, steps, factor, skip, arithmetic(as_cuda)});
  }

  static at::Tensor adamw_corrections(const at::Tensor& steps, double beta1, double beta2) {
    const AdamWRule rule{.beta1 = static_cast<float>(beta1), .beta2 = static_cast<float>(beta2)};
    std::vector<std::int64_t> sizes = steps.sizes().vec();
    sizes.push_back(2);
    const at::Tensor corrections = at::empty(sizes, steps.options());
    if (steps.numel() > 0) Device::correct(rule, steps.contiguous(), corrections);
    return corrections;
  }

  static void sgd(at::TensorList weights, at::TensorList gradients, at::TensorList masters,
                  at::TensorList momenta, const std::optional<at::Tensor>& factor,
                  const std::optional<at::Tensor>& skip, double lr, double momentum, double weight_decay,
                  bool as_cuda) {
    const UpdateLists lists{weights, gradients, masters, {momenta, {}},
                            {},      factor,    skip,    arithmetic(as_cuda)};
    const auto update = [&](auto rule) { Device::update(rule, lists); };
    const float rate = static_cast<float>(lr), decay = static_cast<float>(weight_decay);
    if (momenta.empty())
      update(SgdRule<false>{rate, 0, decay});
    else
      update(SgdRule<true>{rate, static_cast<float>(momentum), decay});
  }

 private:
  static Arithmetic arithmetic(bool as_cuda) { return as_cuda ? Arithmetic::Cuda : Arithmetic::OfDevice; }
};

}  // namespace snug::ops
