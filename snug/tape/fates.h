// Who decides what happens to each value of a region.
//
//   Fates::cheap()              // matrix products, convolutions and attention stay, the rest is recomputed
//   Fates::recompute().in_region("head", Fate::Keep)
//   Fates::keep().of_operation("aten::gelu", Fate::Recompute).smaller_than(64_KiB, Fate::Keep)
//   Fates([](const ValueInfo& value) { return value.bytes > 1_MiB ? Fate::Recompute : Fate::Keep; })
//
// The rule that was added last wins. What comes into a region is asked for too; it is kept unless it is to
// be offloaded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "snug/base/export.h"
#include "snug/trace/fate.h"

namespace snug::tape {

using trace::Fate;

struct ValueInfo {
  static constexpr std::uint32_t kInput = ~std::uint32_t{0};

  std::string_view region;     // the innermost
  std::string_view outermost;  // whose tape it is on
  std::string_view operation;  // with its overload: aten::add.Tensor; empty if it came into the region
  std::uint32_t ordinal = 0;   // of the operation on that tape, counted from 0; kInput if it came in
  std::uint32_t output = 0;    // of the operation, or of all that came in
  std::uint64_t bytes = 0;
  int pass = 0;  // of the step, see Recording::end_step()
};

class SNUG_API Fates {
 public:
  using Function = std::function<Fate(const ValueInfo&)>;

  explicit Fates(Function function) : function_(std::move(function)) {}
  static Fates keep();
  static Fates recompute();
  static Fates cheap();
  static Fates offload();  // what came into the region too

  Fates in_region(std::string name, Fate fate) &&;     // "layers.3"; "layers." stands for all that begin so
  Fates of_operation(std::string name, Fate fate) &&;  // "aten::mm", every overload of it
  Fates smaller_than(std::uint64_t bytes, Fate fate) &&;

  Fate operator()(const ValueInfo& value) const { return function_(value); }

 private:
  Function function_;
};

// Matrix products, convolutions, attention: what costs more than reading and writing its operands.
SNUG_API bool is_expensive(std::string_view operation);

}  // namespace snug::tape
