#include "snug/train/probe_operators.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "snug/base/error.h"
#include "snug/train/planning.h"

namespace snug::train {

namespace {

struct Size {
  std::int64_t sequences, tokens;
};
constexpr Size kSizes[] = {{1, 32768}, {8, 4096}, {1, 4096}};
constexpr std::int64_t kLayers = 2;
// A rested GPU is faster than one at work: all sizes are timed after as much of it, a second on an H200.
constexpr std::int64_t kWarmUp = 6;
constexpr std::int64_t kTokens = 65536;  // of a step, in two or more parts: gradients are made, then added to

// As many tokens, in sequences that the model has positions for.
Size fitted(Size size, std::int64_t most_positions) {
  while (size.tokens > most_positions) size = {2 * size.sequences, size.tokens / 2};
  return size;
}

TrainConfig few_layers(const models::ModelConfig& model, c10::Device device, Size size) {
  TrainConfig config;
  config.model_name = "probe";
  config.model = model;
  config.model.num_layers = std::min(model.num_layers, kLayers);
  config.device = device;
  config.precision = Precision::Bf16;
  config.micro_batch = size.sequences;
  config.batch_size = kTokens / size.tokens;
  config.seq_len = size.tokens;
  return config;
}

}  // namespace

std::vector<plan::MeasuredOperator> probe_operators(const models::ModelConfig& model, c10::Device device,
                                                    const std::function<void(const std::string&)>& say) {
  struct Sum {
    plan::MeasuredOperator measured;
    int count = 0;
  };
  std::map<std::tuple<std::string, double, double>, Sum> sums;
  for (const Size& wanted : kSizes) {
    const Size size = fitted(wanted, model.max_positions);
    const std::string what = concat("operators of a step, ", size.sequences, " x ", size.tokens, " tokens");
    say(what);
    try {
      for (auto& [work, seconds] : time_operators(few_layers(model, device, size), kWarmUp)) {
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

}  // namespace snug::train
