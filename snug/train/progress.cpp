#include "snug/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "snug/base/bytes.h"

namespace snug::train {
namespace {

constexpr std::size_t kBarCells = 20;
constexpr std::size_t kUnknownWidth = 80;
constexpr auto kBetweenBars = std::chrono::milliseconds(50);
constexpr auto kBetweenLines = std::chrono::seconds(2);

std::size_t width_of(std::FILE* terminal) {
  winsize size{};
  return ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUnknownWidth;
}

std::string peak_text(const StepMetrics& metrics, const ProgressOptions& options) {
  const std::string peak = "peak " + format_bytes(metrics.peak_bytes);
  if (!options.budget_bytes) return peak;
  const double part = static_cast<double>(metrics.peak_bytes) / static_cast<double>(*options.budget_bytes);
  return fmt::format("{} ({:.0f} % of budget)", peak, 100 * part);
}

}  // namespace

Progress::Progress(const ProgressOptions& options)
    : options_(options), terminal_(isatty(fileno(options.out)) == 1) {}

Progress::~Progress() {
  end();
}

void Progress::show(const StepMetrics& metrics) {
  const auto now = std::chrono::steady_clock::now();
  const bool must_show = metrics.step == options_.steps || metrics.skipped;
  if (last_shown_ && !must_show && now - *last_shown_ < (terminal_ ? kBetweenBars : kBetweenLines)) return;
  last_shown_ = now;
  if (terminal_ && !metrics.skipped) {
    draw_bar(metrics);
  } else {
    end();
    std::fputs((step_line(metrics, options_) + "\n").c_str(), options_.out);
  }
  std::fflush(options_.out);
}

void Progress::draw_bar(const StepMetrics& metrics) {
  const std::size_t width = width_of(options_.out) - 1;  // a line that wraps could not be drawn over
  const std::string cells = bar(metrics.step, options_.steps, kBarCells);
  const double left = metrics.seconds * static_cast<double>(options_.steps - metrics.step);
  std::string line =
      fmt::format("{} {} | {} left", cells, step_line(metrics, options_), format_seconds(left));
  if (line.size() > width) {
    line = fmt::format("{} step {}/{} | loss {:.3f} | {}", cells, metrics.step, options_.steps, metrics.loss,
                       peak_text(metrics, options_));
  }
  line.resize(std::min(line.size(), width));
  std::fputs(("\r" + line + "\x1b[K").c_str(), options_.out);
  on_bar_ = true;
}

void Progress::end() {
  if (!on_bar_) return;
  std::fputc('\n', options_.out);
  std::fflush(options_.out);
  on_bar_ = false;
}

std::string step_line(const StepMetrics& metrics, const ProgressOptions& options) {
  if (metrics.skipped)
    return fmt::format("step {}/{} | skipped: the gradients overflowed at loss scale {}, which is halved",
                       metrics.step, options.steps, metrics.loss_scale.value_or(1));
  const auto tokens_per_second = static_cast<std::uint64_t>(std::llround(metrics.tokens_per_second));
  return fmt::format("step {}/{} | loss {:.3f} | norm {:.2f} | {} tok/s | {} | {}", metrics.step,
                     options.steps, metrics.loss, metrics.gradient_norm, grouped(tokens_per_second),
                     format_seconds(metrics.seconds), peak_text(metrics, options));
}

std::string bar(std::int64_t done, std::int64_t total, std::size_t cells) {
  const double part =
      total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  const auto full = static_cast<std::size_t>(part * static_cast<double>(cells));
  return fmt::format("[{}{}]", std::string(full, '#'), std::string(cells - full, '-'));
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string format_seconds(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", 1000 * seconds);
  if (seconds < 99.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

}  // namespace snug::train
