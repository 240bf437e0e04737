#include "snug/train/progress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <vector>

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

// Of a step, in the order in which they are shown.
constexpr std::size_t kNorm = 2, kSpeed = 3, kMilliseconds = 4, kPeak = 5, kLeft = 6;
using Parts = std::array<std::string, 6>;

Parts parts_of(const StepMetrics& metrics, const ProgressOptions& options) {
  const auto tokens_per_second = static_cast<std::uint64_t>(std::llround(metrics.tokens_per_second));
  return {fmt::format("step {}/{}", metrics.step, options.steps),
          fmt::format("loss {:.3f}", metrics.loss),
          fmt::format("norm {:.2f}", metrics.gradient_norm),
          grouped(tokens_per_second) + " tok/s",
          format_seconds(metrics.seconds),
          peak_text(metrics, options)};
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
  const std::string line = terminal_line(metrics, options_, width);
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
  return fmt::format("{}", fmt::join(parts_of(metrics, options), " | "));
}

std::string terminal_line(const StepMetrics& metrics, const ProgressOptions& options, std::size_t width) {
  const Parts parts = parts_of(metrics, options);
  const double left = metrics.seconds * static_cast<double>(options.steps - metrics.step);
  std::vector<std::string> shown(parts.begin(), parts.end());
  shown.push_back(format_seconds(left) + " left");
  std::string before = bar(metrics.step, options.steps, kBarCells) + " ";
  const auto line = [&] {
    std::vector<std::string> there;
    std::ranges::copy_if(shown, std::back_inserter(there),
                         [](const std::string& part) { return !part.empty(); });
    return fmt::format("{}{}", before, fmt::join(there, " | "));
  };
  // What a narrow terminal does without, the least missed first. The peak hardly changes between steps.
  for (const std::size_t part : {kNorm, kMilliseconds, kPeak}) {
    if (line().size() <= width) break;
    shown[part].clear();
  }
  if (line().size() > width) before.clear();
  for (const std::size_t part : {kSpeed, kLeft}) {
    if (line().size() <= width) break;
    shown[part].clear();
  }
  return line().substr(0, width);
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
