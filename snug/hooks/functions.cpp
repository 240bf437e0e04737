#include "snug/hooks/functions.h"

#include <dlfcn.h>

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace snug::hooks {

namespace {

thread_local FunctionListener* innermost = nullptr;

// From the begin of a Function to its end.
struct Running final : at::ObserverContext {
  std::function<void()> at_end;
};

// Of torch's own, in C++.
bool is_torchs(std::string_view name) {
  return name == "detach" || name == "detach_";
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  if (!innermost || function.operator_name() || is_torchs(function.name())) return nullptr;
  std::vector<at::Tensor> inputs;
  for (const c10::IValue& input : function.inputs())
    if (input.isTensor() && input.toTensor().defined()) inputs.push_back(input.toTensor());
  auto running = std::make_unique<Running>();
  running->at_end = innermost->on_function(function.name(), inputs);
  return running;
}

void end(const at::RecordFunction&, at::ObserverContext* context) {
  const auto* const running = static_cast<Running*>(context);
  if (running && running->at_end) running->at_end();
}

}  // namespace

bool is_python_here() {
  static const bool is_here = dlsym(RTLD_DEFAULT, "Py_IsInitialized") != nullptr;
  return is_here;
}

FunctionListenerGuard::FunctionListenerGuard(FunctionListener& listener)
    : outer_(std::exchange(innermost, &listener)) {
  if (outer_) return;  // one callback serves all
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&begin, &end).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FunctionListenerGuard::~FunctionListenerGuard() {
  if (!outer_) at::removeCallback(callback_);
  innermost = outer_;
}

}  // namespace snug::hooks
