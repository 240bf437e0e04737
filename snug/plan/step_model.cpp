#include "snug/plan/step_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "snug/base/error.h"
#include "snug/plan/region_choices.h"
#include "snug/trace/closure.h"

namespace snug::plan {

namespace {

constexpr std::size_t kMostChoices = 24;
constexpr std::size_t kMostWithOffload = 18;  // each of them with several amounts to offload
constexpr std::size_t kCheapAmounts = 4;
constexpr std::uint64_t kLeastShare = 16;           // of what can be sent cheaply: smaller values stay
constexpr std::uint64_t kLeastOffload = 64 * 1024;  // a copy of less costs more than its memory is worth

struct Window {
  Moment begin, end;
  bool holds(Moment moment) const { return begin <= moment && moment < end; }
};

// Where a call's own memory comes and goes. What lies between two calls counts with the later one.
struct Windows {
  Window forward, backward;
};

Windows windows(const Sketch& sketch, std::span<const std::size_t> pass, std::size_t place) {
  const Sketch::Call& call = sketch.calls[pass[place]];
  if (call.nodes.empty()) return {{call.forward_begin, call.forward_end}, {0, 0}};  // no backward asks for it
  const bool is_first = place == 0, is_last = place + 1 == pass.size();
  const Moment forward = is_first ? call.forward_begin : sketch.calls[pass[place - 1]].forward_end;
  const Moment backward = is_last ? call.forward_end : sketch.calls[pass[place + 1]].backward_end;
  return {{std::min(forward, call.forward_end), call.forward_end},
          {std::min(backward, call.backward_begin), std::max(backward, call.backward_end)}};
}

// The highest of base + what the profile adds, within a window.
std::uint64_t highest(const Timeline& timeline, const Profile& profile, std::span<const std::uint64_t> base,
                      Window window) {
  std::vector<std::int64_t> added(window.end - window.begin + 1);
  const auto change = [&](Moment at, std::int64_t bytes) {
    added[std::clamp(at, window.begin, window.end) - window.begin] += bytes;
  };
  for (const auto& [block, until, leaves] : profile.kept) {
    const auto bytes = static_cast<std::int64_t>(timeline.sketch().blocks[block].bytes);
    change(timeline.death(block), bytes);
    change(until, -bytes);
  }
  for (const auto& [at, until, bytes] : profile.copies) {
    change(at, static_cast<std::int64_t>(bytes));
    change(until, -static_cast<std::int64_t>(bytes));
  }
  std::vector<std::int64_t> recomputed(added.size());
  for (const auto& [at, bytes] : profile.recomputed)
    recomputed[std::clamp(at, window.begin, window.end) - window.begin] += bytes;
  std::partial_sum(added.begin(), added.end(), added.begin());
  std::partial_sum(recomputed.begin(), recomputed.end(), recomputed.begin());
  for (const auto& [at, bytes] : profile.spikes)
    if (window.holds(at)) {
      auto& level = recomputed[at - window.begin];
      level = std::max(level, static_cast<std::int64_t>(bytes));
    }
  std::uint64_t most = 0;
  for (Moment moment = window.begin; moment < window.end; ++moment) {
    const std::int64_t extra = added[moment - window.begin] + recomputed[moment - window.begin];
    most = std::max(most, base[moment] + static_cast<std::uint64_t>(std::max<std::int64_t>(extra, 0)));
  }
  return most;
}

bool is_dominated(const Choice& a, const Choice& b) {
  return b.kept_bytes <= a.kept_bytes && b.offloaded_bytes <= a.offloaded_bytes &&
         b.forward_bytes <= a.forward_bytes && b.backward_bytes <= a.backward_bytes &&
         b.backward_seconds <= a.backward_seconds;
}

// Those that none of the others beats, the first always among them, by rising seconds.
std::vector<std::size_t> worth_having(const std::vector<Choice>& choices) {
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    bool beaten = false;
    for (std::size_t k = 0; k < choices.size() && !beaten; ++k)
      beaten =
          k != i && is_dominated(choices[i], choices[k]) && !(is_dominated(choices[k], choices[i]) && i < k);
    if (i == 0 || !beaten) kept.push_back(i);
  }
  std::ranges::stable_sort(kept, {}, [&](std::size_t i) { return choices[i].backward_seconds; });
  return kept;
}

// Too many: those whose neighbours come closest to them go first, never the leanest.
void thin(std::vector<std::size_t>& kept, const std::vector<Choice>& choices, std::size_t most) {
  const auto least_kept =
      *std::ranges::min_element(kept, {}, [&](std::size_t i) { return choices[i].kept_bytes; });
  const auto lowest =
      *std::ranges::min_element(kept, {}, [&](std::size_t i) { return choices[i].own_bytes(); });
  while (kept.size() > most) {
    std::size_t least = 0;
    double least_gap = std::numeric_limits<double>::infinity();
    for (std::size_t i = 1; i + 1 < kept.size(); ++i) {
      if (kept[i] == least_kept || kept[i] == lowest) continue;
      const Choice &before = choices[kept[i - 1]], &after = choices[kept[i + 1]];
      const double gap = after.backward_seconds - before.backward_seconds;
      if (gap < least_gap) std::tie(least, least_gap) = std::pair(i, gap);
    }
    kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(least));
  }
}

}  // namespace

StepModel::StepModel(Sketch sketch, double passes, const Cost& cost, const Links& links,
                     const Streamed& streamed)
    : links_(links),
      streamed_(streamed),
      collectives_(streamed_.collectives, streamed_.ranks, links_.peers),
      sketch_(std::make_unique<const Sketch>(std::move(sketch))),
      timeline_(*sketch_) {
  for (const trace::Work& work : sketch_->operators)
    operator_seconds_.push_back(work.name.empty() ? 0 : cost(work));
  find_regions();
  step_passes_ = passes == 0 ? static_cast<double>(passes_.size()) : passes;
  if (streamed_.beside_forward)
    link_is_taken_ =
        std::min(1.0, copying_seconds(streamed_, links_) / std::max(forward_seconds(), 1e-9)) / step_passes_;
  find_choices();
  build_problem();
  share_seconds();
}

// A pass is over when its backward begins; the next call is of another. A region that earlier passes did not
// have comes after the one that ran before it.
void StepModel::find_regions() {
  check(!sketch_->calls.empty(),
        "a step to plan needs regions: name the parts of the forward with snug::region()");
  Moment backward = 0;
  std::size_t next = 0;
  for (std::size_t i = 0; i < sketch_->calls.size(); ++i) {
    const Sketch::Call& call = sketch_->calls[i];
    if (call.forward_begin >= backward) {
      passes_.emplace_back();
      backward = Sketch::kNever;
      next = 0;
    }
    if (!call.nodes.empty()) backward = std::min(backward, call.backward_begin);
    const std::uint64_t structure = call.tape.structure_hash();
    auto region = std::ranges::find_if(regions_, [&](const Region& other) {
      return other.name == call.tape.region && other.structure == structure;
    });
    if (region == regions_.end())
      region = regions_.insert(regions_.begin() + static_cast<std::ptrdiff_t>(next),
                               Region{.name = call.tape.region, .structure = structure});
    region->calls.push_back(i);
    places_.push_back({passes_.size() - 1, passes_.back().size()});
    passes_.back().push_back(i);
    next = static_cast<std::size_t>(region - regions_.begin()) + 1;
  }
}

std::vector<std::int64_t> StepModel::own_passes(const Region& region) const {
  std::vector<std::int64_t> passes;
  if (std::ranges::count(regions_, region.name, &Region::name) > 1)
    for (const std::size_t call : region.calls)
      passes.push_back(static_cast<std::int64_t>(places_[call].pass));
  return passes;
}

std::vector<double> StepModel::seconds_of(const Sketch::Call& call) const {
  std::vector<double> seconds;
  for (const std::uint32_t number : call.operators) seconds.push_back(operator_seconds_[number]);
  return seconds;
}

// Regions of one kind share their choices.
void StepModel::find_choices() {
  const std::vector<std::uint64_t> base = timeline_.live({});
  std::vector<std::size_t> kinds;
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const Sketch::Call& call = sketch_->calls[regions_[i].calls[0]];
    const std::vector<double> seconds = seconds_of(call);
    const auto same = std::ranges::find_if(kinds, [&](std::size_t kind) {
      const Sketch::Call& other = sketch_->calls[regions_[kind].calls[0]];
      return other.tape.operations == call.tape.operations && other.tape.values == call.tape.values &&
             other.tape.saves == call.tape.saves && other.tape.unpacks == call.tape.unpacks &&
             seconds_of(other) == seconds;
    });
    Region& region = regions_[i];
    // What the last of a pass offloads nobody lets leave.
    const bool is_last =
        i + 1 == regions_.size() || std::ranges::all_of(region.calls, [&](std::size_t number) {
          return places_[number].in_pass + 1 == passes_[places_[number].pass].size();
        });
    if (same != kinds.end() && !is_last) {
      const Region& like = regions_[*same];
      region.choices = like.choices;
      region.kept_instead = like.kept_instead;
      region.lean = like.lean;
      region.lean_on_host = like.lean_on_host;
      continue;
    }
    auto all = region_choices(timeline_, region.calls[0], seconds);
    std::vector<Choice> measured;
    for (const auto& fates : all) measured.push_back(measure(i, profiles_of(i, fates), base));
    std::vector<std::size_t> kept = worth_having(measured);
    const bool offload = links_.are_there() && !is_last;
    thin(kept, measured, offload ? kMostWithOffload : kMostChoices);
    std::vector<std::vector<Fate>> choices;
    for (const std::size_t number : kept) choices.push_back(std::move(all[number]));
    region.kept_instead.resize(choices.size());
    std::iota(region.kept_instead.begin(), region.kept_instead.end(), 0u);
    if (offload) add_offloading_choices(i, choices);
    add_lean_choices(region, choices);
    region.choices = std::make_shared<const std::vector<std::vector<Fate>>>(std::move(choices));
    kinds.push_back(i);
  }
}

// Note [How much a region offloads]
// Bytes are alike on the link, so the smallest values go first: that gives the finest choice of amounts. What
// is sent while the next region computes costs little, and further bytes their whole time; so the amounts are
// a few up to that point, and all there is.
void StepModel::add_offloading_choices(std::size_t region, std::vector<std::vector<Fate>>& choices) {
  const std::size_t call = regions_[region].calls[0];
  const trace::RegionTape& tape = sketch_->calls[call].tape;
  const std::uint64_t most = most_on_host();
  const double next_seconds = seconds_between(sketch_->calls[regions_[region + 1].calls.back()].forward);
  const auto hidden = static_cast<std::uint64_t>(next_seconds * links_.to_host_rate);
  const std::size_t plain = choices.size();
  for (std::size_t i = 0; i < plain; ++i) {
    std::vector<Fate> fates = choices[i];
    std::vector<trace::ValueIndex> movable = movable_values(call, fates);
    std::uint64_t all = 0;
    for (const trace::ValueIndex value : movable) all += tape.values[value].bytes;
    const std::uint64_t cheap = std::min(hidden, all);
    std::erase_if(movable, [&](auto value) { return tape.values[value].bytes < cheap / kLeastShare; });
    std::uint64_t bytes = 0;
    std::size_t amount = 0;  // of kCheapAmounts, the last that was taken
    for (std::size_t k = 0; k < movable.size() && bytes + tape.values[movable[k]].bytes <= most; ++k) {
      bytes += tape.values[movable[k]].bytes;
      fates[movable[k]] = Fate::Offload;
      const std::size_t reached =
          bytes < cheap ? static_cast<std::size_t>(kCheapAmounts * bytes / cheap) : kCheapAmounts;
      const bool is_next = reached > amount, is_all = k + 1 == movable.size();
      amount = reached;
      if (!is_next && !is_all) continue;
      choices.push_back(fates);
      regions_[region].kept_instead.push_back(static_cast<std::uint32_t>(i));
    }
  }
}

std::uint64_t StepModel::most_on_host() const {
  return (links_.host_bytes - std::min(links_.host_bytes, streamed_.bytes)) / regions_.size();
}

// What a session's step that keeps nothing does, however small what comes in. Mostly other choices are as
// good, so these two take no other's place.
void StepModel::add_lean_choices(Region& region, std::vector<std::vector<Fate>>& choices) const {
  const std::size_t call = region.calls[0];
  const trace::RegionTape& tape = sketch_->calls[call].tape;
  std::vector<Fate> fates(tape.values.size(), Fate::Recompute);
  const auto add = [&] {
    choices.push_back(timeline_.allowed(call, fates));
    return static_cast<std::uint32_t>(choices.size() - 1);
  };
  region.lean = region.lean_on_host = add();
  region.kept_instead.push_back(region.lean);
  if (!links_.are_there()) return;
  std::uint64_t bytes = 0;
  for (std::size_t k = 0; k < fates.size(); ++k) {
    const trace::TapeValue& value = tape.values[k];
    if (value.operation != trace::TapeValue::kOutside || bytes + value.bytes > most_on_host()) continue;
    bytes += value.bytes;
    fates[k] = Fate::Offload;
  }
  region.lean_on_host = add();
  region.kept_instead.push_back(region.lean);
}

// Of those that are kept, what may leave, by rising bytes.
std::vector<trace::ValueIndex> StepModel::movable_values(std::size_t call,
                                                         const std::vector<Fate>& fates) const {
  const trace::RegionTape& tape = sketch_->calls[call].tape;
  const std::vector<bool> is_kept = trace::kept_values(tape, trace::ClosureBytes(tape, fates));
  std::vector<Fate> offloaded = fates;
  for (std::size_t k = 0; k < fates.size(); ++k)
    if (is_kept[k] && tape.values[k].bytes >= kLeastOffload) offloaded[k] = Fate::Offload;
  offloaded = timeline_.allowed(call, std::move(offloaded));
  std::vector<trace::ValueIndex> movable;
  for (trace::ValueIndex k = 0; k < offloaded.size(); ++k)
    if (offloaded[k] == Fate::Offload) movable.push_back(k);
  std::ranges::stable_sort(movable, {}, [&](trace::ValueIndex value) { return tape.values[value].bytes; });
  return movable;
}

// One per call.
std::vector<Profile> StepModel::profiles_of(std::size_t region, const std::vector<Fate>& fates) const {
  std::vector<Profile> profiles;
  for (const std::size_t call : regions_[region].calls) profiles.push_back(timeline_.profile(call, fates));
  return profiles;
}

Choice StepModel::measure(std::size_t number, const std::vector<Profile>& profiles,
                          std::span<const std::uint64_t> base) const {
  const Region& region = regions_[number];
  const Sketch::Call& last = sketch_->calls[region.calls.back()];
  Choice choice{.forward_seconds = seconds_between(last.forward),
                .backward_seconds = seconds_between(last.backward)};
  for (std::size_t k = 0; k < region.calls.size(); ++k) {
    const std::size_t call = region.calls[k];
    const Profile& profile = profiles[k];
    const auto [forward, backward] = windows(*sketch_, passes_[places_[call].pass], places_[call].in_pass);
    choice.forward_bytes = std::max(choice.forward_bytes, highest(timeline_, profile, base, forward));
    choice.backward_bytes = std::max(choice.backward_bytes, highest(timeline_, profile, base, backward));
    if (k > 0) continue;
    choice.offloaded_bytes = profile.offloaded_bytes;
    for (const auto& [block, until, leaves] : profile.kept)
      if (!leaves && timeline_.death(block) <= sketch_->calls[call].forward_end &&
          until > sketch_->calls[call].forward_end)
        choice.kept_bytes += sketch_->blocks[block].bytes;
    for (const std::uint32_t operation : profile.operations)
      choice.backward_seconds += operator_seconds_[sketch_->calls[call].operators[operation]];
  }
  // What it sends shares the link with what streams. (Said of the backward, where nobody takes it for time
  // that hides a copy to the host.)
  if (choice.offloaded_bytes > 0)
    choice.backward_seconds +=
        link_is_taken_ * static_cast<double>(choice.offloaded_bytes) / links_.to_host_rate;
  const double calls_per_pass =
      static_cast<double>(region.calls.size()) / static_cast<double>(passes_.size());
  choice.forward_seconds *= calls_per_pass;
  choice.backward_seconds *= calls_per_pass;
  if (links_.are_there()) add_streamed(region.name, choice);
  add_collectives(region, choice);
  return choice;
}

namespace {

// A region takes as long as computing, slowed down by what ranks do beside it, or as long as that takes.
double beside(double computing, double collectives, double slowdown) {
  return std::max(computing + slowdown * std::min(collectives, computing), collectives);
}

// What beside() was given, or as much as can be known: all computing that hides behind collectives is alike.
double computing_of(double seconds, double collectives, double slowdown) {
  return seconds >= (1 + slowdown) * collectives ? seconds - slowdown * collectives
                                                 : seconds / (1 + slowdown);
}

}  // namespace

// Passes that differ each have a region of this name: a collective is of one of them.
double StepModel::share_of_passes(const Region& region) const {
  return std::min(1.0, static_cast<double>(region.calls.size()) / static_cast<double>(passes_.size()));
}

void StepModel::add_collectives(const Region& region, Choice& choice) const {
  const double share = share_of_passes(region);
  const auto [forward, backward] = together_beside(region.name);
  const auto [first, last] = step_passes_ > 1 ? StepCollectives::Beside() : collectives_.once(region.name);
  const auto lengthen = [&](double& seconds, double collectives) {
    const double computing =
        std::exchange(seconds, beside(seconds, share * collectives, links_.peers.slowdown));
    choice.ranks_seconds += seconds - computing;
  };
  lengthen(choice.forward_seconds, forward + first);
  lengthen(choice.backward_seconds, backward + last);
}

// In each pass: a rank's piece that waits on the host comes before it is gathered.
StepCollectives::Beside StepModel::together_beside(std::string_view region) const {
  StepCollectives::Beside beside = collectives_.in_each_pass(region);
  const auto& all = streamed_.regions;
  const auto place = std::ranges::find(all, region, &Streamed::Region::name);
  if (place == all.end() || streamed_.collectives.empty() || !links_.are_there()) return beside;
  const auto seconds_of = [&](std::uint64_t bytes) {
    return static_cast<double>(bytes) / links_.to_device_rate;
  };
  if (place + 1 != all.end()) beside.forward += seconds_of(place[1].weight_bytes);
  if (place != all.begin()) beside.backward += seconds_of(place[-1].weight_bytes);
  return beside;
}

// Beside a region the weights of the next one come, in the order of the pass, and what the one before it made
// of gradients goes. All passes but the first add to what is there.
void StepModel::add_streamed(const std::string& region, Choice& choice) const {
  const auto& all = streamed_.regions;
  const auto place = std::ranges::find(all, region, &Streamed::Region::name);
  if (place == all.end()) return;
  const bool is_first = place == all.begin(), is_last = place + 1 == all.end();
  if (!is_last) {
    choice.forward_in_bytes = place[1].weight_bytes;
    choice.backward_out_bytes = place[1].gradient_bytes;
  }
  if (!is_first)
    choice.backward_in_bytes =
        place[-1].weight_bytes +
        static_cast<std::uint64_t>(static_cast<double>(place[-1].gradient_bytes) * (1 - 1 / step_passes_));
}

void StepModel::build_problem() {
  const std::vector<std::uint64_t> base = timeline_.live({});
  std::vector<bool> in_a_window(base.size());
  for (const std::vector<std::size_t>& pass : passes_) {
    Moment end = 0;
    for (const std::size_t call : pass) end = std::max(end, sketch_->calls[call].backward_end);
    for (Moment moment = sketch_->calls[pass.front()].forward_begin;
         moment < std::min<Moment>(end, base.size()); ++moment)
      in_a_window[moment] = true;
  }
  for (std::size_t i = 0; i < base.size(); ++i)
    if (!in_a_window[i]) problem_.floor_bytes = std::max(problem_.floor_bytes, base[i]);
  profiles_.resize(sketch_->calls.size());
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    auto choices = std::make_shared<Choices>();
    for (const auto& fates : *regions_[i].choices) {
      std::vector<Profile> profiles = profiles_of(i, fates);
      choices->push_back(measure(i, profiles, base));
      for (std::size_t k = 0; k < profiles.size(); ++k)
        profiles_[regions_[i].calls[k]].push_back(std::move(profiles[k]));
    }
    problem_.regions.push_back(std::move(choices));
  }
}

std::vector<std::uint32_t> StepModel::lean(bool on_host) const {
  std::vector<std::uint32_t> chosen;
  for (const Region& region : regions_) chosen.push_back(on_host ? region.lean_on_host : region.lean);
  return chosen;
}

StepModel::PassMemory StepModel::lean_pass(bool on_host) const {
  const std::vector<std::uint64_t> live = timeline_.live(profiles(lean(on_host)));
  PassMemory memory;
  for (const std::vector<std::size_t>& pass : passes_) {
    const Moment begin = sketch_->calls[pass.front()].forward_begin;
    Moment end = begin;
    for (const std::size_t call : pass)
      end = std::max({end, sketch_->calls[call].forward_end, sketch_->calls[call].backward_end});
    std::vector<std::int64_t> held(live.size() + 1);  // changes
    for (const Sketch::Block& block : sketch_->blocks) {
      const Moment birth = timeline_.birth(block);
      if (birth >= begin && block.death <= end) continue;
      held[std::min<std::size_t>(birth, live.size())] += static_cast<std::int64_t>(block.bytes);
      held[std::min<std::size_t>(block.death, live.size())] -= static_cast<std::int64_t>(block.bytes);
    }
    std::partial_sum(held.begin(), held.end(), held.begin());
    for (Moment moment = begin; moment < std::min<std::size_t>(end, live.size()); ++moment) {
      const auto there = static_cast<std::uint64_t>(std::max<std::int64_t>(held[moment], 0));
      memory.held_bytes = std::max(memory.held_bytes, there);
      memory.own_bytes = std::max(memory.own_bytes, live[moment] - std::min(live[moment], there));
    }
  }
  return memory;
}

// Passes repeat, what comes after the last backward does not. The last pass stands for all: between earlier
// ones an optimizer may have run.
void StepModel::share_seconds() {
  const std::uint32_t last = sketch_->operators_of_passes;
  double outside = seconds_between({sketch_->calls[passes_.back().front()].forward.begin, last});
  for (const std::size_t number : passes_.back()) {
    const Sketch::Call& call = sketch_->calls[number];
    outside -= seconds_between(call.forward) + seconds_between(call.backward);
  }
  const double optimizer = seconds_between({last, static_cast<std::uint32_t>(operator_seconds_.size())});
  problem_.passes = step_passes_;
  // What streams does so behind the optimizer's kernels, or behind a forward or backward.
  const bool is_beside = streamed_.beside_forward || streamed_.beside_backward;
  const UpdateBeside update =
      is_beside ? update_beside(streamed_, links_,
                                streamed_.beside_forward ? forward_seconds() : backward_seconds(),
                                passes_.back().size())
                : UpdateBeside{.left = std::max(0.0, streaming_seconds(streamed_, links_) - optimizer)};
  problem_.fixed_seconds = optimizer + update.slowed + update.left + step_passes_ * std::max(outside, 0.0);
  if (links_.are_there())
    for (const auto& choices : problem_.regions) {
      const Choice& any = choices->front();
      problem_.fixed_seconds +=
          step_passes_ * links_.copy_slowdown *
          (static_cast<double>(any.forward_in_bytes + any.backward_in_bytes) / links_.to_device_rate +
           static_cast<double>(any.backward_out_bytes) / links_.to_host_rate);
    }
  problem_.fixed_seconds += seconds_alone();
  problem_.to_host_rate = links_.to_host_rate;
  problem_.to_device_rate = links_.to_device_rate;
  problem_.both_ways_rate = links_.both_ways_rate;
  problem_.copy_slowdown = links_.copy_slowdown;
}

// What ranks do once in a step of several passes hides beside one of them.
double StepModel::seconds_alone() const {
  double seconds = collectives_.alone(step_passes_);
  if (step_passes_ <= 1) return seconds;
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    const Choice& any = problem_.regions[i]->front();
    const auto [first, last] = collectives_.once(regions_[i].name);
    const auto [forward, backward] = together_beside(regions_[i].name);
    const auto longer = [&, share = share_of_passes(regions_[i])](double now, double each, double once) {
      const double slowdown = links_.peers.slowdown, computing = computing_of(now, share * each, slowdown);
      return share * (beside(computing / share, each + once, slowdown) - now / share);
    };
    seconds += longer(any.forward_seconds, forward, first) + longer(any.backward_seconds, backward, last);
  }
  return seconds;
}

StepModel::Together StepModel::together(std::span<const std::uint32_t> chosen) const {
  double cost = seconds_alone();
  for (std::size_t i = 0; i < chosen.size(); ++i)
    cost += step_passes_ * (*problem_.regions[i])[chosen[i]].ranks_seconds;
  return {.sent_bytes = collectives_.sent_bytes(step_passes_),
          .seconds = collectives_.seconds(step_passes_),
          .cost_seconds = cost};
}

double StepModel::forward_seconds() const {
  double seconds = 0;
  for (const std::size_t call : passes_.front()) seconds += seconds_between(sketch_->calls[call].forward);
  return seconds;
}

double StepModel::backward_seconds() const {
  double seconds = 0;
  for (const std::size_t call : passes_.back()) seconds += seconds_between(sketch_->calls[call].backward);
  return seconds;
}

double StepModel::seconds_between(Sketch::Call::Operators operators) const {
  return std::accumulate(operator_seconds_.begin() + operators.begin,
                         operator_seconds_.begin() + std::max(operators.begin, operators.end), 0.0);
}

std::vector<const Profile*> StepModel::profiles(std::span<const std::uint32_t> chosen) const {
  std::vector<const Profile*> profiles;
  for (std::size_t i = 0; i < regions_.size(); ++i)
    for (const std::size_t call : regions_[i].calls) profiles.push_back(&profiles_[call][chosen[i]]);
  return profiles;
}

std::uint64_t StepModel::peak_bytes(std::span<const std::uint32_t> chosen) const {
  return timeline_.peak(profiles(chosen));
}

std::uint64_t StepModel::host_bytes(std::span<const std::uint32_t> chosen) const {
  std::uint64_t bytes = streamed_.bytes;
  for (std::size_t i = 0; i < regions_.size(); ++i)
    bytes += profiles_[regions_[i].calls[0]][chosen[i]].offloaded_bytes;
  return bytes;
}

std::vector<std::vector<Fate>> StepModel::fates(std::span<const std::uint32_t> chosen) const {
  std::vector<std::vector<Fate>> fates(sketch_->calls.size());
  for (std::size_t i = 0; i < regions_.size(); ++i)
    for (const std::size_t call : regions_[i].calls) fates[call] = (*regions_[i].choices)[chosen[i]];
  return fates;
}

std::vector<std::uint32_t> StepModel::without_offload(std::span<const std::uint32_t> chosen) const {
  std::vector<std::uint32_t> kept;
  for (std::size_t i = 0; i < regions_.size(); ++i) kept.push_back(regions_[i].kept_instead[chosen[i]]);
  return kept;
}

std::string StepModel::place_of_peak(std::span<const std::uint32_t> chosen) const {
  const std::vector<std::uint64_t> live = timeline_.live(profiles(chosen));
  const auto peak = static_cast<Moment>(std::ranges::max_element(live) - live.begin());
  for (const Sketch::Call& call : sketch_->calls) {
    if (call.forward_begin <= peak && peak < call.forward_end) return "the forward of " + call.tape.region;
    if (call.backward_begin <= peak && peak < call.backward_end) return "the backward of " + call.tape.region;
  }
  return peak < sketch_->calls.front().forward_begin ? "setting up" : "what runs outside the regions";
}

}  // namespace snug::plan
