// How a run shows itself while it goes: a bar on a terminal, a line now and then anywhere else.
//
//   Progress progress({.steps = 100});
//   progress.show(metrics);  // after each step
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "snug/base/export.h"
#include "snug/train/metrics.h"

namespace snug::train {

struct ProgressOptions {
  std::int64_t steps = 0;  // of the whole run
  std::optional<std::uint64_t> budget_bytes;
  std::FILE* out = stderr;
};

class SNUG_API Progress {
 public:
  explicit Progress(const ProgressOptions& options);
  ~Progress();
  Progress(const Progress&) = delete;  // it is one line of a terminal
  Progress& operator=(const Progress&) = delete;

  void show(const StepMetrics& metrics);
  void end();  // leaves the line of the bar; done by the destructor too

 private:
  void draw_bar(const StepMetrics& metrics);

  ProgressOptions options_;
  bool terminal_;
  bool on_bar_ = false;
  std::optional<std::chrono::steady_clock::time_point> last_shown_;
};

// "step 12/100 | loss 3.214 | norm 1.02 | 1,234 tok/s | 210 ms | peak 301.2 MiB (98 % of budget)"
SNUG_API std::string step_line(const StepMetrics& metrics, const ProgressOptions& options);

// The same behind a bar and before the time that is left, in at most so many columns: a narrow terminal
// does without the norm, the step's time, the peak, the bar, in this order; loss, speed and time left stay.
SNUG_API std::string terminal_line(const StepMetrics& metrics, const ProgressOptions& options,
                                   std::size_t width);

// "[####------]": as many cells as asked for, the brackets not counted.
SNUG_API std::string bar(std::int64_t done, std::int64_t total, std::size_t cells);

SNUG_API std::string grouped(std::uint64_t number);   // 1,234,567
SNUG_API std::string format_seconds(double seconds);  // "210 ms", "12.3 s", "3 min 20 s", "2 h 5 min"

}  // namespace snug::train
