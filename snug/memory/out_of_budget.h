// Thrown when an allocation would pass the budget, or when there is none and the device itself is full:
// carries what was alive, and what() prints it as a table.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <optional>
#include <string>

#include "snug/base/export.h"
#include "snug/trace/ledger.h"

namespace snug::memory {

// A request that was not met, and what was alive at that moment, the request not included.
struct Refusal {
  std::uint64_t requested_bytes = 0;
  trace::Snapshot alive;
};

class SNUG_API OutOfBudget final : public c10::OutOfMemoryError {
 public:
  // `note` is put behind what the limit is said to be.
  OutOfBudget(Refusal refusal, std::optional<std::uint64_t> budget_bytes, const std::string& note = "");

  const char* what() const noexcept override { return text_.c_str(); }
  std::uint64_t requested_bytes() const { return refusal_.requested_bytes; }
  std::optional<std::uint64_t> budget_bytes() const { return budget_; }
  const trace::Snapshot& alive() const { return refusal_.alive; }

 private:
  Refusal refusal_;
  std::optional<std::uint64_t> budget_;
  std::string text_;
};

}  // namespace snug::memory
