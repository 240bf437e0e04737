#include "snug/plan/planner.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/plan/bound.h"

namespace snug::plan {

namespace {

constexpr double kWorthMentioning = 0.01;

// An entry of 8 bytes per 4 KiB, as huge pages or not: 2 MiB per GiB on an H200 (driver's used memory before
// and after), in pieces of 2 MiB; one more for what lies above the entries.
std::uint64_t page_tables(std::uint64_t pinned_bytes) {
  constexpr std::uint64_t kBytesPerByte = 4_KiB / 8, kPiece = 2_MiB;
  if (pinned_bytes == 0) return 0;
  return (pinned_bytes / kBytesPerByte + 2 * kPiece - 1) / kPiece * kPiece;
}

// Of all candidates together, those that no other beats.
std::vector<Offer> worth_having(std::vector<Offer> all, const Overhead& overhead) {
  const auto order = [&](const Offer& offer) {
    return std::tuple(offer.tensor_bytes + overhead.outside_with(offer.host_bytes), offer.seconds);
  };
  std::ranges::stable_sort(all, {}, order);
  std::vector<Offer> offers;
  for (Offer& offer : all)
    if (offers.empty() || offer.seconds < offers.back().seconds) offers.push_back(std::move(offer));
  return offers;
}

// What is best in a problem is so in another that has the same choices and at every moment so many bytes
// less, of states that wait elsewhere: one search serves both. Searches run side by side.
class Frontiers {
 public:
  explicit Frontiers(std::span<const Candidate> candidates) {
    for (const Candidate& candidate : candidates) {
      const Problem& problem = candidate.model->problem();
      const auto same =
          std::ranges::find_if(found_, [&](const auto& other) { return is_shifted(*other.first, problem); });
      number_of_.push_back(static_cast<std::size_t>(same - found_.begin()));
      if (same == found_.end())
        found_.emplace_back(&problem,
                            std::async(std::launch::async, [&problem] { return search(problem); }).share());
    }
  }
  const Frontier& of(std::size_t candidate) const { return found_[number_of_[candidate]].second.get(); }

 private:
  std::vector<std::pair<const Problem*, std::shared_future<Frontier>>> found_;
  std::vector<std::size_t> number_of_;  // by candidate
};

std::uint64_t below(std::uint64_t a, std::uint64_t b) {
  return a > b ? a - b : 0;
}

// Of the first value that has a fate: none has what empty() made.
std::uint64_t first_made_bytes(const trace::RegionTape& tape) {
  const auto first = std::ranges::find_if(tape.values, [](const trace::TapeValue& value) {
    return value.operation != trace::TapeValue::kOutside && value.fate != Fate::Recompute;
  });
  return first == tape.values.end() ? 0 : first->bytes;
}

RegionPlan region_plan(const StepModel& model, const StepModel::Region& region,
                       const std::vector<Fate>& fates) {
  const Sketch& sketch = model.sketch();
  const trace::RegionTape& tape = sketch.calls[region.calls[0]].tape;
  RegionPlan plan{.region = region.name, .structure = region.structure, .passes = model.own_passes(region)};
  for (const std::size_t call : region.calls) {  // passes may differ in length
    plan.bytes = std::max(plan.bytes, made_bytes(sketch.calls[call].tape));
    plan.first_bytes = std::max(plan.first_bytes, first_made_bytes(sketch.calls[call].tape));
  }
  for (const trace::TapeOperation& operation : tape.operations) plan.operations.push_back(operation.name);
  for (std::size_t i = 0; i < fates.size(); ++i) {
    const trace::TapeValue& value = tape.values[i];
    const bool is_input = value.operation == trace::TapeValue::kOutside;
    const ValueName name{value.operation, value.output,
                         is_input ? "" : tape.operations[value.operation].name};
    // What empty() made is recomputed whatever the plan says.
    if (fates[i] == Fate::Recompute && value.fate != Fate::Recompute) plan.recompute.push_back(name);
    if (fates[i] == Fate::Offload) plan.offload.push_back(name);
  }
  return plan;
}

}  // namespace

Planner::Planner(std::vector<Candidate> candidates, const Overhead& overhead,
                 std::span<const LeverKind> kinds)
    : kinds_(kinds), overhead_(overhead) {
  check(!candidates.empty(), "nothing to plan: no setting of the step was given");
  add(std::move(candidates));
}

void Planner::add(std::vector<Candidate> candidates) {
  const std::size_t first = candidates_.size();
  std::ranges::move(candidates, std::back_inserter(candidates_));
  const Frontiers frontiers{std::span<const Candidate>(candidates_).subspan(first)};
  for (std::size_t i = first; i < candidates_.size(); ++i) {
    auto& [setting, model] = candidates_[i];
    for (const LeverKind& kind : kinds_) setting.levers.try_emplace(kind.name, kind.plain);
    check(setting.levers.size() == kinds_.size(), "a lever that there is not: ", to_json(setting).dump());
    const auto offer = [&, &model = *model](std::vector<std::uint32_t> chosen) {
      all_.push_back({.candidate = i,
                      .seconds = model.seconds(chosen),
                      .tensor_bytes = model.peak_bytes(chosen),
                      .host_bytes = model.host_bytes(chosen),
                      .chosen = std::move(chosen)});
    };
    for (const Point& point : frontiers.of(i - first)) offer(point.chosen);
    for (const bool on_host : {false, true}) offer(model->lean(on_host));
  }
  offers_ = worth_having(all_, overhead_);
  set_overhead(overhead_);
}

std::vector<Offer> Planner::rivals(std::uint64_t budget_bytes, double slowdown) const {
  std::map<std::int64_t, const Offer*> fastest;  // by micro-batch
  double least = std::numeric_limits<double>::infinity();
  for (const Offer& offer : all_) {
    if (overhead_.on_top_of(offer.tensor_bytes, offer.host_bytes) > budget_bytes) continue;
    const Offer*& best = fastest[candidate(offer).setting[kMicroBatch]];
    if (!best || offer.seconds < best->seconds) best = &offer;
    least = std::min(least, offer.seconds);
  }
  std::vector<Offer> rivals;
  for (const auto& [micro_batch, offer] : fastest)
    if (offer->seconds <= slowdown * least) rivals.push_back(*offer);
  return rivals;
}

void Planner::set_overhead(const Overhead& overhead) {
  overhead_ = overhead;
  std::uint64_t highest = 0;  // they rise, but for some MiB of page tables when a share is added to tensors
  for (Offer& offer : offers_)
    highest = offer.peak_bytes = std::max(highest, overhead_.on_top_of(offer.tensor_bytes, offer.host_bytes));
  plain_ = all_kept(0);
}

void Planner::set_plain_overhead(const Overhead& overhead) {
  plain_overhead_ = overhead;
  plain_ = all_kept(0);
}

Overhead overhead_of(const Hardware& hardware) {
  if (!hardware.is_gpu) return {};
  return {.outside_bytes = hardware.outside_bytes, .share = 0.03, .pins = true};
}

std::uint64_t Overhead::outside_with(std::uint64_t host_bytes) const {
  return outside_bytes + (pins ? page_tables(host_bytes) : 0);
}

std::uint64_t Overhead::on_top_of(std::uint64_t tensors, std::uint64_t host_bytes) const {
  return outside_with(host_bytes) + tensors +
         static_cast<std::uint64_t>(share * static_cast<double>(tensors));
}

std::uint64_t Overhead::left_of(std::uint64_t budget) const {
  return static_cast<std::uint64_t>(static_cast<double>(below(budget, outside_bytes)) / (1 + share)) + 1;
}

Amount Planner::all_kept(std::size_t candidate) const {
  const StepModel& model = *candidates_[candidate].model;
  const Overhead& overhead = candidate == 0 && plain_overhead_ ? *plain_overhead_ : overhead_;
  return {overhead.on_top_of(model.peak_bytes(model.all_kept()), model.streamed().bytes),
          model.seconds(model.all_kept())};
}

double Planner::bound_seconds(std::uint64_t budget_bytes) const {
  double bound = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : candidates_)
    bound = std::min(bound, lower_bound(candidate.model->problem(), overhead_.left_of(budget_bytes)));
  return bound;
}

Decision Planner::decide(std::uint64_t budget_bytes) const {
  const auto above = std::ranges::upper_bound(offers_, budget_bytes, {}, &Offer::peak_bytes);
  return about(above == offers_.begin() ? *above : above[-1], budget_bytes);
}

Decision Planner::about(const Offer& offer, std::uint64_t budget_bytes) const {
  const auto taken = std::ranges::find_if(offers_, [&](const Offer& other) {
    return other.tensor_bytes == offer.tensor_bytes && other.host_bytes == offer.host_bytes;
  });
  ensure(taken != offers_.end(), "this planner offers no plan with ", offer.tensor_bytes,
         " bytes of tensors");
  Decision decision{
      .fits = taken->peak_bytes <= budget_bytes,
      .budget_bytes = budget_bytes,
      .missing_bytes = below(taken->peak_bytes, budget_bytes),
      .taken = *taken,
      .plain = plain_,
      .bound_seconds = std::min(taken->seconds, bound_seconds(std::max(budget_bytes, taken->peak_bytes))),
      .binds = candidates_[taken->candidate].model->place_of_peak(taken->chosen),
      .levers = levers(*taken)};
  for (auto other = taken + 1; other != offers_.end() && !decision.faster; ++other)
    if (other->seconds <= taken->seconds * (1 - kWorthMentioning)) decision.faster = *other;
  for (auto other = taken; other != offers_.begin() && !decision.leaner;) {
    --other;
    if (static_cast<double>(other->peak_bytes) <=
        static_cast<double>(taken->peak_bytes) * (1 - kWorthMentioning))
      decision.leaner = *other;
  }
  return decision;
}

const Offer& Planner::leanest_within(double slowdown) const {
  for (const Offer& offer : offers_)
    if (offer.seconds <= plain_.step_seconds * slowdown) return offer;
  return offers_.back();
}

// The way from the plain step to the one that is taken: lever by lever through the settings, then values are
// recomputed, and then offloaded. What a setting saves that is no candidate is counted with the next lever.
// What the host steps goes with each placement and saves nothing by itself.
std::vector<Lever> Planner::levers(const Offer& taken) const {
  std::vector<Lever> levers;
  Amount before = plain_;
  const auto pull = [&](const std::string& name, const Amount& after) {
    const auto saved = static_cast<std::int64_t>(before.peak_bytes - after.peak_bytes);
    const double cost = after.step_seconds - before.step_seconds;
    if (saved != 0 || cost != 0) levers.push_back({name, saved, cost});
    before = after;
  };
  const auto& [setting, model] = candidates_[taken.candidate];
  Setting reached = candidates_.front().setting;
  // How far what the host steps is from the taken one's; none: another setting.
  const auto distance = [&](const Candidate& other) -> std::optional<std::int64_t> {
    for (const LeverKind& kind : kinds_)
      if (kSteppedOnHost.name != std::string_view(kind.name) && other.setting[kind] != reached[kind])
        return std::nullopt;
    return std::abs(other.setting[kSteppedOnHost] - setting[kSteppedOnHost]);
  };
  for (const LeverKind& kind : kinds_) {
    if (reached[kind] == setting[kind]) continue;
    reached.levers[kind.name] = setting[kind];
    std::optional<std::size_t> there;
    for (std::size_t i = 0; i < candidates_.size(); ++i)
      if (const auto far = distance(candidates_[i]); far && (!there || far < distance(candidates_[*there])))
        there = i;
    if (there) pull(kind.name, all_kept(*there));
  }
  const std::vector<std::uint32_t> on_device = model->without_offload(taken.chosen);
  pull("recompute", {overhead_.on_top_of(model->peak_bytes(on_device), model->streamed().bytes),
                     model->seconds(on_device)});
  pull("offload", {taken.peak_bytes, taken.seconds});
  return levers;
}

Plan Planner::write_down(const Decision& decision, Json step) const {
  const Offer& taken = decision.taken;
  const auto& [setting, model] = candidates_[taken.candidate];
  Plan plan{.step = std::move(step),
            .budget_bytes = decision.budget_bytes,
            .setting = setting,
            .plain = decision.plain,
            .predicted = {taken.peak_bytes, taken.seconds, taken.host_bytes,
                          overhead_.outside_with(taken.host_bytes), taken.tensor_bytes},
            .bound_seconds = decision.bound_seconds,
            .levers = decision.levers};
  for (std::size_t i = 0; i < taken.chosen.size(); ++i) {
    const StepModel::Region& region = model->regions()[i];
    plan.regions.push_back(region_plan(*model, region, (*region.choices)[taken.chosen[i]]));
  }
  return plan;
}

}  // namespace snug::plan
