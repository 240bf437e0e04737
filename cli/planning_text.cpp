// What a plan is said to be, in words and in JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/planning.h"
#include "snug/base/bytes.h"
#include "snug/plan/streaming.h"
#include "snug/report/text.h"
#include "snug/trace/category_json.h"
#include "snug/train/planning.h"
#include "snug/train/progress.h"

namespace snug::cli {

namespace {

using plan::Decision;
using plan::Offer;
using plan::Planner;

constexpr std::size_t kSweepRows = 12, kLeverWidth = 14;

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

std::string size_of(std::int64_t difference) {
  return format_bytes(static_cast<std::uint64_t>(std::abs(difference)));
}

std::string lever_line(const plan::Lever& lever, const Planner& planner, const Offer& taken,
                       std::size_t width) {
  const std::string what =
      lever.name == "recompute" ? "values recomputed in the backward"
      : lever.name == "offload"
          ? fmt::format("{} wait on the host",
                        format_bytes(taken.host_bytes - planner.candidate(taken).model->streamed().bytes))
          : plan::text(planner.candidate(taken).setting, lever.name);
  return fmt::format("  {:<{}} {:>12}  {:>+9.1f} %   {}\n", lever.name, width,
                     (lever.saved_bytes < 0 ? "+" : "-") + size_of(lever.saved_bytes),
                     percent(lever.cost_seconds, planner.plain().step_seconds), what);
}

std::string next_steps(const Decision& decision) {
  std::string text;
  if (decision.faster)
    text += fmt::format("{} more would save {:.1f} % of the time\n",
                        format_bytes(decision.faster->peak_bytes - decision.taken.peak_bytes),
                        percent(decision.taken.seconds - decision.faster->seconds, decision.taken.seconds));
  if (decision.leaner)
    text += fmt::format("{} less would cost {:.1f} % of the time\n",
                        format_bytes(decision.taken.peak_bytes - decision.leaner->peak_bytes),
                        percent(decision.leaner->seconds - decision.taken.seconds, decision.taken.seconds));
  return text;
}

// Every so many offers, the first and the last among them.
std::vector<const Offer*> rows(const Planner& planner) {
  const auto& offers = planner.offers();
  const std::uint64_t low = offers.front().peak_bytes, high = offers.back().peak_bytes;
  std::vector<const Offer*> rows;
  for (std::size_t i = 0; i < kSweepRows; ++i) {
    const std::uint64_t budget = low + (high - low) * i / (kSweepRows - 1);
    auto after = std::ranges::upper_bound(offers, budget, {}, &Offer::peak_bytes);
    const Offer* offer = &*--after;
    if (rows.empty() || rows.back() != offer) rows.push_back(offer);
  }
  return rows;
}

train::TrainConfig plain_config(const train::TrainConfig& config, const Planner& planner) {
  train::TrainConfig plain = train::at_setting(config, planner.candidates().front().setting);
  plain.plan.reset();
  return plain;
}

std::string of_each_rank(const train::TrainConfig& config) {
  if (!config.zero_stage) return "";
  return fmt::format(" of each of {} ranks, ZeRO stage {}", config.ranks, *config.zero_stage);
}

std::string sent_by_ranks(const train::TrainConfig& config, const Planner& planner, const Offer& taken) {
  if (!config.zero_stage || config.ranks == 1) return "";
  const auto together = planner.candidate(taken).model->together(taken.chosen);
  const int machines = config.all_ranks().machines();
  return fmt::format("Each rank sends {} a step{}, {} of collectives, which cost the step {}\n",
                     format_bytes(together.sent_bytes),
                     machines > 1 ? fmt::format(" within and between {} machines", machines) : "",
                     train::format_seconds(together.seconds), train::format_seconds(together.cost_seconds));
}

// At the peak of the leanest plan, so what waits on the host is not among it.
struct StatesThere {
  std::uint64_t parameters, gradients, optimizer;

  std::uint64_t total() const { return parameters + gradients + optimizer; }
};

StatesThere states_of_leanest(const TrainingFlags& flags, train::TrainConfig config, const plan::Plan& plan) {
  train::take(plan, config);
  const trace::Snapshot peak = train::predict(largest_step(flags, config)).peak;
  return {peak[trace::Category::Parameter], peak[trace::Category::Gradient],
          peak[trace::Category::Optimizer]};
}

}  // namespace

std::string ladder(const train::TrainConfig& config, const Planner& planner, const Decision& decision,
                   const ChosenHardware& hardware) {
  const Offer& taken = decision.taken;
  const auto plain = train::predict(plain_config(config, planner));
  std::string text =
      fmt::format("Plain step: {}, {} predicted on {}\n{}", format_bytes(decision.plain.peak_bytes),
                  train::format_seconds(decision.plain.step_seconds), hardware.text(),
                  report::table(plain.peak, {.regions = 0}));
  if (decision.plain.peak_bytes > plain.peak.total)
    text += fmt::format("beside it {} for context, libraries and the allocator's rounding\n",
                        format_bytes(decision.plain.peak_bytes - plain.peak.total));
  text += fmt::format("\nBudget {}{}\n", format_bytes(decision.budget_bytes), of_each_rank(config));
  std::size_t width = kLeverWidth;
  for (const plan::Lever& lever : decision.levers) width = std::max(width, lever.name.size());
  for (const plan::Lever& lever : decision.levers) text += lever_line(lever, planner, taken, width);
  if (decision.levers.empty()) text += "  nothing needs to be done: the plain step fits\n";
  text += fmt::format(
      "Planned: {} ({:.1f} % of the plain peak), {} ({:.2f}x), {:.0f} tokens/s, {}\n",
      format_bytes(taken.peak_bytes),
      percent(static_cast<double>(taken.peak_bytes), static_cast<double>(decision.plain.peak_bytes)),
      train::format_seconds(taken.seconds), taken.seconds / decision.plain.step_seconds,
      static_cast<double>(config.batch_size * config.seq_len) / taken.seconds,
      plan::text(planner.candidate(taken).setting));
  text += sent_by_ranks(config, planner, taken);
  text += fmt::format("At most {:.2f} % from the fastest possible within this budget\n",
                      std::max(0.0, percent(taken.seconds - decision.bound_seconds, decision.bound_seconds)));
  text += fmt::format("Memory is highest in {}\n", decision.binds);
  return text + next_steps(decision);
}

std::string in_short(const plan::Plan& plan) {
  std::string text =
      fmt::format("\nPlan for {}: {} of {} plain, {:.2f}x its time, ", format_bytes(plan.budget_bytes),
                  format_bytes(plan.predicted.peak_bytes), format_bytes(plan.plain.peak_bytes),
                  plan.predicted.step_seconds / plan.plain.step_seconds);
  if (plan.levers.empty()) return text + "nothing to be done\n";
  for (std::size_t i = 0; i < plan.levers.size(); ++i)
    text +=
        fmt::format("{}{} {} {} for {:.1f} %", i == 0 ? "" : ", ", plan.levers[i].name,
                    plan.levers[i].saved_bytes < 0 ? "takes" : "saves", size_of(plan.levers[i].saved_bytes),
                    percent(plan.levers[i].cost_seconds, plan.plain.step_seconds));
  return text + "\n";
}

std::string does_not_fit(const TrainingFlags& flags, const train::TrainConfig& config,
                         const PlannedStep& planned, const std::vector<Alternative>& alternatives) {
  const Decision& decision = planned.decision;
  const Planner& planner = *planned.planner;
  const StatesThere states = states_of_leanest(flags, config, planned.plan);
  std::string text = fmt::format(
      "does not fit {}{}: the leanest plan needs {}, {} more ({}, in {})\n\n"
      "  parameters {:>12}\n  gradients  {:>12}\n  optimizer  {:>12}\n  the rest   {:>12}\n",
      format_bytes(decision.budget_bytes), of_each_rank(config), format_bytes(decision.taken.peak_bytes),
      format_bytes(decision.missing_bytes), plan::text(planner.candidate(decision.taken).setting),
      decision.binds, format_bytes(states.parameters), format_bytes(states.gradients),
      format_bytes(states.optimizer),
      format_bytes(decision.taken.peak_bytes - std::min(decision.taken.peak_bytes, states.total())));
  if (decision.taken.host_bytes > 0)
    text += fmt::format("  on the host{:>12}, beside these\n", format_bytes(decision.taken.host_bytes));
  if (!alternatives.empty())
    return text + "\nwhat fits (another split of the batch may be faster still):\n" +
           cli::text(alternatives) + "beside what was given, one of these at a time";
  text += "\nno other optimizer, precision, length, preset or number of GPUs that was tried fits either: ";
  if (states.total() > decision.budget_bytes)
    return text + fmt::format("parameters, gradients and optimizer states alone take {}",
                              format_bytes(states.total()));
  return text + "more memory is needed";
}

std::string verified_text(const Verified& verified) {
  const bool is_split = verified.micro_batches > 1;
  const std::string plain =
      is_split ? fmt::format("a plain step in the same {} micro-batches", verified.micro_batches)
               : "the plain step";
  const std::string gradients =
      verified.tensors == 0
          ? fmt::format("gradients not compared: {} does not fit", plain)
          : fmt::format("{} of {} gradients bit-equal to those of {}",
                        verified.tensors - verified.differing_tensors, verified.tensors, plain);
  std::string text = fmt::format("{} of {} values unchanged, {}", verified.values - verified.differing_values,
                                 verified.values, gradients);
  if (verified.largest_difference > 0)
    text += fmt::format(", largest difference {:.3g}", verified.largest_difference);
  if (verified.unsplit_difference)
    text += fmt::format("; within {:.2g} of the unsplit step's, whose sums have another order",
                        *verified.unsplit_difference);
  else if (is_split)
    text += "; not compared with the unsplit step, which does not fit";
  return text;
}

std::string sweep_table(const Planner& planner) {
  std::string text =
      fmt::format("{:>12} {:>8} {:>10} {:>8}   {}\n", "budget", "of plain", "step", "slower", "setting");
  for (const Offer* offer : rows(planner))
    text += fmt::format(
        "{:>12} {:>7.1f}% {:>10} {:>7.2f}x   {}\n", format_bytes(offer->peak_bytes),
        percent(static_cast<double>(offer->peak_bytes), static_cast<double>(planner.plain().peak_bytes)),
        train::format_seconds(offer->seconds), offer->seconds / planner.plain().step_seconds,
        plan::text(planner.candidate(*offer).setting));
  return text;
}

Json plan_document(const train::TrainConfig& config, const PlannedStep& planned, const trace::Snapshot& step,
                   const ChosenHardware& hardware) {
  const Planner& planner = *planned.planner;
  const Decision& decision = planned.decision;
  Json document = {
      {"fits", decision.fits},
      {"budget_bytes", decision.budget_bytes},
      {"plain", {{"peak_bytes", decision.plain.peak_bytes}, {"step_seconds", decision.plain.step_seconds}}},
      {"predicted",
       {{"peak_bytes", decision.taken.peak_bytes},
        {"host_bytes", decision.taken.host_bytes},
        {"outside_bytes", planner.overhead().outside_with(decision.taken.host_bytes)},
        {"step_seconds", decision.taken.seconds},
        {"bytes", trace::to_json(step.bytes)}}},
      {"bound_seconds", std::isfinite(decision.bound_seconds) ? Json(decision.bound_seconds) : Json(nullptr)},
      {"levers", plan::to_json(decision.levers)},
      {"missing_bytes", decision.missing_bytes},
      {"hardware",
       {{"name", hardware.hardware.name},
        {"is_estimate", hardware.hardware.is_estimate},
        {"file", hardware.file.empty() ? Json(nullptr) : Json(hardware.file)}}}};
  document.update(plan::to_json(planner.candidate(decision.taken).setting));
  if (config.zero_stage) {
    const auto together = planner.candidate(decision.taken).model->together(decision.taken.chosen);
    document["ranks"] = {{"count", config.ranks},
                         {"per_machine", config.all_ranks().per_machine},
                         {"zero_stage", *config.zero_stage},
                         {"sent_bytes", together.sent_bytes},
                         {"collective_seconds", together.seconds},
                         {"cost_seconds", together.cost_seconds}};
  }
  return document;
}

Json sweep_document(const Planner& planner) {
  Json points = Json::array();
  for (const Offer* offer : rows(planner)) {
    points.push_back({{"peak_bytes", offer->peak_bytes}, {"step_seconds", offer->seconds}});
    points.back().update(plan::to_json(planner.candidate(*offer).setting));
  }
  return points;
}

}  // namespace snug::cli
