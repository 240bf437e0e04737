#include "snug/capture/witness.h"

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "snug/base/error.h"
#include "snug/hooks/meta_target.h"
#include "snug/hooks/region.h"

namespace snug::capture {

namespace {

bool says_meta(const std::string& text) {
  return text.find("Meta") != std::string::npos || text.find("meta tensor") != std::string::npos;
}

bool is_product(std::string_view name) {
  static constexpr std::string_view kProducts[] = {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm",
                                                   "aten::baddbmm"};
  return std::ranges::find(kProducts, name) != std::end(kProducts);
}

void refuse_autocast() {
  check(!at::autocast::is_autocast_enabled(at::kCPU) && !at::autocast::is_autocast_enabled(at::kCUDA),
        "autocast does not exist on Meta, so a capture there would miss its copies: capture on a real "
        "device, or use bf16 parameters without autocast");
}

}  // namespace

void Witness::on_operator(hooks::OperatorCall& call) {
  ++operators;
  if (!meta_) return call.proceed();
  refuse_autocast();
  try {
    call.proceed();
    if (is_product(call.op.operator_name().name)) hooks::after_product_on_meta();
  } catch (const c10::Error& error) {
    if (!says_meta(error.what_without_backtrace())) throw;
    const std::string region = hooks::region_name(hooks::current_region());
    fail("operation ", call.op.operator_name(), region.empty() ? "" : " in region ", region,
         " cannot be captured on Meta: it needs the values of tensors or has no Meta kernel; a Session that "
         "has "
         "a budget and no plan plans from a step where it runs");
  }
}

}  // namespace snug::capture
