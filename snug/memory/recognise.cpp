#include "snug/memory/recognise.h"

#include "snug/hooks/parameter.h"

namespace snug::memory {

using trace::Category;
using trace::EventKind;

namespace {

thread_local int operator_depth = 0;

struct InsideOperator {
  InsideOperator() { ++operator_depth; }
  ~InsideOperator() { --operator_depth; }
};

RawEvent about(EventKind kind, const at::Tensor& tensor, Category category) {
  return {.kind = kind,
          .category = category,
          .region = hooks::current_region(),
          .address = block_of(tensor),
          .bytes = tensor.has_storage() ? tensor.storage().nbytes() : 0};
}

}  // namespace

bool in_operator() noexcept {
  return operator_depth > 0;
}

void* block_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  // One whose contents are elsewhere has none, and is no error here.
  return tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get_context();
}

void OperatorWatch::on_operator(hooks::OperatorCall& call) {
  const c10::OperatorName& name = call.op.operator_name();
  {
    InsideOperator inside;
    call.proceed();
  }
  const std::size_t waiting =
      queue_.push({.kind = EventKind::Op, .region = hooks::current_region(), .op = &name});
  if (waiting >= length_) when_full_();
}

void SaveWatch::on_save(const at::Tensor& tensor) {
  queue_.push(about(EventKind::Save, tensor,
                    hooks::is_parameter(tensor) ? Category::Parameter : Category::Activation));
}

void SaveWatch::on_unpack(const at::Tensor& tensor) {
  queue_.push(about(EventKind::Unpack, tensor, Category::Other));
}

void GradientWatch::parameter_came(const at::Tensor& parameter) {
  queue_.push(about(EventKind::Retag, parameter, Category::Parameter));
}

void GradientWatch::gradient_ready(const at::Tensor& leaf) {
  parameter_came(leaf);
  if (leaf.grad().defined()) queue_.push(about(EventKind::Retag, leaf.grad(), Category::Gradient));
}

}  // namespace snug::memory
