#include "snug/session/plan_step.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <ranges>
#include <span>
#include <string>
#include <utility>

#include "snug/base/error.h"
#include "snug/capture/sketch.h"
#include "snug/hooks/meta_target.h"
#include "snug/machine/hardware_of.h"
#include "snug/memory/tracker.h"
#include "snug/plan/fitted.h"
#include "snug/session/state_park.h"

namespace snug {

namespace {

plan::Hardware hardware_for(const Step& step, const PlanOptions& options) {
  return options.hardware ? *options.hardware : machine::hardware_here(step.device).hardware;
}

// Key by key, so that the first difference can be named.
void check_same(const Json& planned, const Json& here, const std::string& within) {
  for (const auto& [key, value] : planned.items())
    check(here.contains(key), "the plan names \"", within, key, "\", which is no property of a step");
  for (const auto& [key, value] : here.items()) {
    if (within.empty() && key == "model") continue;  // a name; what counts is the architecture
    check(planned.contains(key), "the plan does not say which step it is for: \"", within, key,
          "\" is missing");
    if (value.is_object() && planned[key].is_object()) {
      check_same(planned[key], value, within + key + ".");
      continue;
    }
    check(planned[key] == value, "the plan is for another step: ", within, key, " ", planned[key].dump(),
          ", here ", value.dump());
  }
}

// A setting that streams needs a link, and that much of the host.
bool can_stream(std::uint64_t bytes, const plan::Links& links) {
  return bytes == 0 || (links.are_there() && bytes <= links.host_bytes);
}

void check_runs_on_meta(const Step& step) {
  check(static_cast<bool>(step.on_meta), "a step is planned by running it on Meta: Step::on_meta is empty");
}

// With links: a step that streams what these cannot carry does not run.
trace::Sketch sketch_step(const Step& step, const plan::Setting& setting, const plan::Links* links,
                          plan::Streamed& streamed) {
  check_runs_on_meta(step);
  const hooks::MetaTargetScope target(step.device.type());
  return capture::sketch_step(
      [&](memory::Tracker& tracker) -> capture::StepToSketch {
        const auto park = std::make_shared<session::StatePark>(
            session::StateParkOptions{.tracker = &tracker, .streamed = &streamed});
        auto run = step.on_meta(Account(tracker, nullptr, &streamed, park.get()), setting);
        if (links && !can_stream(streamed.bytes, *links)) return {[] {}};
        return {.run = [run = std::move(run), park] { run(); },
                .leaves_some = streamed.leaves_gradients(),
                .host_bytes = [&streamed] { return streamed.bytes; }};
      },
      /*workspaces=*/step.device.is_cpu(), /*rest=*/true);
}

}  // namespace

trace::Sketch sketch_step(const Step& step, const plan::Setting& setting) {
  plan::Streamed streamed;
  return sketch_step(step, setting, nullptr, streamed);
}

namespace {

// What candidates of one step are made with.
struct Prices {
  plan::Hardware hardware;
  plan::MeasuredCosts costs;
  plan::Links links;

  Prices(const Step& step, const PlanOptions& options)
      : hardware(hardware_for(step, options)),
        costs(options.costs ? *options.costs : plan::MeasuredCosts(hardware)),
        links(plan::links_of(hardware)) {
    links.host_bytes = options.host_budget_bytes.value_or(links.host_bytes);
  }
};

// Settings with as much on the host as that holds.
class OnHost {
 public:
  OnHost(const Step& step, const plan::Links& links) : step_(step), links_(links) {}

  // Levers are given up until the rest fits, and come back as far as there is room: what the host steps
  // first, which is for speed, or last.
  std::vector<plan::Setting> fitted(const plan::Setting& wanted) {
    std::vector<plan::LeverKind> order(std::begin(plan::kHostLevers), std::end(plan::kHostLevers));
    std::vector<plan::Setting> settings{fitted(wanted, order)};
    if (settings[0] == wanted) return settings;
    std::ranges::rotate(order, order.begin() + 1);
    settings.push_back(fitted(wanted, order));
    return settings;
  }

 private:
  plan::Setting fitted(plan::Setting setting, std::span<const plan::LeverKind> order) {
    const plan::Setting wanted = setting;
    for (const plan::LeverKind& kind : order)
      if (!fits(setting)) setting.levers[kind.name] = kind.plain;
    for (const plan::LeverKind& kind : std::views::reverse(order)) raise(setting, kind, wanted[kind]);
    return setting;
  }

  void raise(plan::Setting& setting, const plan::LeverKind& kind, std::int64_t wanted) {
    if (setting[kind] == wanted) return;
    std::int64_t& value = setting.levers[kind.name];
    std::int64_t fitting = value, too_much = wanted + 1;
    while (too_much - fitting > 1) {
      value = (fitting + too_much) / 2;
      (fits(setting) ? fitting : too_much) = value;
    }
    value = fitting;
  }

  // How the batch is split makes no difference to it.
  bool fits(const plan::Setting& setting) {
    std::vector<std::int64_t> values;
    for (const plan::LeverKind& kind : plan::kHostLevers) values.push_back(setting[kind]);
    if (std::ranges::all_of(values, [](std::int64_t value) { return value == 0; })) return true;
    const auto [found, is_new] = known_.try_emplace(values);
    if (is_new) found->second = can_stream(streamed_bytes(setting), links_);
    return found->second;
  }

  std::uint64_t streamed_bytes(const plan::Setting& setting) const {
    const hooks::MetaTargetScope target(step_.device.type());
    memory::Tracker tracker({.device = c10::kMeta});
    plan::Streamed streamed;
    session::StatePark park({.tracker = &tracker, .streamed = &streamed});
    step_.on_meta(Account(tracker, nullptr, &streamed, &park), setting);
    return streamed.bytes;
  }

  const Step& step_;
  const plan::Links& links_;
  std::map<std::vector<std::int64_t>, bool> known_;  // by the levers' values
};

// Of settings that the host is too small for, what it holds.
std::vector<plan::Setting> fitted_on_host(const Step& step, const std::vector<plan::Setting>& settings,
                                          const plan::Links& links) {
  OnHost on_host(step, links);
  std::vector<plan::Setting> fitted;
  for (const plan::Setting& setting : settings)
    for (plan::Setting& some : on_host.fitted(setting))
      if (std::ranges::find(fitted, some) == fitted.end()) fitted.push_back(std::move(some));
  return fitted;
}

std::vector<plan::Candidate> candidates_of(const Step& step, const std::vector<plan::Setting>& settings,
                                           const Prices& prices) {
  check_runs_on_meta(step);
  std::vector<plan::Candidate> candidates;
  for (plan::Setting& setting : fitted_on_host(step, settings, prices.links)) {
    plan::Streamed streamed;
    trace::Sketch sketch = sketch_step(step, setting, &prices.links, streamed);
    if (!can_stream(streamed.bytes, prices.links)) continue;
    auto model =
        std::make_shared<const plan::StepModel>(std::move(sketch), static_cast<double>(setting.accumulation),
                                                std::cref(prices.costs), prices.links, streamed);
    if (setting.accumulation == 0) setting.accumulation = model->sketched_passes();
    candidates.push_back({std::move(setting), std::move(model)});
  }
  return candidates;
}

plan::Decision decide(plan::Planner& planner, const Prices& prices, std::uint64_t budget_bytes) {
  return plan::decide_within(planner, budget_bytes,
                             {prices.hardware.is_gpu ? prices.hardware.memory_bytes : 0});
}

// Settings that were tried are some way apart: between the best of them may be better ones.
plan::Decision refined(const Step& step, plan::Planner& planner, const Prices& prices,
                       plan::Decision decision) {
  constexpr double kCloseBehind = 1.04;
  if (!step.finer || !decision.fits) return decision;
  std::vector<plan::Setting> settings;
  for (const plan::Offer& offer : planner.rivals(decision.budget_bytes, kCloseBehind))
    std::ranges::move(step.finer(planner.candidate(offer).setting), std::back_inserter(settings));
  if (settings.empty()) return decision;
  planner.add(candidates_of(step, settings, prices));
  // What has fewer bytes of tensors may need more of the allocator's.
  plan::Decision finer = decide(planner, prices, decision.budget_bytes);
  return finer.fits && finer.taken.seconds < decision.taken.seconds ? finer : decision;
}

// Whether a GPU runs it faster than a host launches it.
bool is_launched_slowly(const plan::Planner& planner, const plan::Offer& offer) {
  constexpr double kLaunching = 1e-4;  // seconds for an operator of ours and its gradient
  const plan::Candidate& candidate = planner.candidate(offer);
  const plan::StepModel& model = *candidate.model;
  std::size_t operators = 0;
  for (const auto& call : model.sketch().calls) operators += call.tape.operations.size();
  const double passes =
      static_cast<double>(candidate.setting.accumulation) / static_cast<double>(model.sketched_passes());
  return kLaunching * passes * static_cast<double>(operators) > offer.seconds;
}

// With room for its CUDA graph, if it will be one.
plan::Decision with_graph(const Step& step, plan::Planner& planner, const Prices& prices,
                          plan::Decision decision) {
  if (!step.graph_bytes || !decision.fits || decision.taken.host_bytes > 0 ||
      !is_launched_slowly(planner, decision.taken))
    return decision;
  const std::uint64_t budget = decision.budget_bytes;
  const std::uint64_t graph = step.graph_bytes(planner.candidate(decision.taken).setting);
  if (budget <= graph || decision.taken.peak_bytes + graph <= budget) return decision;
  plan::Decision smaller = refined(step, planner, prices, decide(planner, prices, budget - graph));
  if (!smaller.fits || smaller.taken.host_bytes > 0) return decision;
  smaller.budget_bytes = budget;
  return smaller;
}

}  // namespace

std::shared_ptr<plan::Planner> make_planner(const Step& step, const PlanOptions& options) {
  const Prices prices(step, options);
  std::vector<plan::Setting> settings = step.settings;
  if (settings.empty()) settings.push_back({.accumulation = 0});
  std::vector<plan::Candidate> candidates = candidates_of(step, settings, prices);
  check(!candidates.empty(),
        "this step keeps states on the host: that needs a link of known rate (`hardware`)",
        " and a `host_budget` for them");
  plan::Overhead overhead = plan::overhead_of(prices.hardware);
  if (step.scratch_share > 0) overhead.share = step.scratch_share;
  return std::make_shared<plan::Planner>(std::move(candidates), overhead);
}

PlannedStep plan_step(const Step& step, const PlanOptions& options, std::shared_ptr<plan::Planner> planner) {
  if (!planner) planner = make_planner(step, options);
  const Prices prices(step, options);
  plan::Decision decision =
      with_graph(step, *planner, prices,
                 refined(step, *planner, prices, decide(*planner, prices, options.budget_bytes)));
  plan::Plan plan = planner->write_down(decision, identity_of(step));
  return {std::move(plan), std::move(decision), std::move(planner)};
}

std::vector<plan::Plan> rival_plans(const Step& step, const PlanOptions& options, const PlannedStep& planned,
                                    double slowdown) {
  const Prices prices(step, options);
  const plan::Planner& planner = *planned.planner;
  Step unrefined = step;
  unrefined.finer = nullptr;
  const auto micro_batch = [](const plan::Candidate& candidate) {
    return candidate.setting[plan::kMicroBatch];
  };
  std::vector<plan::Plan> plans;
  for (const plan::Offer& rival : planner.rivals(options.budget_bytes, slowdown)) {
    const std::int64_t split = micro_batch(planner.candidate(rival));
    if (split == planned.plan.setting[plan::kMicroBatch]) continue;
    std::vector<plan::Candidate> alike;
    std::ranges::copy_if(planner.candidates(), std::back_inserter(alike),
                         [&](const plan::Candidate& one) { return micro_batch(one) == split; });
    plan::Planner among(std::move(alike), planner.overhead());
    const plan::Decision decision =
        with_graph(unrefined, among, prices, decide(among, prices, options.budget_bytes));
    if (!decision.fits || decision.taken.seconds > slowdown * planned.plan.predicted.step_seconds) continue;
    plan::Plan plan = among.write_down(decision, identity_of(step));
    const plan::Amount whole = planned.plan.plain, part = std::exchange(plan.plain, whole);
    plan.levers.insert(plan.levers.begin(), {.name = plan::kMicroBatch.name,
                                             .saved_bytes = static_cast<std::int64_t>(whole.peak_bytes) -
                                                            static_cast<std::int64_t>(part.peak_bytes),
                                             .cost_seconds = part.step_seconds - whole.step_seconds});
    plans.push_back(std::move(plan));
  }
  std::ranges::sort(plans, {}, [](const plan::Plan& plan) { return plan.predicted.step_seconds; });
  return plans;
}

void check_identity(const plan::Plan& plan, const Step& step) {
  check_same(plan.step, identity_of(step), "");
}

void check_plan(const plan::Plan& plan, const Step& step) {
  check_identity(plan, step);
  const trace::Sketch sketch = sketch_step(step, plan.setting);
  for (const auto& call : sketch.calls) plan::check_matches(plan, call.tape);
  for (const plan::RegionPlan& region : plan.regions)
    check(std::ranges::any_of(sketch.calls,
                              [&](const auto& call) { return call.tape.region == region.region; }),
          "the plan is for another model: this one has no region \"", region.region, "\"");
}

}  // namespace snug
