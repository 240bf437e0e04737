#include "snug/session/session.h"

#include <algorithm>
#include <functional>
#include <iomanip>
#include <limits>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/capture/sketcher.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/products.h"
#include "snug/memory/budget.h"
#include "snug/memory/process_memory.h"
#include "snug/plan/cost.h"
#include "snug/plan/fitted.h"
#include "snug/plan/planner.h"
#include "snug/plan/step_allocations.h"
#include "snug/session/known_plans.h"
#include "snug/session/pass_size.h"
#include "snug/session/planned_fates.h"
#include "snug/session/session_setup.h"
#include "snug/session/state_park.h"
#include "snug/session/torch_settings.h"
#include "snug/session/trace_recorder.h"
#include "snug/tape/recording.h"
#include "snug/zero/sharding.h"

namespace snug {

namespace {

using session::KnownPlan;

}  // namespace

class Session::Impl {
 public:
  Impl(at::TensorList parameters, const SessionOptions& given)
      : options_(session::completed(given, parameters)),
        device_(*options_.device),
        threads_(session::threads_of(options_.plan)),
        segments_(device_),
        trace_(options_.trace.path, {.device = device_.str(), .about = options_.trace.about},
               options_.trace.steps),
        tracker_({.device = device_,
                  .budget_bytes = memory::Budget::of_tracker(device_, options_.budget_bytes),
                  .sink = trace_.sink()}),
        budget_(device_, options_.budget_bytes,
                plan::outside_or_usual(options_.plan ? options_.plan->predicted.outside_bytes : 0)),
        host_(session::make_store(options_)),
        stage_(first_stage()) {
    budget_.require(options_.predicted ? options_.predicted->budget_use()
                    : options_.plan    ? options_.plan->predicted.peak_bytes
                                       : 0);
    if (options_.plan) known_ = &plans_.add(*std::exchange(options_.plan, std::nullopt), {});
    last_memory_ = memory::process_memory(device_, tracker_.live_bytes());
    recording_ = make_recording(parameters);
    tracker_.adopt(parameters, trace::Category::Parameter);
    tracker_.adopt(options_.adopt, trace::Category::Other);
    options_.adopt.clear();  // they may go before the session
  }
  ~Impl() { park_.let_go_of_tracker(); }

  std::vector<Pass> passes(const at::Tensor& batch) {
    check(batch.dim() > 0 && batch.size(0) > 0, "a batch must have rows, got one of sizes ", batch.sizes());
    const std::int64_t rows = batch.size(0), row_size = std::max<std::int64_t>(1, batch.numel() / rows);
    if (stage_ == Stage::WarmingUp && !search_) search_.emplace();
    if (search_) search_->begin_step(rows * row_size);
    const std::int64_t most = rows_per_pass(rows, row_size),
                       parts = on_all_ranks((rows + most - 1) / most, rows);
    const std::int64_t each = (rows + parts - 1) / parts;
    std::vector<Pass> passes;
    for (std::int64_t first = 0; first < rows; first += each) {
      const std::int64_t count = std::min(each, rows - first);
      passes.push_back({.first = first,
                        .rows = count,
                        .share = static_cast<double>(count) / static_cast<double>(rows_of_all_),
                        .is_last = first + count == rows});
    }
    check(static_cast<std::int64_t>(passes.size()) == parts, "a batch of ", rows,
          " rows on this rank cannot be gone through in the ", parts,
          " passes that another one needs: give all ranks as many rows");
    if (options_.sharding) options_.sharding->expect_passes(parts);
    rows_ = each;
    expect_size({each * row_size, batch.nbytes()}, passes.size() == 1);
    return passes;
  }

  void step(const AnyOptimizer& optimizer) {
    if (options_.sharding) options_.sharding->finish_gradients();
    account().step(optimizer);
    if (options_.sharding) options_.sharding->finish_update();
  }

  void end_step(bool was_graph) {
    if (options_.sharding) options_.sharding->zero_grad();
    const std::uint64_t captured_peak = was_graph ? last_peak_ : 0;
    take_figures();
    last_peak_ = std::max(last_peak_, captured_peak);
    park_.forget_gone();
    tell_of_parked();
    if (const std::string trouble = budget_.recheck(); !trouble.empty()) options_.say(trouble);
    const std::vector<trace::RegionTape> tapes = take_tapes();
    trace_.end_step();
    ++steps_;
    if (device_.is_cuda()) look_at_products();
    if (was_graph) return;
    const bool learns = stage_ != Stage::Watching && stage_ != Stage::Proven && stage_ != Stage::Lean;
    if (ran_out_ && learns) return recover();
    switch (stage_) {
      case Stage::Watching:
        return;
      case Stage::Lean:
        return look_for_a_plan(tapes);
      case Stage::WarmingUp:
        is_short_of_room_ = needs_most_of_the_room();
        return sketch_the_next();
      case Stage::Proven:
        use(*known_);
        is_as_planned_ = !ran_out_;
        if (!ran_out_) look_at(tapes, /*with_memory=*/false);
        return;
      case Stage::Sketched:
        return plan_from_sketch();
      case Stage::Recovering:
        return end_recovery();
      case Stage::Planned:
        // The first step makes an optimizer's states: before them memory says nothing.
        return look_at(tapes, /*with_memory=*/steps_ > 1);
    }
  }

  // As many passes as the rank that needs most; rows_of_all_ are those of all ranks' batches.
  std::int64_t on_all_ranks(std::int64_t parts, std::int64_t rows) {
    rows_of_all_ = rows;
    if (!options_.sharding) return parts;
    rows_of_all_ = 0;
    for (const std::string& text :
         options_.sharding->group().exchange(concat(parts, " ", rows), "passes of a step")) {
      std::int64_t of_rank = 0, rows_of_rank = 0;
      std::istringstream(text) >> of_rank >> rows_of_rank;
      parts = std::max(parts, of_rank);
      rows_of_all_ += rows_of_rank;
    }
    return parts;
  }

  void end_trace() { trace_.finish(); }

  void explain_out_of_memory(const c10::OutOfMemoryError& error) {
    const auto* known = dynamic_cast<const memory::OutOfBudget*>(&error);
    const auto refusal = known ? std::optional(memory::Refusal{known->requested_bytes(), known->alive()})
                               : tracker_.last_refusal();
    if (refusal)
      throw memory::OutOfBudget(*refusal, options_.budget_bytes,
                                memory::what_others_hold(device_) + what_would_fit(*refusal));
  }

  Account account() { return Account(tracker_, host_, &streamed_, &park_); }
  std::uint64_t spare_host_bytes() const {
    if (!options_.host_budget_bytes) return host::default_budget_bytes();
    const std::uint64_t reserved = host_ ? host_->arena().reserved_bytes() : 0;
    return std::min(host::free_host_bytes(),
                    *options_.host_budget_bytes - std::min(*options_.host_budget_bytes, reserved));
  }
  const plan::Plan* plan() const { return known_ ? &known_->plan : nullptr; }
  std::uint64_t last_peak_bytes() const { return last_peak_; }
  Measured measured() const {
    Measured all = measured_;
    if (host_) all.host_bytes = host_->arena().peak_bytes();
    if (recording_) all.recomputed = recording_->totals();
    all.budget_use = budget_.use(all.peak.total, all.memory);
    return all;
  }
  bool has_room_for(std::uint64_t bytes) const {
    const std::uint64_t used = budget_.use(measured_.peak.total, measured_.memory);
    if (options_.budget_bytes && used + bytes > *options_.budget_bytes) return false;
    return !device_.is_cuda() || memory::cuda_device(device_.index()).free_bytes >= bytes;
  }
  void forget_attempt() {
    take_tapes();
    difference_.reset();
    tracker_.reset_peak();
  }
  int plans_made() const { return plans_made_; }
  bool is_as_planned() const { return stage_ == Stage::Planned && is_as_planned_; }

 private:
  enum class Stage {
    Watching,   // nothing to plan
    WarmingUp,  // keeps nothing; there is no plan yet
    Proven,     // keeps nothing, because it is the first; then comes the plan that was given
    Sketched,   // keeps nothing, and a plan is made from it
    Planned,
    Recovering,  // keeps nothing: the step before it ran out of memory
    Lean         // keeps nothing: no plan fits steps that need so much
  };
  static constexpr int kMostSketches = 3;  // in a row that lead to no plan for the step at hand

  Stage first_stage() const {
    if (options_.plan) return options_.prove ? Stage::Proven : Stage::Planned;
    return options_.budget_bytes && !options_.by_hand ? Stage::WarmingUp : Stage::Watching;
  }

  std::unique_ptr<tape::Recording> make_recording(at::TensorList parameters) {
    tape::RecordingOptions recording{.time_replays = true,
                                     .describe = stage_ != Stage::Watching || options_.trace.tapes,
                                     .host = host_,
                                     .prove = options_.prove,
                                     .model = parameters.vec(),
                                     .rest = stage_ != Stage::Watching};
    if (stage_ == Stage::Watching)
      return snug::make_recording({.by_hand = options_.by_hand.value_or(ByHand{})}, recording);
    return std::make_unique<tape::Recording>(stage_ == Stage::Planned ? planned_fates() : lean_fates(),
                                             recording);
  }

  // Of a step that keeps nothing. What comes into a region cannot be recomputed, but it can wait on the host:
  // wherever there is a store it does, because nobody knows before a step how large it is.
  tape::Fates lean_fates() const {
    if (!host_) return tape::Fates::recompute();
    return tape::Fates([](const tape::ValueInfo& value) {
      return value.ordinal == tape::ValueInfo::kInput ? trace::Fate::Offload : trace::Fate::Recompute;
    });
  }

  // A plan that was given and offloads nothing knows nothing of what the queues of a link take: there is no
  // store until a step is not as that plan says.
  void open_store() try {
    if (host_ || !could_offload()) return;
    host_ = std::make_shared<host::Store>(
        device_, host::StoreOptions{.budget_bytes = options_.host_budget_bytes.value_or(0)});
    if (stage_ != Stage::Watching) recording_->offload_to(host_);
  } catch (const Error& error) {  // this machine cannot do it
    options_.say(error.what());
  }

  bool could_offload() const { return has_link() && options_.host_budget_bytes != 0; }
  bool has_link() const {
    return options_.hardware ? options_.hardware->to_host_rate > 0 : device_.is_cuda();
  }

  std::shared_ptr<host::Store> store_for_states() {
    open_store();
    if (!host_)
      options_.say(concat("the optimizer's states stay on the device: ",
                          has_link() ? "`host_budget` gives them no memory"
                                     : "no rate of a link to the host is known (`hardware`)"));
    return host_;
  }

  void look_at_products() {
    machine::keep_products();
    if (has_told_of_products_) return;
    const std::string differ = machine::products_that_differ();
    has_told_of_products_ = !differ.empty();
    if (has_told_of_products_) options_.say(differ);
  }

  // Once, after the first step that did so.
  void tell_of_parked() {
    if (has_told_of_parked_ || park_.bytes() == 0) return;
    has_told_of_parked_ = true;
    const plan::Hardware hardware =
        options_.hardware ? *options_.hardware : machine::hardware_here(device_).hardware;
    const double seconds = plan::streaming_seconds({.bytes = park_.bytes()}, plan::links_of(hardware));
    const std::string cost =
        seconds > 0 ? concat(", ", std::setprecision(3), seconds, " s of a step to the device and back")
                    : std::string();
    options_.say(concat(
        "states of the optimizer wait on the host between steps: ", format_bytes(park_.bytes()), cost));
  }

  // Behind an out-of-memory's first line.
  std::string what_would_fit(const memory::Refusal& refusal) const {
    if (stage_ == Stage::Watching) return "";
    const std::uint64_t outside = budget_bytes() - std::min(budget_bytes(), room_for_tensors());
    const std::uint64_t least = refusal.alive.total + refusal.requested_bytes + outside;
    return concat(". ", what_ran(), ". So run it needs at least ", format_bytes(least), " (", least,
                  " bytes)", stage_ == Stage::Planned ? "; the next one keeps nothing" : "",
                  ". Raise `budget`, ",
                  rows_ == 0   ? "split the batch with Session::passes()"
                  : rows_ == 1 ? "shorten the rows (a pass is one already)"
                               : "take smaller passes",
                  ", or make the region above smaller");
  }

  std::string what_ran() const {
    if (stage_ == Stage::Planned) {
      const std::string planned = format_bytes(known_->plan.predicted.peak_bytes + known_->more_bytes(size_));
      return difference_ ? concat("This step is not the one that was planned, for ", planned, ": ",
                                  difference_->second)
                         : concat("This step needs more than the plan says, ", planned);
    }
    return concat("This step keeps nothing that can be recomputed",
                  host_             ? ", and what comes into a region waits on the host"
                  : could_offload() ? "; what comes into a region it keeps, and the next step offloads it"
                                    : "");
  }

  // The next step may have an optimizer's states as well: twice as much as there is in parameters.
  bool needs_most_of_the_room() {
    if (!host_) return false;
    constexpr double kPlenty = 0.7;
    const std::uint64_t all_states = 2 * tracker_.live()[trace::Category::Parameter];
    const std::uint64_t states = all_states - std::min(all_states, park_.bytes());
    const std::uint64_t sent = host_->arena().peak_bytes();
    return static_cast<double>(last_peak_ + sent - std::min(sent, streamed_.bytes) + states) >
           kPlenty * static_cast<double>(room_for_tensors());
  }

  // What comes into a region of a step that is not as planned waits on the host, as in one that keeps
  // nothing.
  tape::Fates planned_fates() {
    const auto note = [this](session::Difference kind, const std::string& text) {
      if (!difference_) difference_ = {kind, text};
    };
    return tape::Fates(
        [this, planned = session::planned_fates(known_->plan, note)](const tape::ValueInfo& value) {
          const bool is_input = value.ordinal == tape::ValueInfo::kInput;
          return is_input && difference_ && host_ ? trace::Fate::Offload : planned(value);
        });
  }

  void take_figures() {
    ran_out_ = tracker_.has_refused();
    trace::Snapshot peak = tracker_.peak();
    last_peak_ = peak.total;
    if (last_peak_ > measured_.peak.total) measured_.peak = std::move(peak);
    tracker_.reset_peak();
    const std::uint64_t peak_before = last_memory_.peak_reserved_bytes;
    last_memory_ = memory::process_memory(device_, tracker_.live_bytes());
    memory::ProcessMemory highest = last_memory_;
    if (highest.peak_reserved_bytes > peak_before) {  // the allocator may have given some of it back since
      highest.process_bytes += highest.peak_reserved_bytes - highest.reserved_bytes;
      highest.reserved_bytes = highest.peak_reserved_bytes;
    }
    if (highest.process_bytes > measured_.memory.process_bytes) measured_.memory = highest;
  }

  std::vector<trace::RegionTape> take_tapes() {
    if (!recording_ || stage_ == Stage::Sketched) return {};  // a sketch takes its own
    std::vector<trace::RegionTape> tapes = recording_->take_tapes();
    if (steps_ == 0 && options_.trace.tapes) trace_.write(tapes);
    return tapes;
  }

  // A plan that was given says it in rows; one of ours goes by the size of a pass, so that batches of other
  // lengths are split otherwise.
  std::int64_t rows_per_pass(std::int64_t rows, std::int64_t row_size) const {
    if (search_) return std::clamp<std::int64_t>(search_->pass_size() / row_size, 1, rows);
    const std::int64_t planned = known_ ? known_->plan.setting[plan::kMicroBatch] : 0;
    return planned > 0 ? std::min(planned, rows) : rows;
  }

  // Before a step: what passes() says of it.
  void expect_size(const session::StepSize& size, bool is_one_pass) {
    size_ = size;
    const bool has_sizes = known_ ? known_->size.pass > 0 : stage_ == Stage::Lean;
    if (!has_sizes || (stage_ != Stage::Planned && stage_ != Stage::Lean)) return;
    const bool is_hopeless = unfit_.pass > 0 && size_.pass >= unfit_.pass;
    if (is_hopeless) return be_lean();
    const KnownPlan* covering =
        known_ ? plans_.covering(size_, is_one_pass, *known_, budget_bytes()) : nullptr;
    if (!covering) return sketch_the_next();
    if (covering != known_ || stage_ == Stage::Lean) use(*covering);
  }

  // After a step that kept nothing because no plan fits such steps. One that needed less may have a plan.
  void look_for_a_plan(const std::vector<trace::RegionTape>& tapes) {
    const auto has_backward = [](const trace::RegionTape& tape) { return !tape.unpacks.empty(); };
    const bool is_as_large =
        (1 + options_.margin) * static_cast<double>(last_peak_) > static_cast<double>(unfit_.peak_bytes);
    if (ran_out_ || is_as_large || std::ranges::none_of(tapes, has_backward)) return;
    if (const KnownPlan* known = plans_.for_step(tapes)) return use(*known);
    sketch_after(
        concat("this step needed ", format_bytes(last_peak_), ", less than those that no plan fits"));
  }

  void look_at(const std::vector<trace::RegionTape>& tapes, bool with_memory) {
    const auto noticed = std::exchange(difference_, std::nullopt);
    const bool is_too_large = noticed && noticed->first == session::Difference::Larger;
    const std::string difference = noticed ? noticed->second : session::difference(known_->plan, tapes);
    is_as_planned_ = difference.empty();
    if (is_as_planned_ && with_memory) return look_at_memory();
    if (is_as_planned_ || (is_too_large && known_->size.pass > 0)) return;  // the next step says its own size
    if (const KnownPlan* other = plans_.for_step(tapes); other && other != known_) return use(*other);
    if (const std::uint64_t bytes = session::made_bytes(tapes); bytes > session::made_bytes(wanted_)) {
      wanted_ = tapes;
      sketches_ = 0;
    }
    sketch_after(difference);
  }

  // By what tensors hold: what torch's allocator holds may be left from an earlier, larger step.
  void look_at_memory() {
    const std::uint64_t predicted =
        known_->plan.predicted.tensor_bytes + unplanned_bytes_ + known_->more_bytes(size_);
    const bool is_as_predicted =
        known_->plan.predicted.tensor_bytes == 0 ||
        static_cast<double>(last_peak_) <= (1 + options_.margin) * static_cast<double>(predicted);
    if (is_as_predicted) return look_at_allocator();
    is_as_planned_ = false;
    const std::string why = concat("the tensors of a step needed ", format_bytes(last_peak_), " where ",
                                   format_bytes(predicted), " were predicted");
    if (!planner_ || known_ != planned_) return sketch_after(why);
    unplanned_bytes_ += last_peak_ - predicted;
    options_.say(why);
    decide();
  }

  // The model of torch's allocator knows the step that was sketched, on one stream. Whatever else makes it
  // empty its cache gets room; what steps of other sizes left in it is no reason.
  void look_at_allocator() {
    const std::int64_t before = std::exchange(retries_, last_memory_.retries);
    const bool is_of_that_size = known_->size.pass == 0 || known_->size.pass == size_.pass;
    if (!planner_ || known_ != planned_ || last_memory_.retries == before || !is_of_that_size) return;
    const std::uint64_t more = budget_bytes() / 64;
    if (gap_bytes_ + more > budget_bytes() / 4) return;
    gap_bytes_ += more;
    options_.say("torch's allocator had to empty its cache: the next plan leaves it more room");
    decide();
  }

  void sketch_after(const std::string& why) {
    if (++sketches_ > kMostSketches) {
      if (sketches_ == kMostSketches + 1)
        options_.say(why + "; steps differ too much to be planned: such regions are recomputed from now on");
      return;
    }
    options_.say(why + "; the next step recomputes everything while it is sketched; a new plan follows");
    sketch_the_next();
  }

  void sketch_the_next() {
    trace_.finish();  // a sketch takes its place
    open_store();
    sketcher_.begin(*recording_, lean_fates());
    stage_ = Stage::Sketched;
  }

  void plan_from_sketch() try {
    // Where there is plenty of room nothing has to move: that is slower.
    trace::Sketch sketch = sketcher_.finish(*recording_, is_short_of_room_ || needs_most_of_the_room());
    std::erase_if(sketch.calls, [](const auto& call) { return call.nodes.empty(); });
    if (sketch.calls.empty()) return wait_for_a_backward();
    idle_steps_ = 0;
    const bool is_searching = search_ && !known_ && unfit_.pass == 0;
    plan::Candidate candidate = candidate_of(std::move(sketch));
    if (!is_searching) candidates_.clear();
    if (candidates_.empty()) {
      sketched_.clear();
      planner_.reset();
    }
    candidates_.push_back(std::move(candidate));
    sketched_[candidates_.back().model.get()] = {size_, sketcher_.left()};
    if (is_searching && try_larger_pass()) return sketch_the_next();
    plan_from_candidates();
  } catch (const std::exception& error) {
    do_without_sketch(error.what());
  }

  void do_without_sketch(const std::string& why) {
    candidates_.clear();
    if (known_) use(*known_);
    if (known_ || sketches_ < kMostSketches) return sketch_after(why);
    if (sketches_++ == kMostSketches) options_.say(why + "; everything is recomputed from now on");
    recording_->use(lean_fates());
    stage_ = Stage::WarmingUp;
  }

  // Autograd lets go of what a step that ran out of memory left only in the next backward: from that step,
  // too, nothing is learnt. If it was a larger pass that was tried, the next ones are as large as the last
  // that fitted.
  void recover() {
    const auto noticed = std::exchange(difference_, std::nullopt);
    const bool was_planned = stage_ == Stage::Planned;
    plan_ran_out_ = was_planned || (plan_ran_out_ && stage_ == Stage::Recovering);
    if (was_planned)
      options_.say(concat(noticed ? noticed->second + "; this step" : "a step that was as planned",
                          " ran out of memory; the next ones recompute everything; a new plan follows"));
    if (stage_ == Stage::Sketched) sketcher_.abandon(*recording_);
    if (!candidates_.empty()) search_->end(sketched_.at(candidates_.back().model.get()).size.pass);
    open_store();
    is_short_of_room_ = host_ != nullptr;
    recording_->use(lean_fates());
    stage_ = Stage::Recovering;
    is_as_planned_ = false;
  }

  void end_recovery() try {
    if (!candidates_.empty()) return plan_from_candidates();
    if (plan_ran_out_ || !known_ || known_->size.pass == 0) return sketch_the_next();
    use(*known_);  // the next step says its own size
    is_as_planned_ = false;
  } catch (const std::exception& error) {
    do_without_sketch(error.what());
  }

  void plan_from_candidates() {
    std::ranges::stable_sort(candidates_, std::greater(), [](const plan::Candidate& candidate) {
      return candidate.setting[plan::kMicroBatch];
    });
    leave_comparable();
    planner_.emplace(std::exchange(candidates_, {}), plan::overhead_of(*options_.hardware));
    outside_bytes_ = budget_.settle_outside();
    unplanned_bytes_ = 0;
    decide();
  }

  // An evaluation, or a warm-up; or it runs where nobody looks.
  void wait_for_a_backward() {
    if (++idle_steps_ == kMostSketches)
      options_.say(concat("no backward was seen in ", idle_steps_,
                          " steps: a session sees what runs on the thread that made it"));
    sketch_the_next();
  }

  plan::Candidate candidate_of(trace::Sketch sketch) const {
    plan::Links links = plan::links_of(*options_.hardware);
    links.host_bytes = options_.host_budget_bytes.value_or(links.host_bytes);
    const auto model = std::make_shared<const plan::StepModel>(
        std::move(sketch), /*passes=*/0, plan::MeasuredCosts(*options_.hardware), links, streamed_);
    plan::Setting setting = known_ ? known_->plan.setting : plan::Setting{};
    if (rows_ > 0) setting.levers[plan::kMicroBatch.name] = rows_;
    setting.accumulation = model->sketched_passes();
    return {std::move(setting), model};
  }

  // Batches of other lengths are other work: of such candidates the one is left that is fastest by its batch.
  void leave_comparable() {
    const auto batch_of = [&](const plan::Candidate& candidate) {
      return sketched_.at(candidate.model.get()).size.batch_bytes;
    };
    const std::uint64_t first = batch_of(candidates_.front());
    if (std::ranges::all_of(candidates_, [&](const auto& other) { return batch_of(other) == first; })) return;
    // Of those that do not fit, the one that misses least.
    const auto rank = [&](const plan::Candidate& candidate) {
      const plan::Planner alone({candidate}, plan::overhead_of(*options_.hardware));
      const plan::Decision decision = alone.decide(budget_bytes());
      return decision.fits ? std::pair(0, decision.taken.seconds / static_cast<double>(batch_of(candidate)))
                           : std::pair(1, static_cast<double>(decision.missing_bytes));
    };
    candidates_ = {*std::ranges::min_element(candidates_, {}, rank)};
  }

  // Where one row had plenty of room, passes are to fit without anything on the host: that is slower.
  bool try_larger_pass() {
    const plan::StepModel::PassMemory lean = candidates_.back().model->lean_pass(is_short_of_room_);
    return search_->try_larger({size_.pass, lean.own_bytes}, rows_, static_cast<double>(room_for_tensors()),
                               static_cast<double>(lean.held_bytes));
  }

  std::uint64_t room_for_tensors() const { return budget_.room_for_tensors(last_memory_); }

  // On a GPU from what its allocator holds once its cache, which no plan asked for, is gone.
  plan::Decision fastest_that_fits() {
    budget_.drop_cache();
    const trace::AllocatorLayout layout = tracker_.layout();
    const auto held = [&](const plan::StepModel& model) {
      return plan::as_left_by(model.sketch(), sketched_.at(&model).left, layout);
    };
    return plan::decide_within(*planner_, budget_bytes(), {machine::memory_bytes(device_), held});
  }

  void decide() {
    plan::Overhead overhead = planner_->overhead();
    overhead.outside_bytes = outside_bytes_ + unplanned_bytes_ + gap_bytes_;
    planner_->set_overhead(overhead);
    const plan::Decision decision = fastest_that_fits();
    if (!decision.fits) return stay_lean(decision);
    const session::StepSize size = sketched_.at(planner_->candidate(decision.taken).model.get()).size;
    const KnownPlan& made = plans_.add(
        planner_->write_down(decision, known_ ? known_->plan.step : identity_of({.device = device_})), size);
    planned_ = &made;
    ++plans_made_;
    if (size.pass >= unfit_.pass) unfit_ = {};
    if (search_ && (!known_ || planner_->candidates().size() > 1)) search_->end(size.pass);
    if (session::difference(made.plan, wanted_).empty()) sketches_ = 0;
    use(size.pass > 0 ? made : plans_.largest_like(made));
    options_.say(concat("planned from a step of this run: ", format_bytes(made.plan.predicted.peak_bytes)));
  }

  // Steps that keep nothing fit: such a one was sketched.
  void stay_lean(const plan::Decision& decision) {
    unfit_ = {sketched_.at(planner_->candidate(decision.taken).model.get()).size.pass, last_peak_};
    if (search_ && search_->pass_size() >= unfit_.pass) search_->end(unfit_.pass / 2);
    options_.say(concat("no plan fits `budget` ", format_bytes(decision.budget_bytes), ": the leanest needs ",
                        format_bytes(decision.taken.peak_bytes), ", most of it in ", decision.binds,
                        "; everything is recomputed",
                        host_ ? ", and what comes into a region waits on the host" : ""));
    be_lean();
  }

  void be_lean() {
    recording_->use(lean_fates());
    stage_ = Stage::Lean;
    is_as_planned_ = false;
  }

  void use(const KnownPlan& known) {
    known_ = &known;
    budget_.drop_cache();  // steps under another one left it
    retries_ = last_memory_.retries;
    reserve_host(known.plan.predicted.host_bytes);
    recording_->use(planned_fates());
    stage_ = Stage::Planned;
    is_as_planned_ = true;
  }

  // So that no step has to. What finds no room there stays on the device.
  void reserve_host(std::uint64_t bytes) try {
    if (host_) host_->arena().reserve(bytes);
  } catch (const Error& error) {
    options_.say(error.what());
  }

  // A plan that was given need not have one.
  std::uint64_t budget_bytes() const {
    return options_.budget_bytes.value_or(std::numeric_limits<std::int64_t>::max());
  }

  SessionOptions options_;
  const c10::Device device_;
  session::ThreadCount threads_;
  session::GrowingSegments segments_;
  session::TraceRecorder trace_;
  std::int64_t rows_of_all_ = 0;  // of the step's batch, or of all ranks'
  // Brings back what waits there when nobody limits memory any more.
  session::StatePark park_{{.tracker = &tracker_,
                            .streamed = &streamed_,
                            .open_store = [this] { return store_for_states(); },
                            .say = [this](const std::string& text) { options_.say(text); }}};
  memory::Tracker tracker_;  // refuses a second session before that one
  memory::Budget budget_;    // touches the first one's cap
  std::shared_ptr<host::Store> host_;
  plan::Streamed streamed_;  // as its step says
  capture::Sketcher sketcher_{tracker_};
  hooks::OperatorListenerGuard sketcher_guard_{sketcher_};
  Stage stage_;
  bool is_short_of_room_ = false;               // was the first step, so that larger passes may need the host
  std::unique_ptr<tape::Recording> recording_;  // null if there is nothing to do
  session::KnownPlans plans_;
  const KnownPlan* known_ = nullptr;  // the one in use
  std::optional<plan::Planner> planner_;
  const KnownPlan* planned_ = nullptr;                     // the last that it made
  std::uint64_t outside_bytes_ = 0, unplanned_bytes_ = 0;  // that steps hold beside its sketch
  // The step that a model was made from.
  struct SketchedStep {
    session::StepSize size;
    std::unordered_map<trace::BlockId, std::uint32_t> left;
  };
  std::unordered_map<const plan::StepModel*, SketchedStep> sketched_;
  // The step that no plan fits, as it was when that was found: what passes() said of it, and what it needed.
  struct Unfit {
    std::int64_t pass = 0;
    std::uint64_t peak_bytes = 0;
  };
  Unfit unfit_;
  std::uint64_t gap_bytes_ = 0;  // for torch's allocator, beyond what its model says
  std::int64_t retries_ = 0;
  // What of this step was not as planned, first.
  std::optional<std::pair<session::Difference, std::string>> difference_;
  session::StepSize size_;                     // of the step at hand
  std::int64_t rows_ = 0;                      // of its passes
  std::optional<session::PassSearch> search_;  // if passes() was asked from the first step on, without a plan
  std::vector<plan::Candidate> candidates_;    // sketched so far
  Measured measured_;
  memory::ProcessMemory last_memory_;
  std::uint64_t last_peak_ = 0;
  bool ran_out_ = false;       // of memory, the last step that ended
  bool plan_ran_out_ = false;  // if it recovers: from a step under the plan in use
  std::int64_t steps_ = 0;
  std::vector<trace::RegionTape> wanted_;  // of the largest step that no plan was for
  int sketches_ = 0;                       // since then, none of such a step
  int idle_steps_ = 0;                     // in a row, sketched and without a backward
  int plans_made_ = 0;
  bool is_as_planned_ = true;
  bool has_told_of_parked_ = false, has_told_of_products_ = false;
};

Session::Session(at::TensorList parameters, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(parameters, options)) {}
Session::~Session() = default;

std::vector<Pass> Session::passes(const at::Tensor& batch) {
  return impl_->passes(batch);
}
void Session::end_step(bool was_graph) {
  impl_->end_step(was_graph);
}
void Session::step(const AnyOptimizer& optimizer) {
  impl_->step(optimizer);
}
void Session::park(const AnyOptimizer& optimizer) {
  account().park(optimizer);
}
void Session::unpark(const AnyOptimizer& optimizer, ReadStates where) {
  account().unpark(optimizer, where);
}
void Session::end_trace() {
  impl_->end_trace();
}
void Session::explain_out_of_memory(const c10::OutOfMemoryError& error) {
  impl_->explain_out_of_memory(error);
}
Account Session::account() {
  return impl_->account();
}
std::uint64_t Session::spare_host_bytes() const {
  return impl_->spare_host_bytes();
}
const plan::Plan* Session::plan() const {
  return impl_->plan();
}
std::uint64_t Session::last_peak_bytes() const {
  return impl_->last_peak_bytes();
}
Measured Session::measured() const {
  return impl_->measured();
}
std::uint64_t Session::predicted_bytes() const {
  return impl_->plan() ? impl_->plan()->predicted.peak_bytes : 0;
}
void Session::forget_attempt() {
  impl_->forget_attempt();
}
bool Session::has_room_for(std::uint64_t bytes) const {
  return impl_->has_room_for(bytes);
}
int Session::plans_made() const {
  return impl_->plans_made();
}
bool Session::is_as_planned() const {
  return impl_->is_as_planned();
}

}  // namespace snug
