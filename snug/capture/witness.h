// Counts operators, and turns the failure of one on Meta into a sentence. Internal to capture.
#pragma once

#include <cstdint>

#include "snug/hooks/operators.h"

namespace snug::capture {

class Witness final : public hooks::OperatorListener {
 public:
  explicit Witness(bool meta) : meta_(meta) {}
  void on_operator(hooks::OperatorCall& call) override;

  std::uint64_t operators = 0;

 private:
  bool meta_;
};

}  // namespace snug::capture
