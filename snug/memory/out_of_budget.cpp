#include "snug/memory/out_of_budget.h"

#include <fmt/format.h>

#include "snug/base/bytes.h"
#include "snug/report/text.h"

namespace snug::memory {

namespace {

std::string describe(const Refusal& refusal, std::optional<std::uint64_t> budget, const std::string& note) {
  const std::string limit = budget
                                ? fmt::format("the budget is {} ({} bytes)", format_bytes(*budget), *budget)
                                : "the device has no more";
  return fmt::format("out of {}: {} ({} bytes) more were asked for while {} were alive; {}{}\n{}",
                     budget ? "budget" : "memory", format_bytes(refusal.requested_bytes),
                     refusal.requested_bytes, format_bytes(refusal.alive.total), limit, note,
                     report::table(refusal.alive));
}

}  // namespace

OutOfBudget::OutOfBudget(Refusal refusal, std::optional<std::uint64_t> budget_bytes, const std::string& note)
    : c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "out of budget"),
      refusal_(std::move(refusal)),
      budget_(budget_bytes),
      text_(describe(refusal_, budget_, note)) {}

}  // namespace snug::memory
