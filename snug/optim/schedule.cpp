#include "snug/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "snug/base/error.h"

namespace snug::optim {
namespace {

void validate(const Schedule& schedule) {
  check(std::isfinite(schedule.lr) && schedule.lr >= 0, "the learning rate must be at least 0, got ",
        schedule.lr);
  check(schedule.warmup >= 0, "warm-up must be at least 0 steps, got ", schedule.warmup);
  check(schedule.min_ratio >= 0 && schedule.min_ratio <= 1,
        "the final learning rate must be 0 to 1 of the first, got ", schedule.min_ratio);
  check(schedule.kind == Schedule::Kind::Constant || schedule.total > schedule.warmup, "a ",
        to_string(schedule.kind), " schedule needs more steps than its warm-up of ", schedule.warmup,
        ", got ", schedule.total);
}

// 1 at the end of warm-up, 0 at the last step.
double decay(const Schedule& schedule, std::int64_t step) {
  const double progress = std::min(1.0, static_cast<double>(step - schedule.warmup) /
                                            static_cast<double>(schedule.total - schedule.warmup));
  if (schedule.kind == Schedule::Kind::Linear) return 1 - progress;
  return 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace

double learning_rate(const Schedule& schedule, std::int64_t step) {
  validate(schedule);
  check(step >= 0, "steps count from 0, got ", step);
  if (step < schedule.warmup) {
    return schedule.lr * static_cast<double>(step) / static_cast<double>(schedule.warmup);
  }
  if (schedule.kind == Schedule::Kind::Constant) return schedule.lr;
  return schedule.lr * (schedule.min_ratio + (1 - schedule.min_ratio) * decay(schedule, step));
}

Schedule::Kind parse_schedule(std::string_view name) {
  for (auto kind : {Schedule::Kind::Constant, Schedule::Kind::Cosine, Schedule::Kind::Linear}) {
    if (to_string(kind) == name) return kind;
  }
  fail("unknown schedule '", name, "': expected constant, cosine or linear");
}

std::string_view to_string(Schedule::Kind kind) {
  switch (kind) {
    case Schedule::Kind::Constant:
      return "constant";
    case Schedule::Kind::Cosine:
      return "cosine";
    case Schedule::Kind::Linear:
      return "linear";
  }
  throw InternalError("bug in snug: schedule kind out of range");
}

}  // namespace snug::optim
