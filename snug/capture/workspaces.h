// Memory that kernels take for themselves while they run, which Meta kernels do not know of: oneDNN's buffers
// for products in bf16, copies of operands of another type. An operator that may need some is run once on the
// CPU with zeros in its operands; from then on its Meta kernel is seen to take as much. Internal to capture.
#pragma once

#include <cstdint>

#include "snug/hooks/operators.h"

namespace snug::capture {

class WorkspaceScope {
 public:
  WorkspaceScope() : guard_(watch_) {}

 private:
  class Watch final : public hooks::OperatorListener {
   public:
    void on_operator(hooks::OperatorCall& call) override;
  };

  Watch watch_;
  hooks::OperatorListenerGuard guard_;
};

}  // namespace snug::capture
