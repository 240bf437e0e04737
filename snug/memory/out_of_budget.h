// Thrown when an allocation would pass the budget: carries what was alive, and what() prints it as a table.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "snug/base/export.h"
#include "snug/trace/ledger.h"

namespace snug::memory {

class SNUG_API OutOfBudget final : public c10::OutOfMemoryError {
 public:
  OutOfBudget(std::uint64_t requested_bytes, std::uint64_t budget_bytes, trace::Snapshot alive);

  const char* what() const noexcept override { return text_.c_str(); }
  std::uint64_t requested_bytes() const { return requested_; }
  std::uint64_t budget_bytes() const { return budget_; }
  const trace::Snapshot& alive() const {
    return alive_;
  }  // at the moment of the refusal, the request not included

 private:
  std::uint64_t requested_;
  std::uint64_t budget_;
  trace::Snapshot alive_;
  std::string text_;
};

}  // namespace snug::memory
