#include "cli/alternatives.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "cli/planning.h"
#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/models/presets.h"
#include "snug/plan/streaming.h"
#include "snug/train/planning.h"
#include "snug/train/progress.h"

namespace snug::cli {

namespace {

using train::TrainConfig;

class Search {
 public:
  Search(const TrainingFlags& flags, std::uint64_t budget_bytes, const plan::Hardware& hardware)
      : flags_(flags), budget_bytes_(budget_bytes), hardware_(hardware) {}

  // Whether it was one.
  bool add(const std::string& text, const TrainConfig& config) { return add(text, config, hardware_); }
  bool add(const std::string& text, const TrainConfig& config, const plan::Hardware& hardware) {
    const auto found = planned(text, config, hardware);
    if (found) found_.push_back(*found);
    return found.has_value();
  }

  // What some plan within the budget takes of the host, if one does with any size of it.
  std::optional<std::uint64_t> host_bytes(const TrainConfig& config) {
    constexpr std::uint64_t kAnySize = std::uint64_t{1} << 60;
    TrainConfig unlimited = config;
    unlimited.host_budget_bytes = kAnySize;
    const auto found = planned("", std::move(unlimited), hardware_);
    return found ? std::optional(found->host_bytes) : std::nullopt;
  }

  std::vector<Alternative> take() { return std::move(found_); }

 private:
  std::optional<Alternative> planned(const std::string& text, TrainConfig config,
                                     const plan::Hardware& hardware) const {
    try {
      if (!flags_.micro_batch && !flags_.accumulation) config.micro_batch = 1;  // divides any batch
      train::validate(config);
      const PlannedStep planned = plan_step(
          leanest(config, hardware),
          {.budget_bytes = budget_bytes_, .host_budget_bytes = config.host_bytes(), .hardware = hardware});
      if (!planned.decision.fits) return std::nullopt;
      const plan::Offer& taken = planned.decision.taken;
      const auto tokens = static_cast<double>(config.batch_size * config.seq_len);
      return Alternative{text, taken.peak_bytes, taken.host_bytes, taken.seconds, tokens / taken.seconds};
    } catch (const Error&) {  // no such step
      return std::nullopt;
    }
  }

  // Only the ends: all of the batch or one sequence at a time, nothing or the most on the host. What no plan
  // of these fits, few others do.
  Step leanest(const TrainConfig& config, const plan::Hardware& hardware) const {
    std::vector<std::int64_t> micro_batches{config.micro_batch};
    if (!flags_.micro_batch && !flags_.accumulation) micro_batches = {config.rank_batch(), 1};
    if (micro_batches.back() == micro_batches.front()) micro_batches.resize(1);
    Step step = train::make_step(largest_step(flags_, config), micro_batches, &hardware);
    const auto on_host = [](const plan::Setting& setting) {
      return setting[plan::kStatesOnHost] + setting[plan::kGradientsOnHost] + setting[plan::kWeightsOnHost];
    };
    std::int64_t most = 0;
    for (const plan::Setting& setting : step.settings) most = std::max(most, on_host(setting));
    std::erase_if(step.settings, [&](const plan::Setting& setting) {
      return on_host(setting) != 0 && on_host(setting) != most;
    });
    step.finer = nullptr;
    return step;
  }

  const TrainingFlags& flags_;
  const std::uint64_t budget_bytes_;
  const plan::Hardware& hardware_;
  std::vector<Alternative> found_;
};

// "qwen3" of "qwen3-8b".
std::string kind_of(const std::string& preset) {
  return preset.substr(0, preset.find('-'));
}

// The largest first.
std::vector<std::pair<std::string, models::ModelConfig>> smaller_presets(const TrainConfig& config) {
  std::vector<std::pair<std::string, models::ModelConfig>> smaller;
  if (!models::find_preset(config.model_name)) return smaller;
  const std::uint64_t all = models::parameter_count(config.model);
  for (const std::string& name : models::presets()) {
    const auto preset = models::find_preset(name);
    if (kind_of(name) == kind_of(config.model_name) && models::parameter_count(*preset) < all &&
        preset->max_positions >= config.seq_len)
      smaller.emplace_back(name, *preset);
  }
  std::ranges::sort(smaller, std::greater(),
                    [](const auto& some) { return models::parameter_count(some.second); });
  return smaller;
}

std::uint64_t whole_gib(std::uint64_t bytes) {
  return (bytes + 1_GiB - 1) / 1_GiB;
}

}  // namespace

std::vector<Alternative> what_fits(const TrainingFlags& flags, const TrainConfig& config,
                                   std::uint64_t budget_bytes, const plan::Hardware& hardware) {
  Search search(flags, budget_bytes, hardware);
  const auto with = [&](const auto& change) {
    TrainConfig changed = config;
    change(changed);
    return changed;
  };
  if (config.micro_batch > 1 && (flags.micro_batch || flags.accumulation))
    search.add("--micro-batch 1", with([](TrainConfig& c) { c.micro_batch = 1; }));
  if (hardware.to_host_rate > 0)
    if (const auto bytes = search.host_bytes(config);
        bytes && *bytes > config.host_bytes().value_or(plan::links_of(hardware).host_bytes))
      search.add(fmt::format("--host-budget {}GiB", whole_gib(*bytes)),
                 with([&](TrainConfig& c) { c.host_budget_bytes = whole_gib(*bytes) * 1_GiB; }));
  if (config.optimizer.clip > 0 && config.precision != train::Precision::Fp16 && !config.update)
    search.add("--clip 0", with([](TrainConfig& c) { c.optimizer.clip = 0; }));
  if (config.optimizer.kind == train::OptimizerKind::AdamW)
    search.add("--optimizer sgd", with([](TrainConfig& c) { c.optimizer.kind = train::OptimizerKind::Sgd; }));
  if (config.precision == train::Precision::Fp32)
    search.add("--precision bf16", with([](TrainConfig& c) { c.precision = train::Precision::Bf16; }));
  constexpr std::int64_t kShortest = 128, kPresets = 2;
  if (!flags.max_tokens)
    for (std::int64_t tokens = config.seq_len / 2; tokens >= kShortest; tokens /= 4)
      if (search.add(fmt::format("--seq-len {}", tokens), with([&](TrainConfig& c) { c.seq_len = tokens; })))
        break;
  std::int64_t presets = 0;
  for (const auto& [name, model] : smaller_presets(config)) {
    if (++presets > kPresets) break;
    if (search.add("--model " + name, with([&](TrainConfig& c) {
                     c.model_name = name;
                     c.model = model;
                   })))
      break;
  }
  constexpr int kMostRanks = 8;
  if (hardware.is_gpu)
    for (int ranks = 2 * config.ranks; ranks <= kMostRanks; ranks *= 2) {
      const TrainConfig more = with([&](TrainConfig& c) {
        c.ranks = ranks;
        c.zero_stage = 3;
      });
      if (search.add(fmt::format("--ranks {}", ranks), more,
                     config.ranks == 1 ? of_one_rank(hardware, more) : hardware))
        break;
    }
  return search.take();
}

std::string text(const std::vector<Alternative>& alternatives) {
  std::string text;
  std::size_t width = 0;
  for (const Alternative& one : alternatives) width = std::max(width, one.flags.size());
  for (const Alternative& one : alternatives)
    text += fmt::format(
        "  {:<{}}  {:>10}{}, {} a step, {:.0f} tokens/s\n", one.flags, width, format_bytes(one.peak_bytes),
        one.host_bytes > 0 ? fmt::format(" and {} of the host", format_bytes(one.host_bytes)) : "",
        train::format_seconds(one.seconds), one.tokens_per_second);
  return text;
}

Json to_json(const std::vector<Alternative>& alternatives) {
  Json list = Json::array();
  for (const Alternative& one : alternatives)
    list.push_back({{"flags", one.flags},
                    {"peak_bytes", one.peak_bytes},
                    {"host_bytes", one.host_bytes},
                    {"step_seconds", one.seconds}});
  return list;
}

}  // namespace snug::cli
