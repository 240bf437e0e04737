#include "snug/capture/meta_kernels.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/ConvUtils.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <tuple>
#include <vector>

namespace snug::capture {
namespace {

using Two = std::tuple<at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using OptionalTensor = std::optional<at::Tensor>;

// Blocks that live at the same time and go in reverse order, as the locals of a kernel do.
void take_scratch(int count, at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (count == 0) return;
  auto block = at::empty(sizes, options);
  take_scratch(count - 1, sizes, options);
}

at::Tensor index_select(const at::Tensor& self, std::int64_t dim, const at::Tensor& index) {
  auto sizes = self.sizes().vec();
  if (!sizes.empty()) sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  auto out = at::empty(sizes, self.options());
  auto contiguous_index = index.contiguous();
  return out;
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor& indices, c10::SymInt rows,
                                    c10::SymInt, bool) {
  auto out = at::empty({rows.expect_int(), grad.size(-1)}, grad.options());
  auto contiguous_indices = indices.contiguous();
  auto contiguous_grad = grad.contiguous();
  return out;
}

Three native_layer_norm(const at::Tensor& input, c10::SymIntArrayRef normalized, const OptionalTensor& weight,
                        const OptionalTensor&, double) {
  auto x = input.contiguous();
  auto statistic_sizes = input.sizes().vec();
  std::fill(statistic_sizes.end() - static_cast<std::ptrdiff_t>(normalized.size()), statistic_sizes.end(), 1);
  // A 16-bit input under an fp32 weight keeps fp32 statistics.
  auto statistics = weight && weight->defined() ? x.options().dtype(weight->scalar_type()) : x.options();
  auto out = at::empty_like(x);
  auto mean = at::empty(statistic_sizes, statistics);
  auto rstd = at::empty(statistic_sizes, statistics);
  return {out, mean, rstd};
}

Three native_layer_norm_backward(const at::Tensor& grad, const at::Tensor& input, c10::SymIntArrayRef,
                                 const at::Tensor&, const at::Tensor&, const OptionalTensor& weight,
                                 const OptionalTensor& bias, std::array<bool, 3> wanted) {
  auto x = input.contiguous();
  at::Tensor grad_input, grad_weight, grad_bias;
  if (wanted[0]) grad_input = at::empty_like(x);
  if (wanted[1]) grad_weight = at::empty_like(*weight);
  if (wanted[2]) grad_bias = at::empty_like(*bias);
  auto contiguous_grad = grad.contiguous();
  bool reduces = grad_weight.defined() || grad_bias.defined();
  auto columns = grad_weight.defined() ? grad_weight.numel() : grad_bias.defined() ? grad_bias.numel() : 0;
  take_scratch(reduces, {2, at::get_num_threads(), columns}, x.options());
  return {grad_input, grad_weight, grad_bias};
}

bool channels_come_last(const at::Tensor& input) {
  return input.dim() == 2 || (!input.is_contiguous() && input.is_contiguous(input.suggest_memory_format()));
}

Three native_batch_norm(const at::Tensor& input, const OptionalTensor&, const OptionalTensor&,
                        const OptionalTensor&, const OptionalTensor&, bool training, double, double) {
  auto channels = input.size(1);
  auto out = at::empty_like(input, input.suggest_memory_format());
  auto mean = at::empty({training ? channels : 0}, input.options());
  auto inverse_deviation = at::empty({training ? channels : 0}, input.options());
  if (training) take_scratch(channels_come_last(input) ? 3 : 2, {channels}, input.options());
  take_scratch(2, {channels}, input.options());
  return {out, mean, inverse_deviation};
}

Three native_batch_norm_backward(const at::Tensor&, const at::Tensor& input, const OptionalTensor&,
                                 const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                                 const OptionalTensor&, bool training, double, std::array<bool, 3> wanted) {
  auto channels = input.size(1);
  at::Tensor grad_input, grad_weight, grad_bias;
  if (wanted[0]) grad_input = at::empty_like(input, input.suggest_memory_format());
  if (wanted[1]) grad_weight = at::empty({channels}, input.options());
  if (wanted[2]) grad_bias = at::empty({channels}, input.options());
  if (wanted[0]) {  // the CPU kernel drops its first one
    grad_input = at::empty_like(input, input.suggest_memory_format());
  }
  if (channels_come_last(input)) {
    auto deviation = at::empty({training ? 0 : channels}, input.options());
    take_scratch(1, {2, at::get_num_threads(), channels}, input.options());
  }
  return {grad_input, grad_weight, grad_bias};
}

at::MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  auto format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const OptionalTensor&,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  const auto dimensions = static_cast<std::size_t>(input.dim() - 2);
  auto ints = [&](c10::SymIntArrayRef list) {  // one number stands for every dimension
    const auto given = C10_AS_INTARRAYREF_SLOW(list);
    return given.size() == 1 ? at::DimVector(dimensions, given[0]) : at::DimVector(given);
  };
  auto sizes = transposed ? at::native::conv_input_size(input.sizes(), weight.sizes(), ints(padding),
                                                        ints(output_padding), ints(stride), ints(dilation),
                                                        groups.expect_int())
                          : at::native::conv_output_size(input.sizes(), weight.sizes(), ints(padding),
                                                         ints(stride), ints(dilation));
  return at::empty(sizes, input.options(), convolution_format(input, weight));
}

Three convolution_backward(const at::Tensor&, const at::Tensor& input, const at::Tensor& weight,
                           at::OptionalSymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef,
                           c10::SymIntArrayRef, bool transposed, c10::SymIntArrayRef, c10::SymInt groups,
                           std::array<bool, 3> wanted) {
  at::Tensor grad_input, grad_weight, grad_bias;
  auto channels = transposed ? weight.size(1) * groups.expect_int() : weight.size(0);
  auto format = convolution_format(input, weight);
  if (wanted[0]) grad_input = at::empty_like(input, format);
  if (wanted[2]) grad_bias = at::empty({channels}, weight.options());
  if (wanted[1]) grad_weight = at::empty_like(weight, format);
  return {grad_input, grad_weight, grad_bias};
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  auto dtype = at::native::result_type(self, other);
  auto chosen = self.to(dtype), rejected = other.to(dtype);
  auto iterator = at::TensorIteratorConfig()
                      .check_all_same_dtype(false)
                      .declare_static_dtype_and_device(dtype, at::kMeta)
                      .add_owned_output(at::Tensor())
                      .add_owned_const_input(condition)
                      .add_owned_const_input(chosen)
                      .add_owned_const_input(rejected)
                      .build();
  return iterator.output();
}

at::Tensor relu(const at::Tensor& self) {
  return at::clamp_min(self, 0);
}
at::Tensor& relu_(at::Tensor& self) {
  return at::clamp_min_(self, 0);
}
at::Tensor flip(const at::Tensor& self, at::IntArrayRef) {
  return at::empty_like(self);
}

at::Tensor mse_loss_backward(const at::Tensor&, const at::Tensor& self, const at::Tensor&, std::int64_t) {
  return at::empty_like(self, at::MemoryFormat::Contiguous);
}

// A mean has the geometry of every reduction to one number of the same type.
at::Tensor moment(const at::Tensor& self, at::OptionalIntArrayRef dim, const std::optional<at::Scalar>&,
                  bool keepdim) {
  return at::mean(self, dim, keepdim);
}

Two two_moments(const at::Tensor& self, at::OptionalIntArrayRef dim,
                const std::optional<at::Scalar>& correction, bool keepdim) {
  auto first = moment(self, dim, correction, keepdim);
  return {first, moment(self, dim, correction, keepdim)};
}

Two native_dropout(const at::Tensor& input, double, std::optional<bool> train) {
  auto mask = at::empty_like(input, at::kBool);
  auto mask_as_factor = train.value_or(true) ? at::empty_like(input) : at::Tensor();
  return {at::empty_like(input), mask};
}

at::Tensor native_dropout_backward(const at::Tensor& grad, const at::Tensor&, double) {
  auto mask_as_factor = at::empty_like(grad);
  auto masked = at::empty_like(grad);
  mask_as_factor.reset();
  return at::empty_like(grad);
}

// Fused optimizers write into their arguments, return nothing and allocate nothing.
void update_in_place(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

class Registrar {
 public:
  template <class Kernel>
  void add(const char* name, Kernel&& kernel) {
    auto op = c10::Dispatcher::singleton().findSchema(torch::jit::parseName(name));
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) return;
    library_.impl(name, std::forward<Kernel>(kernel));
  }

 private:
  torch::Library library_{torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__};
};

}  // namespace

void register_meta_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    static auto* registrar = new Registrar;  // never destroyed: kernels stay to the end of the process
    registrar->add("aten::index_select", TORCH_FN(index_select));
    registrar->add("aten::embedding_dense_backward", TORCH_FN(embedding_dense_backward));
    registrar->add("aten::native_layer_norm", TORCH_FN(native_layer_norm));
    registrar->add("aten::native_layer_norm_backward", TORCH_FN(native_layer_norm_backward));
    registrar->add("aten::native_batch_norm", TORCH_FN(native_batch_norm));
    registrar->add("aten::native_batch_norm_backward", TORCH_FN(native_batch_norm_backward));
    registrar->add("aten::convolution", TORCH_FN(convolution));
    registrar->add("aten::convolution_backward", TORCH_FN(convolution_backward));
    registrar->add("aten::where.self", TORCH_FN(where));
    registrar->add("aten::relu", TORCH_FN(relu));
    registrar->add("aten::relu_", TORCH_FN(relu_));
    registrar->add("aten::flip", TORCH_FN(flip));
    registrar->add("aten::mse_loss_backward", TORCH_FN(mse_loss_backward));
    registrar->add("aten::native_dropout", TORCH_FN(native_dropout));
    registrar->add("aten::native_dropout_backward", TORCH_FN(native_dropout_backward));
    for (const char* name : {"aten::var.correction", "aten::std.correction"})
      registrar->add(name, TORCH_FN(moment));
    for (const char* name : {"aten::var_mean.correction", "aten::std_mean.correction"}) {
      registrar->add(name, TORCH_FN(two_moments));
    }
    for (const char* name :
         {"aten::_fused_adam_", "aten::_fused_adam_.tensor_lr", "aten::_fused_adamw_",
          "aten::_fused_adamw_.tensor_lr", "aten::_fused_sgd_", "aten::_fused_sgd_.tensor_lr",
          "aten::_fused_adagrad_", "aten::_fused_adagrad_.tensor_lr"}) {
      registrar->add(name, torch::CppFunction::makeFromBoxedFunction<&update_in_place>());
    }
  });
}

}  // namespace snug::capture
