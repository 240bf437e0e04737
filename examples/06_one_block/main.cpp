// What the planner knows of one block, layers.3 of the tiny preset: docs/one-block.md goes through it.
//
//   06_one_block values HARDWARE       what its operations make, read and cost
//   06_one_block cut HARDWARE PRICE    what to keep of that at a price of memory, in microseconds per MiB
//   06_one_block choices HARDWARE      what the search chooses from
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/error.h"
#include "snug/models/presets.h"
#include "snug/plan/region_choices.h"
#include "snug/session/plan_step.h"
#include "snug/train/planning.h"

using namespace snug;
using plan::Fate, plan::Profile, trace::Sketch, trace::TapeValue, trace::ValueIndex;

double mib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

double us(double seconds) {
  return 1e6 * seconds;
}

class Block {
 public:
  // The step is that of `snug plan --model tiny --batch-size 1 --seq-len 1024 --hardware HARDWARE`.
  explicit Block(const plan::Hardware& hardware) {
    const train::TrainConfig config{.model_name = "tiny",
                                    .model = *models::find_preset("tiny"),
                                    .batch_size = 1,
                                    .micro_batch = 1,
                                    .seq_len = 1024};
    planner_ = make_planner(train::make_step(config), {.hardware = hardware});
    while (model().regions()[region_].name != "layers.3") ++region_;
    const plan::MeasuredCosts costs(hardware);
    for (const std::uint32_t number : call().operators) seconds_.push_back(costs(sketch().operators[number]));
  }

  void print_values() const {
    std::map<std::uint32_t, trace::Moment> until;  // by block, if everything is kept
    for (const auto& kept : profile(choices()[0]).kept) until[kept.block] = kept.until;
    fmt::print("{:8} {:18} {:>8} {:>8} {:>6} {:>5} {:>6} {:>8}  {}\n", "value", "operation", "us", "bytes",
               "saved", "born", "freed", "if kept", "reads");
    for (ValueIndex i = 0; i < tape().values.size(); ++i) {
      const TapeValue& value = tape().values[i];
      if (value.parameter) continue;
      const bool came_in = value.operation == TapeValue::kOutside;
      const Sketch::Block& memory = sketch().blocks[call().blocks[i]];
      const auto kept = until.find(call().blocks[i]);
      fmt::print("{:8} {:18} {:>8} {:>8} {:>6} {:>5} {:>6} {:>8}  {}\n", name(i),
                 came_in ? "" : tape().operations[value.operation].name,
                 came_in || value.output > 0 ? "" : fmt::format("{:.1f}", us(seconds_[value.operation])),
                 value.bytes, std::ranges::count(tape().saves, i), memory.birth, memory.death,
                 kept == until.end() ? "" : fmt::format("{}", kept->second),
                 came_in ? "" : names(tape().operations[value.operation].reads));
    }
  }

  // Every corner between "keep everything" and "keep the least" is among the choices: so is the minimum.
  void print_cut(double us_per_mib) const {
    const auto all = plan::region_choices(model().timeline(), number(), seconds_);
    const auto cost = [&](const std::vector<Fate>& fates) {
      return us(seconds_again(profile(fates))) + us_per_mib * mib(kept_bytes(profile(fates)));
    };
    const Profile best = profile(*std::ranges::min_element(all, {}, cost));
    std::vector<ValueIndex> kept;
    for (ValueIndex i = 0; i < tape().values.size(); ++i)
      if (std::ranges::any_of(best.kept, [&](const auto& one) {
            return one.block == call().blocks[i] && is_freed_by_forward(one.block);
          }))
        kept.push_back(i);
    std::string again;
    for (const std::uint32_t operation : best.operations) again += fmt::format(" {}", operation);
    fmt::print("{:.3f} MiB kept: {}\n{:.1f} us for operations{}\n", mib(kept_bytes(best)), names(kept),
               us(seconds_again(best)), again);
  }

  void print_choices() const {
    const plan::Choices& figures = *model().problem().regions[region_];
    fmt::print("     kept  on host  forward  backward  more us  recomputed | offloaded\n");
    for (std::size_t i = 0; i < figures.size(); ++i)
      fmt::print("{:9.3f} {:8.3f} {:8.3f} {:9.3f} {:8.1f}  {} | {}\n", mib(figures[i].kept_bytes),
                 mib(figures[i].offloaded_bytes), mib(figures[i].forward_bytes),
                 mib(figures[i].backward_bytes),
                 us(figures[i].backward_seconds - figures[0].backward_seconds),
                 names(with(choices()[i], Fate::Recompute)), names(with(choices()[i], Fate::Offload)));
  }

 private:
  const plan::StepModel& model() const { return *planner_->candidates()[0].model; }
  const Sketch& sketch() const { return model().sketch(); }
  std::size_t number() const { return model().regions()[region_].calls[0]; }
  const Sketch::Call& call() const { return sketch().calls[number()]; }
  const trace::RegionTape& tape() const { return call().tape; }
  const std::vector<std::vector<Fate>>& choices() const { return *model().regions()[region_].choices; }
  Profile profile(const std::vector<Fate>& fates) const {
    return model().timeline().profile(number(), fates);
  }

  // What the forward holds anyway costs nothing.
  bool is_freed_by_forward(std::uint32_t block) const {
    return sketch().blocks[block].death <= call().forward_end;
  }
  std::uint64_t kept_bytes(const Profile& profile) const {
    std::uint64_t bytes = 0;
    for (const auto& kept : profile.kept)
      if (is_freed_by_forward(kept.block)) bytes += sketch().blocks[kept.block].bytes;
    return bytes;
  }
  double seconds_again(const Profile& profile) const {
    double sum = 0;
    for (const std::uint32_t operation : profile.operations) sum += seconds_[operation];
    return sum;
  }

  std::vector<ValueIndex> with(const std::vector<Fate>& fates, Fate fate) const {
    std::vector<ValueIndex> values;
    for (ValueIndex i = 0; i < fates.size(); ++i)
      if (fates[i] == fate) values.push_back(i);
    return values;
  }
  // As plans write it, but for the operator.
  std::string name(ValueIndex value) const {
    const TapeValue& named = tape().values[value];
    return named.operation == TapeValue::kOutside ? fmt::format("input {}", named.output)
                                                  : fmt::format("{}.{}", named.operation, named.output);
  }
  std::string names(const std::vector<ValueIndex>& values) const {
    std::string text;
    for (const ValueIndex value : values)
      if (!tape().values[value].parameter) text += (text.empty() ? "" : " ") + name(value);
    return text;
  }

  std::shared_ptr<plan::Planner> planner_;
  std::size_t region_ = 0;
  std::vector<double> seconds_;  // by operation
};

int main(int argc, char** argv) try {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const std::string what = arguments.empty() ? "values" : arguments[0];
  const Block block(plan::load_hardware(arguments.size() > 1 ? arguments[1] : "cpu"));
  if (what == "values")
    block.print_values();
  else if (what == "cut" && arguments.size() == 3)
    block.print_cut(std::stod(arguments[2]));
  else if (what == "choices")
    block.print_choices();
  else
    fail("expected values HARDWARE, cut HARDWARE PRICE or choices HARDWARE");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
