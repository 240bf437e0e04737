// Schema and checked front of the AdamW step, and its kernels for CPU and Meta. CUDA's is in adamw_cuda.cu.
#include "snug/ops/adamw.h"

#include <ATen/Parallel.h>
#include <torch/library.h>

#include <cmath>

#include "snug/base/error.h"
#include "snug/ops/adamw_math.h"
#include "snug/ops/operator.h"

namespace snug::ops {
namespace {

constexpr std::int64_t kGrain = 1 << 14;  // elements worth a thread

void call_adamw(at::TensorList weights, at::TensorList gradients, at::TensorList masters,
                at::TensorList exp_avgs, at::TensorList exp_avg_sqs, at::TensorList steps,
                const std::optional<at::Tensor>& factor, double lr, double beta1, double beta2,
                double weight_decay, double eps) {
  static const auto op = find_operator<decltype(call_adamw)>("snug::adamw_");
  op.call(weights, gradients, masters, exp_avgs, exp_avg_sqs, steps, factor, lr, beta1, beta2, weight_decay,
          eps);
}

float widened(c10::BFloat16 value) {
  return static_cast<float>(value);
}
float widened(float value) {
  return value;
}

// How a weight is read and written, by what stands behind it.
struct Plain {
  float* weights;
  float read(std::int64_t i) const { return weights[i]; }
  void write(std::int64_t i, float value) const { weights[i] = value; }
};
struct WithMaster {
  c10::BFloat16* weights;
  float* masters;
  float read(std::int64_t i) const { return masters[i]; }
  void write(std::int64_t i, float value) const {
    masters[i] = value;
    weights[i] = static_cast<c10::BFloat16>(value);
  }
};
struct WithRemainder {
  std::uint16_t* weights;
  std::int16_t* remainders;
  float read(std::int64_t i) const { return SplitFloat{weights[i], remainders[i]}.joined(); }
  void write(std::int64_t i, float value) const {
    const SplitFloat split = SplitFloat::of(value);
    weights[i] = split.nearest;
    remainders[i] = split.remainder;
  }
};

template <class Weights, class Gradient>
void update_all(Weights weights, const Gradient* gradients, float* exp_avgs, float* exp_avg_sqs,
                std::int64_t count, const AdamWMath& math, float factor) {
  at::parallel_for(0, count, kGrain, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      float weight = weights.read(i);
      math.update(weight, exp_avgs[i], exp_avg_sqs[i], widened(gradients[i]) * factor);
      weights.write(i, weight);
    }
  });
}

template <class Gradient>
void update_one(const at::Tensor& weight, const at::Tensor& gradient, const at::Tensor& master,
                const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq, const AdamWMath& math,
                float factor) {
  const auto update = [&](auto weights) {
    update_all(weights, gradient.const_data_ptr<Gradient>(), exp_avg.mutable_data_ptr<float>(),
               exp_avg_sq.mutable_data_ptr<float>(), weight.numel(), math, factor);
  };
  if (weight.scalar_type() == at::kFloat) return update(Plain{weight.mutable_data_ptr<float>()});
  if (master.scalar_type() == at::kFloat)
    return update(WithMaster{weight.mutable_data_ptr<c10::BFloat16>(), master.mutable_data_ptr<float>()});
  update(WithRemainder{static_cast<std::uint16_t*>(weight.mutable_data_ptr()),
                       master.mutable_data_ptr<std::int16_t>()});
}

void adamw_cpu(at::TensorList weights, at::TensorList gradients, at::TensorList masters,
               at::TensorList exp_avgs, at::TensorList exp_avg_sqs, at::TensorList steps,
               const std::optional<at::Tensor>& factor, double lr, double beta1, double beta2,
               double weight_decay, double eps) {
  AdamWMath math{static_cast<float>(lr),
                 static_cast<float>(beta1),
                 static_cast<float>(beta2),
                 static_cast<float>(weight_decay),
                 static_cast<float>(eps),
                 1,
                 1};
  const float scale = factor ? *factor->const_data_ptr<float>() : 1;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float step = *steps[i].const_data_ptr<float>();
    math.correction1 = 1 - std::pow(math.beta1, step);
    math.correction2_root = std::sqrt(1 - std::pow(math.beta2, step));
    const auto update =
        gradients[i].scalar_type() == at::kFloat ? update_one<float> : update_one<c10::BFloat16>;
    update(weights[i], gradients[i], masters[i], exp_avgs[i], exp_avg_sqs[i], math, scale);
  }
}

void adamw_meta(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                at::TensorList, const std::optional<at::Tensor>&, double, double, double, double, double) {}

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "adamw_(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] masters, Tensor(c!)[] exp_avgs, "
      "Tensor(d!)[] exp_avg_sqs, Tensor[] steps, Tensor? factor, float lr, float beta1, float beta2, float "
      "weight_decay, float eps) -> ()");
}

TORCH_LIBRARY_IMPL(snug, CPU, library) {
  library.impl("adamw_", TORCH_FN(adamw_cpu));
}

TORCH_LIBRARY_IMPL(snug, Meta, library) {
  library.impl("adamw_", TORCH_FN(adamw_meta));
}

void check_entry(const AdamWTensors& tensors, std::size_t i) {
  const at::Tensor &weight = tensors.weights[i], &gradient = tensors.gradients[i],
                   &master = tensors.masters[i];
  for (const at::Tensor* other : {&gradient, &master, &tensors.exp_avgs[i], &tensors.exp_avg_sqs[i]})
    check(other->sizes() == weight.sizes() && other->is_contiguous() && other->device() == weight.device(),
          "adamw_: parameter ", i, " is ", weight.sizes(), " on ", weight.device(),
          "; expected contiguous tensors like it, got ", other->sizes(), " on ", other->device());
  const bool is_half = weight.scalar_type() == at::kBFloat16;
  check(weight.is_contiguous() && (is_half || weight.scalar_type() == at::kFloat), "adamw_: parameter ", i,
        " must be contiguous and float32 or bfloat16, got ", weight.scalar_type());
  check(gradient.scalar_type() == at::kFloat || (is_half && gradient.scalar_type() == at::kBFloat16),
        "adamw_: the gradient of parameter ", i, ", which is ", weight.scalar_type(), ", is ",
        gradient.scalar_type());
  check(is_half ? master.scalar_type() == at::kFloat || master.scalar_type() == at::kShort
                : master.is_same(weight),
        "adamw_: parameter ", i, " is ", weight.scalar_type(),
        is_half ? " and needs a master in float32 or a remainder in int16, got "
                : " and is its own master, got another, ",
        master.scalar_type());
  for (const at::Tensor* state : {&tensors.exp_avgs[i], &tensors.exp_avg_sqs[i], &tensors.steps[i]})
    check(state->scalar_type() == at::kFloat, "adamw_: the state of parameter ", i, " must be float32, got ",
          state->scalar_type());
  check(tensors.steps[i].numel() == 1 && tensors.steps[i].device() == weight.device(),
        "adamw_: the step of parameter ", i, " must be one number on ", weight.device());
}

}  // namespace

void adamw_(const AdamWTensors& tensors, const AdamWNumbers& numbers,
            const std::optional<at::Tensor>& factor) {
  const std::size_t count = tensors.weights.size();
  for (const auto* list :
       {&tensors.gradients, &tensors.masters, &tensors.exp_avgs, &tensors.exp_avg_sqs, &tensors.steps})
    check(list->size() == count, "adamw_: lists of ", count, " and ", list->size(), " tensors");
  for (std::size_t i = 0; i < count; ++i) check_entry(tensors, i);
  if (count == 0) return;
  check(!factor || (factor->scalar_type() == at::kFloat && factor->numel() == 1 &&
                    factor->device() == tensors.weights[0].device()),
        "adamw_: the factor must be one float32 number on ", tensors.weights[0].device());
  call_adamw(tensors.weights, tensors.gradients, tensors.masters, tensors.exp_avgs, tensors.exp_avg_sqs,
             tensors.steps, factor, numbers.lr, numbers.beta1, numbers.beta2, numbers.weight_decay,
             numbers.eps);
}

}  // namespace snug::ops
