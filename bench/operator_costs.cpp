// What an operator takes beside what the cost model says: all operators of a step, summed by name.
//
//   operator_costs [model] [batch] [tokens] [micro-batch]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "snug/models/config.h"
#include "snug/machine/hardware_of.h"
#include "snug/train/planning.h"
#include "snug/train/trainer.h"

int main(int argc, char** argv) {
  using namespace snug;
  const auto number = [&](int place, std::int64_t usual) {
    return argc > place ? std::atoll(argv[place]) : usual;
  };
  train::TrainConfig config;
  config.model_name = argc > 1 ? argv[1] : "llama-1.3b";
  config.model = models::load_config(config.model_name);
  config.device = at::hasCUDA() ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  config.precision = config.device.is_cuda() ? train::Precision::Bf16 : train::Precision::Fp32;
  config.batch_size = number(2, 8);
  config.seq_len = number(3, 4096);
  config.micro_batch = number(4, config.batch_size);
  const machine::HardwareHere here = machine::hardware_here(config.device);

  const plan::MeasuredCosts costs(here.hardware);
  struct Sum {
    int count = 0;
    double measured = 0, modelled = 0;
  };
  std::map<std::string, Sum> sums;
  Sum all;
  for (const auto& [work, seconds] : train::time_operators(config)) {
    const double modelled = work.name.empty() ? 0 : costs(work);
    for (Sum* sum : {&sums[work.name], &all}) {
      ++sum->count;
      sum->measured += seconds;
      sum->modelled += modelled;
    }
  }
  std::vector<std::pair<std::string, Sum>> rows(sums.begin(), sums.end());
  std::ranges::sort(rows, std::greater(), [](const auto& row) { return row.second.measured; });
  rows.emplace_back("all", all);
  fmt::print("{} ({})\n{:40} {:>6} {:>12} {:>12}\n", here.hardware.name, here.note, "operator", "times",
             "measured", "modelled");
  for (const auto& [name, sum] : rows)
    fmt::print("{:40} {:>6} {:>9.3f} ms {:>9.3f} ms\n", name, sum.count, 1e3 * sum.measured,
               1e3 * sum.modelled);
  config.steps = 8;
  fmt::print("a step without timing operators: {:.3f} ms\n",
             1e3 * train::train(config).measured.step_seconds);
}
