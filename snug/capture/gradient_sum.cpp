#include "snug/capture/gradient_sum.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

namespace snug::capture {
namespace {

// How many nodes of the graph this thread is inside of. Autograd's own sums are made between nodes.
thread_local int nodes_running = 0;

at::CallbackHandle watch_nodes() {
  auto enter = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
    ++nodes_running;
    return nullptr;
  };
  auto leave = [](const at::RecordFunction&, at::ObserverContext*) { --nodes_running; };
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(enter, leave).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

bool inside_engine() {
  return torch::autograd::get_current_graph_task_id() >= 0 && nodes_running == 0 &&
         !at::GradMode::is_enabled();
}

// The engine's own conditions (torch 2.11, input_buffer.cpp), with one more reference: the stack's.
bool can_take_the_sum(const at::Tensor& sum, const at::Tensor& addend) {
  return sum.is_meta() && sum.sizes() == addend.sizes() && sum.scalar_type() == addend.scalar_type() &&
         sum.is_non_overlapping_and_dense() && sum.use_count() == 2 && sum.storage().use_count() == 1;
}

}  // namespace

GradientSumScope::GradientSumScope()
    : add_(c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor")),
      nodes_(watch_nodes()),
      listening_(*this) {}

GradientSumScope::~GradientSumScope() {
  at::removeCallback(nodes_);
}

void GradientSumScope::on_operator(hooks::OperatorCall& call) {
  if (call.op == add_ && inside_engine()) {
    const auto& sum = torch::jit::peek(call.stack, 0, 3).toTensor();
    const auto& addend = torch::jit::peek(call.stack, 1, 3).toTensor();
    if (can_take_the_sum(sum, addend)) {
      torch::jit::drop(call.stack, 2);
      return;
    }
  }
  call.proceed();
}

}  // namespace snug::capture
