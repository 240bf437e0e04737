// The learning rate as a function of the step.
//
//   Schedule schedule{.kind = parse_schedule("cosine"), .lr = 3e-4, .warmup = 100, .total = 2000};
//   optimizer.step(learning_rate(schedule, step));
#pragma once

#include <cstdint>
#include <string_view>

#include "snug/base/export.h"

namespace snug::optim {

struct Schedule {
  enum class Kind { Constant, Cosine, Linear };
  Kind kind = Kind::Constant;
  double lr = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 0;  // steps including warm-up; Constant does not use it
  double min_ratio = 0;    // where the decay ends, as a part of lr
};

// Steps count from 0. Warm-up is lr * step / warmup, so that lr is reached at step == warmup; then the rate
// falls to lr * min_ratio at step == total and stays there. Throws Error for a schedule that makes no sense.
SNUG_API double learning_rate(const Schedule& schedule, std::int64_t step);

SNUG_API Schedule::Kind parse_schedule(std::string_view name);  // constant, cosine or linear; else Error
SNUG_API std::string_view to_string(Schedule::Kind kind);

}  // namespace snug::optim
