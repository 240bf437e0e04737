#include "snug/machine/operator_probe.h"

#include <c10/util/Exception.h>

#include <map>
#include <tuple>

#include "snug/base/error.h"
#include "snug/capture/operator_timer.h"

namespace snug::machine {

namespace {

struct Size {
  std::int64_t sequences, tokens;
};
constexpr Size kSizes[] = {{1, 32768}, {8, 4096}, {1, 4096}};
// A rested GPU is faster than one at work: all sizes are timed after as much of it, a second on an H200.
constexpr std::int64_t kWarmUp = 6;
constexpr std::int64_t kTokens = 65536;  // of a step, in two or more parts: gradients are made, then added to

// As many tokens, in sequences that the model has positions for.
Size fitted(Size size, std::int64_t most_positions) {
  while (size.tokens > most_positions) size = {2 * size.sequences, size.tokens / 2};
  return size;
}

}  // namespace

std::vector<plan::MeasuredOperator> time_operators(
    c10::Device device, const std::function<void(const std::function<void()>&)>& run) {
  capture::OperatorTimer timer(device);
  std::vector<plan::MeasuredOperator> measured;
  run([&] {
    measured.clear();
    for (auto& [work, seconds] : timer.take()) measured.push_back({std::move(work), seconds});
  });
  return measured;
}

std::vector<plan::MeasuredOperator> probe_operators(c10::Device device, std::int64_t most_positions,
                                                    const RunSteps& run,
                                                    const std::function<void(const std::string&)>& say) {
  struct Sum {
    plan::MeasuredOperator measured;
    int count = 0;
  };
  std::map<std::tuple<std::string, double, double>, Sum> sums;
  for (const Size& wanted : kSizes) {
    const Size size = fitted(wanted, most_positions);
    const std::string what = concat("operators of a step, ", size.sequences, " x ", size.tokens, " tokens");
    say(what);
    try {
      for (auto& [work, seconds] : time_operators(device, [&](const auto& after_step) {
             run({size.sequences, size.tokens, kTokens, kWarmUp + 1, after_step});
           })) {
        Sum& sum = sums[{work.name, work.flops, work.bytes}];
        sum.measured.work = std::move(work);
        sum.measured.seconds += seconds;
        ++sum.count;
      }
    } catch (const c10::OutOfMemoryError&) {
      say(what + " left out: no memory for it");
    } catch (const RunError& error) {
      say(concat(what, " left out: ", error.what()));
    }
  }
  std::vector<plan::MeasuredOperator> measured;
  for (auto& [key, sum] : sums) {
    sum.measured.seconds /= sum.count;
    const bool does_something = sum.measured.work.flops > 0 || sum.measured.work.bytes > 0;
    if (does_something && sum.measured.seconds > 0) measured.push_back(std::move(sum.measured));
  }
  return measured;
}

}  // namespace snug::machine
