// Schemas and checked fronts of the optimizer steps. On Meta there is nothing to do.
#include "snug/ops/update.h"

#include <torch/library.h>

#include "snug/base/error.h"
#include "snug/ops/operator.h"
#include "snug/ops/update_dispatch.h"

namespace snug::ops {
namespace {

struct Nothing {
  template <class Rule>
  static void update(const Rule&, const UpdateLists&) {}
  static void correct(const AdamWRule&, const at::Tensor&, const at::Tensor&) {}
};

TORCH_LIBRARY_FRAGMENT(snug, library) {
  library.def(
      "adamw_(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] masters, Tensor(c!)[] exp_avgs, "
      "Tensor(d!)[] exp_avg_sqs, Tensor[] steps, Tensor? factor, Tensor? skip, float lr, float beta1, float "
      "beta2, float weight_decay, float eps, bool as_cuda) -> ()");
  library.def("adamw_corrections(Tensor steps, float beta1, float beta2) -> Tensor");
  library.def(
      "sgd_(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] masters, Tensor(c!)[] momenta, Tensor? "
      "factor, Tensor? skip, float lr, float momentum, float weight_decay, bool as_cuda) -> ()");
}

TORCH_LIBRARY_IMPL(snug, Meta, library) {
  library.impl("adamw_", TORCH_FN(UpdateOperators<Nothing>::adamw));
  library.impl("adamw_corrections", TORCH_FN(UpdateOperators<Nothing>::adamw_corrections));
  library.impl("sgd_", TORCH_FN(UpdateOperators<Nothing>::sgd));
}

void check_entry(const char* name, const UpdateTensors& tensors, std::size_t i) {
  const at::Tensor &weight = tensors.weights[i], &gradient = tensors.gradients[i],
                   &master = tensors.masters[i];
  check(weight.device() == tensors.weights[0].device(), name, ": parameter ", i, " is on ", weight.device(),
        ", parameter 0 on ", tensors.weights[0].device(), "; expected one device");
  for (const at::Tensor* other : {&gradient, &master})
    check(other->sizes() == weight.sizes() && other->is_contiguous() && other->device() == weight.device(),
          name, ": parameter ", i, " is ", weight.sizes(), " on ", weight.device(),
          "; expected contiguous tensors like it, got ", other->sizes(), " on ", other->device());
  const bool is_half = weight.scalar_type() == at::kHalf, is_bf16 = weight.scalar_type() == at::kBFloat16;
  check(weight.is_contiguous() && (is_half || is_bf16 || weight.scalar_type() == at::kFloat), name,
        ": parameter ", i, " must be contiguous and float32, bfloat16 or float16, got ",
        weight.scalar_type());
  check(gradient.scalar_type() == at::kFloat || gradient.scalar_type() == weight.scalar_type(), name,
        ": the gradient of parameter ", i, ", which is ", weight.scalar_type(), ", is ",
        gradient.scalar_type());
  if (!is_half && !is_bf16)
    return check(master.is_same(weight), name, ": parameter ", i,
                 " is Float and is its own master, got another, ", master.scalar_type());
  check(master.scalar_type() == at::kFloat || (is_bf16 && master.scalar_type() == at::kShort), name,
        ": parameter ", i, " is ", weight.scalar_type(), " and needs a master in float32",
        is_bf16 ? " or a remainder in int16" : "", ", got ", master.scalar_type());
}

void check_states(const char* name, const UpdateTensors& tensors, const std::vector<at::Tensor>& states) {
  check(states.size() == tensors.weights.size(), name, ": ", tensors.weights.size(), " parameters and ",
        states.size(), " states");
  for (std::size_t i = 0; i < states.size(); ++i) {
    const at::Tensor& weight = tensors.weights[i];
    check(states[i].sizes() == weight.sizes() && states[i].is_contiguous() &&
              states[i].device() == weight.device() && states[i].scalar_type() == at::kFloat,
          name, ": parameter ", i, " is ", weight.sizes(), " on ", weight.device(),
          "; expected contiguous states like it in float32, got ", states[i].sizes(), " ",
          states[i].scalar_type(), " on ", states[i].device());
  }
}

void check_tensors(const char* name, const UpdateTensors& tensors, const UpdateControl& control) {
  const std::size_t count = tensors.weights.size();
  for (const auto* list : {&tensors.gradients, &tensors.masters})
    check(list->size() == count, name, ": lists of ", count, " and ", list->size(), " tensors");
  for (std::size_t i = 0; i < count; ++i) check_entry(name, tensors, i);
  for (const auto* scalar : {&control.factor, &control.skip})
    check(!*scalar || count == 0 ||
              ((*scalar)->scalar_type() == at::kFloat && (*scalar)->numel() == 1 &&
               (*scalar)->device() == tensors.weights[0].device()),
          name, ": factor and skip must be one float32 number on the device of the parameters");
  check(control.arithmetic == Arithmetic::OfDevice || count == 0 || !tensors.weights[0].is_cuda(), name,
        ": only the CPU can step in the arithmetic of another device, got parameters on ",
        tensors.weights[0].device(), ", which have it as theirs");
}

void note_written(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) ops::note_written(tensor);
}

}  // namespace

void adamw_(const AdamWTensors& tensors, const AdamWNumbers& numbers, const UpdateControl& control) {
  check_tensors("adamw_", tensors, control);
  check_states("adamw_", tensors, tensors.exp_avgs);
  check_states("adamw_", tensors, tensors.exp_avg_sqs);
  check(tensors.steps.size() == tensors.weights.size(), "adamw_: ", tensors.weights.size(),
        " parameters and ", tensors.steps.size(), " steps");
  const bool as_cuda = control.arithmetic == Arithmetic::Cuda;
  for (const at::Tensor& step : tensors.steps)
    check((step.numel() == 2 ? step.is_cpu() : step.numel() == 1 && !as_cuda) && step.is_contiguous() &&
              step.scalar_type() == at::kFloat && step.device() == tensors.weights[0].device(),
          "adamw_: a step must be ", as_cuda ? "its two adamw_corrections" : "one float32 number", " on ",
          tensors.weights[0].device(), ", got ", step.sizes(), " ", step.scalar_type(), " on ",
          step.device());
  if (tensors.weights.empty()) return;
  static const auto op = find_operator<decltype(UpdateOperators<Nothing>::adamw)>("snug::adamw_");
  op.call(tensors.weights, tensors.gradients, tensors.masters, tensors.exp_avgs, tensors.exp_avg_sqs,
          tensors.steps, control.factor, control.skip, numbers.lr, numbers.beta1, numbers.beta2,
          numbers.weight_decay, numbers.eps, as_cuda);
  for (const auto* written : {&tensors.weights, &tensors.masters, &tensors.exp_avgs, &tensors.exp_avg_sqs})
    note_written(*written);
}

at::Tensor adamw_corrections(const at::Tensor& steps, const AdamWNumbers& numbers) {
  check(steps.scalar_type() == at::kFloat, "adamw_corrections: steps must be float32, got ",
        steps.scalar_type());
  static const auto op =
      find_operator<decltype(UpdateOperators<Nothing>::adamw_corrections)>("snug::adamw_corrections");
  return op.call(steps, numbers.beta1, numbers.beta2);
}

void sgd_(const SgdTensors& tensors, const SgdNumbers& numbers, const UpdateControl& control) {
  check_tensors("sgd_", tensors, control);
  if (numbers.momentum != 0 || !tensors.momenta.empty()) check_states("sgd_", tensors, tensors.momenta);
  if (tensors.weights.empty()) return;
  static const auto op = find_operator<decltype(UpdateOperators<Nothing>::sgd)>("snug::sgd_");
  op.call(tensors.weights, tensors.gradients, tensors.masters, tensors.momenta, control.factor, control.skip,
          numbers.lr, numbers.momentum, numbers.weight_decay, control.arithmetic == Arithmetic::Cuda);
  for (const auto* written : {&tensors.weights, &tensors.masters, &tensors.momenta}) note_written(*written);
}

}  // namespace snug::ops
