#include "snug/capture/operator_work.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "snug/capture/stack_tensors.h"

namespace snug::capture {

namespace {

std::vector<at::Tensor> tensors(Entries stack) {
  std::vector<at::Tensor> found;
  each_tensor(stack, [&](const at::Tensor& tensor) { found.push_back(tensor); });
  return found;
}

double product_flops(const std::vector<at::Tensor>& arguments, bool has_summand) {
  const std::size_t first = has_summand ? 1 : 0;
  if (arguments.size() < first + 2) return 0;
  const at::Tensor &left = arguments[first], &right = arguments[first + 1];
  if (left.dim() < 1 || right.dim() < 2) return 0;
  return 2.0 * static_cast<double>(left.numel()) * static_cast<double>(right.size(-1));
}

// Every element of the result is a dot product over a filter's share of the channels.
double convolution_flops_per_result(const std::vector<at::Tensor>& arguments) {
  if (arguments.size() < 2 || arguments[1].dim() < 2) return 0;
  return 2.0 * static_cast<double>(arguments[1].numel()) / static_cast<double>(arguments[1].size(0));
}

// Its three gradients cost one forward each, but for that of the bias.
double convolution_backward_flops(const std::vector<at::Tensor>& inputs) {
  if (inputs.size() < 3 || inputs[2].dim() < 2) return 0;
  return 2 * 2.0 * static_cast<double>(inputs[0].numel()) * static_cast<double>(inputs[2].numel()) /
         static_cast<double>(inputs[2].size(0));
}

// How many keys a query sees, on average: our own operator says whether it is causal and how far back it
// looks before its last argument.
double keys_per_query(Entries arguments, const at::Tensor& key, bool is_own) {
  const auto keys = static_cast<double>(key.size(-2));
  bool causal = false;
  for (const c10::IValue& argument : arguments) causal |= argument.isBool() && argument.toBool();
  if (!causal) return keys;
  const std::int64_t window = is_own ? arguments[arguments.size() - 2].toInt() : 0;
  if (window == 0) return keys / 2;
  const auto seen = static_cast<double>(window);
  return seen - seen * seen / (2 * keys);  // fewer at the beginning
}

// Two products over all pairs of tokens that see each other, five in the backward.
double attention_flops(Entries arguments, bool is_own, bool backward) {
  const auto inputs = tensors(arguments);
  const std::size_t first = backward ? 1 : 0;
  if (inputs.size() < first + 2 || inputs[first].dim() != 4) return 0;
  const at::Tensor &query = inputs[first], &key = inputs[first + 1];
  const double product = 2.0 * static_cast<double>(query.numel()) * keys_per_query(arguments, key, is_own);
  return product * (backward ? 5 : 2);
}

// One product per weight [out, in], of x [rows, in] or of its own gradient [rows, out].
double project_flops(const std::vector<at::Tensor>& inputs, bool backward) {
  const auto product = [](const at::Tensor& rows, const at::Tensor& weight) {
    return 2.0 * static_cast<double>(rows.numel()) * static_cast<double>(weight.numel() / rows.size(-1));
  };
  const std::size_t grads = backward ? inputs.size() / 2 : 0;
  double flops = 0;
  for (std::size_t i = backward ? grads : 1; i < inputs.size(); ++i)
    if (inputs[i].dim() == 2) flops += product(inputs[backward ? i - grads : 0], inputs[i]);  // no bias
  return flops;
}

// The logits, and a product of the same size for either gradient that is asked for. A product ends with
// hardware half idle: every further piece of the rows takes as long as one with some rows more.
double loss_flops(Entries arguments) {
  constexpr double kRowsLost = 64;
  const at::Tensor hidden = arguments[0].toTensor(), weight = arguments[1].toTensor();
  const std::int64_t at_a_time = std::max<std::int64_t>(arguments[5].toInt(), 1);
  const auto further = static_cast<double>((hidden.size(0) - 1) / at_a_time);
  double products = 1;
  for (const c10::IValue& argument : arguments) products += argument.isBool() && argument.toBool();
  return products * 2.0 * (static_cast<double>(hidden.size(0)) + kRowsLost * further) *
         static_cast<double>(weight.numel());
}

// Results that are views, or memory that nobody wrote.
bool moves_nothing(const c10::FunctionSchema& schema) {
  if (schema.name().find("empty") != std::string::npos) return true;
  return !schema.returns().empty() && std::ranges::all_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() && !result.alias_info()->isWrite();
  });
}

// Of a sparse one nobody knows how much it is.
double bytes_of(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided ? static_cast<double>(tensor.nbytes()) : 0;
}

// What is written and not returned, which would count it.
double silently_written_bytes(const c10::FunctionSchema& schema, Entries arguments) {
  double bytes = 0;
  if (!schema.returns().empty()) return bytes;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (!alias || !alias->isWrite()) continue;
    each_tensor(arguments.slice(i, 1), [&](const at::Tensor& tensor) { bytes += bytes_of(tensor); });
  }
  return bytes;
}

bool is_any(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

OperatorWork::OperatorWork(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
    : work_{.name = op.operator_name().name},
      below_(stack.size() - op.schema().arguments().size()),
      moves_nothing_(moves_nothing(op.schema())) {
  if (moves_nothing_) return;
  const Entries arguments = Entries(stack).slice(below_);
  work_.bytes = silently_written_bytes(op.schema(), arguments);
  each_tensor(arguments, [&](const at::Tensor& tensor) {
    work_.bytes += bytes_of(tensor);
    work_.low_precision |= is_half(tensor);
  });
  const std::string_view name = work_.name;
  if (is_any(name, {"aten::mm", "aten::bmm", "snug::product"})) {
    work_.flops = product_flops(tensors(arguments), /*has_summand=*/false);
  } else if (is_any(name, {"aten::addmm", "aten::addmm_", "aten::baddbmm", "snug::product_"})) {
    work_.flops = product_flops(tensors(arguments), /*has_summand=*/true);
  } else if (is_any(name, {"aten::convolution", "aten::convolution_overrideable"})) {
    flops_per_result_ = convolution_flops_per_result(tensors(arguments));
  } else if (name == "aten::convolution_backward") {
    work_.flops = convolution_backward_flops(tensors(arguments));
  } else if (is_any(name, {"snug::project", "snug::project_backward"})) {
    work_.flops = project_flops(tensors(arguments), name == "snug::project_backward");
  } else if (name == "snug::linear_cross_entropy") {
    work_.flops = loss_flops(arguments);
  } else if (name.find("attention") != std::string_view::npos) {
    work_.flops = attention_flops(arguments, name.starts_with("snug::"),
                                  name.find("backward") != std::string_view::npos);
    work_.is_attention = true;
  }
}

trace::Work OperatorWork::finish(const torch::jit::Stack& stack) {
  if (moves_nothing_) return std::move(work_);
  each_tensor(Entries(stack).slice(below_), [&](const at::Tensor& tensor) {
    work_.bytes += bytes_of(tensor);
    work_.flops += flops_per_result_ * static_cast<double>(tensor.numel());
  });
  return std::move(work_);
}

}  // namespace snug::capture
