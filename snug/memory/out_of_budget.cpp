#include "snug/memory/out_of_budget.h"

#include <fmt/format.h>

#include "snug/base/bytes.h"
#include "snug/report/text.h"

namespace snug::memory {

namespace {

std::string describe(std::uint64_t requested, std::uint64_t budget, const trace::Snapshot& alive) {
  const std::string headline = fmt::format(
      "out of budget: {} ({} bytes) more were asked for while {} were alive; the budget is {} ({} bytes)\n",
      format_bytes(requested), requested, format_bytes(alive.total), format_bytes(budget), budget);
  return headline + report::table(alive);
}

}  // namespace

OutOfBudget::OutOfBudget(std::uint64_t requested_bytes, std::uint64_t budget_bytes, trace::Snapshot alive)
    : c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "out of budget"),
      requested_(requested_bytes),
      budget_(budget_bytes),
      alive_(std::move(alive)),
      text_(describe(requested_, budget_, alive_)) {}

}  // namespace snug::memory
