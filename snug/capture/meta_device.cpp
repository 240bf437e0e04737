#include <ATen/core/function_schema.h>

#include "snug/capture/capture.h"
#include "snug/capture/meta_kernels.h"

namespace snug::capture {

// Factories carry their device as an argument; those that take a tensor (zeros_like) follow that tensor by
// themselves.
class MetaDeviceScope::Redirect final : public hooks::OperatorListener {
 public:
  void on_operator(hooks::OperatorCall& call) override {
    const auto& arguments = call.op.schema().arguments();
    const std::size_t first = call.stack.size() - arguments.size();
    std::size_t device = arguments.size();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (call.stack[first + i].isTensor()) return call.proceed();
      if (arguments[i].name() == "device") device = i;
    }
    if (device < arguments.size()) call.stack[first + device] = c10::IValue(c10::Device(c10::kMeta));
    call.proceed();
  }
};

MetaDeviceScope::MetaDeviceScope() : redirect_(std::make_unique<Redirect>()), guard_(*redirect_) {
  register_meta_kernels();
}
MetaDeviceScope::~MetaDeviceScope() = default;

}  // namespace snug::capture
