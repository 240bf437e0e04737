#include "snug/session/session.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdio>
#include <list>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/capture/sketcher.h"
#include "snug/memory/device_budget.h"
#include "snug/memory/process_memory.h"
#include "snug/plan/cost.h"
#include "snug/plan/planner.h"
#include "snug/session/hardware_of.h"
#include "snug/session/planned_fates.h"
#include "snug/tape/recording.h"

namespace snug {

namespace {

// Torch counts threads per thread. Sessions of one end in any order: the last that is left counts.
class ThreadCount {
 public:
  explicit ThreadCount(const plan::Plan& plan) {
    const int before = at::get_num_threads();
    if (wishes.empty()) usual = before;
    const auto planned = plan.step.find("threads");
    const bool is_planned =
        planned != plan.step.end() && planned->is_number_integer() && planned->get<int>() > 0;
    place_ = wishes.insert(wishes.end(), is_planned ? planned->get<int>() : before);
    at::set_num_threads(*place_);
  }
  ~ThreadCount() {
    wishes.erase(place_);
    at::set_num_threads(wishes.empty() ? usual : wishes.back());
  }
  ThreadCount(const ThreadCount&) = delete;  // it is a stretch of time
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  static thread_local std::list<int> wishes;
  static thread_local int usual;
  std::list<int>::iterator place_;
};
thread_local std::list<int> ThreadCount::wishes;
thread_local int ThreadCount::usual = 0;

// Of torch's CUDA allocator.
class GrowingSegments {
 public:
  explicit GrowingSegments(c10::Device device) : device_(device) {
    if (device_.is_cuda()) grew_ = memory::let_cuda_segments_grow(true);
  }
  ~GrowingSegments() {
    if (device_.is_cuda()) memory::let_cuda_segments_grow(grew_);
  }
  GrowingSegments(const GrowingSegments&) = delete;  // it is a stretch of time
  GrowingSegments& operator=(const GrowingSegments&) = delete;

 private:
  c10::Device device_;
  bool grew_ = false;
};

// What it does not say is not checked: it was written by hand.
void check_is_for(const plan::Plan& plan, c10::Device device) {
  const auto expect = [&](const char* key, const std::string& here) {
    const auto planned = plan.step.find(key);
    check(planned == plan.step.end() || *planned == here, "the plan is for ", key, " ",
          planned == plan.step.end() ? "" : planned->dump(), ", this is ", here);
  };
  expect("device", device.is_cuda() ? "cuda" : "cpu");
  expect("torch", TORCH_VERSION);
}

// Null if nothing of the plan is offloaded: a new plan then uses the process's own.
std::shared_ptr<host::Store> store_for(const plan::Plan& plan, c10::Device device) {
  if (plan.predicted.host_bytes == 0) return nullptr;
  return std::make_shared<host::Store>(device,
                                       host::StoreOptions{.reserve_bytes = plan.predicted.host_bytes});
}

void say_on_stderr(const std::string& text) {
  std::fprintf(stderr, "snug: %s\n", text.c_str());
}

}  // namespace

class Session::Impl {
 public:
  Impl(at::TensorList parameters, plan::Plan plan, const SessionOptions& options)
      : plan_((check_is_for(plan, options.device), std::move(plan))),
        options_(options),
        hardware_(options.hardware ? *options.hardware : session::hardware_of(options.device)),
        threads_(plan_),
        segments_(options.device),
        tracker_(
            {.device = options.device,
             .budget_bytes = options.device.is_cuda() ? std::nullopt : std::optional(plan_.budget_bytes)}),
        budget_(options.device, plan_.budget_bytes, plan::outside_or_usual(plan_.predicted.outside_bytes)),
        stage_(options.lean_at_first.value_or(options.device.is_cuda()) ? Stage::First
               : options.prove                                          ? Stage::Proven
                                                                        : Stage::Planned),
        recording_(stage_ == Stage::Planned ? planned_fates() : tape::Fates::recompute(),
                   {.describe = true,
                    .host = store_for(plan_, options.device),
                    .prove = options.prove,
                    .model = parameters.vec(),
                    .rest = true}) {
    if (!options_.say) options_.say = say_on_stderr;
    tracker_.adopt(parameters, trace::Category::Parameter);
    tracker_.adopt(options.adopt, trace::Category::Other);
    options_.adopt.clear();  // they may go before the session
  }

  void end_step() {
    const std::uint64_t peak = tracker_.peak_bytes();
    peak_ = std::max(peak_, peak);
    tracker_.reset_peak();
    ++steps_;
    if (const std::string trouble = budget_.recheck(); !trouble.empty()) options_.say(trouble);
    switch (stage_) {
      case Stage::First:
        return sketch_the_next();
      case Stage::Proven:
        return use_plan();
      case Stage::Sketched:
        return plan_from_sketch();
      case Stage::Planned:
        return look_at(recording_.take_tapes(), peak);
      case Stage::Lean:
        recording_.take_tapes();
    }
  }

  const plan::Plan& plan() const { return plan_; }
  std::uint64_t peak() const { return peak_; }
  bool was_planned_again() const { return replanned_; }
  bool is_as_planned() const { return stage_ == Stage::Planned; }

 private:
  enum class Stage { First, Proven, Sketched, Planned, Lean };
  static constexpr int kMostSketches = 3;  // of a loop that cannot be planned, before it is lean for good

  tape::Fates planned_fates() {
    return session::planned_fates(plan_, [this](const std::string& text) {
      if (too_much_.empty()) too_much_ = text;
    });
  }

  // The first step has shown what cannot be re-made. A plan that does not know is for another step.
  void use_plan() {
    const std::vector<trace::RegionTape> tapes = recording_.take_tapes();
    recording_.use(planned_fates());
    stage_ = Stage::Planned;
    look_at(tapes, /*peak=*/0);
  }

  void look_at(const std::vector<trace::RegionTape>& tapes, std::uint64_t peak) {
    const std::string difference = how_it_differs(tapes, peak);
    if (difference.empty()) return;
    if (replanned_) return be_lean(difference);
    sketch_or_be_lean(difference);
  }

  std::string how_it_differs(const std::vector<trace::RegionTape>& tapes, std::uint64_t peak) {
    if (!too_much_.empty()) return std::exchange(too_much_, "");
    for (const trace::RegionTape& tape : tapes) {
      if (tape.unpacks.empty()) continue;  // no backward: an evaluation, or a step that threw
      const auto planned = std::ranges::find(plan_.regions, tape.region, &plan::RegionPlan::region);
      if (planned == plan_.regions.end()) return concat("region \"", tape.region, "\" is not in the plan");
      try {
        plan::check_matches(*planned, tape);
      } catch (const Error& error) {
        return error.what();
      }
    }
    // The first step makes the optimizer's states: before them the peak says nothing. On CUDA the plan's
    // figure holds what no tensor needs.
    const std::uint64_t predicted = plan_.predicted.peak_bytes;
    if (steps_ < 2 || options_.device.is_cuda() ||
        static_cast<double>(peak) <= (1 + options_.margin) * static_cast<double>(predicted))
      return "";
    return concat("the step needed ", format_bytes(peak), " where ", format_bytes(predicted),
                  " were predicted");
  }

  void sketch_or_be_lean(const std::string& why) {
    if (++sketches_ > kMostSketches) return be_lean(why);
    options_.say(why + "; the next step keeps nothing, then there is a new plan");
    sketch_the_next();
  }

  void sketch_the_next() {
    sketcher_.begin(recording_);
    stage_ = Stage::Sketched;
  }

  void plan_from_sketch() try {
    trace::Sketch sketch = sketcher_.finish(recording_);
    std::erase_if(sketch.calls, [](const auto& call) { return call.nodes.empty(); });
    if (sketch.calls.empty()) return sketch_the_next();  // no backward in this step
    const auto passes = std::ranges::count(sketch.calls, sketch.calls.front().tape.region,
                                           [](const auto& call) { return call.tape.region; });
    const plan::Planner planner({{.micro_batch = plan_.micro_batch,
                                  .accumulation = plan_.accumulation,
                                  .head_chunks = plan_.head_chunks,
                                  .model = std::make_shared<const plan::StepModel>(
                                      std::move(sketch), static_cast<double>(passes),
                                      plan::MeasuredCosts(hardware_), plan::links_of(hardware_))}},
                                plan::overhead_of(hardware_));
    const plan::Decision decision = planner.decide(plan_.budget_bytes);
    plan::Plan next = planner.write_down(decision, plan_.step);
    if (is_of_a_smaller_step(next)) {
      options_.say("this step is smaller than the one that was planned for: the plan stays");
      return use(plan_);
    }
    use(std::move(next));
    replanned_ = true;
    options_.say(concat("planned again from a step of this run: ", format_bytes(plan_.predicted.peak_bytes),
                        decision.fits ? "" : ", which is beyond the budget by ",
                        decision.fits ? "" : format_bytes(decision.missing_bytes)));
  } catch (const std::exception& error) {
    sketch_or_be_lean(error.what());
  }

  // It would keep more than the step that was planned for has room for.
  bool is_of_a_smaller_step(const plan::Plan& next) const {
    bool is_smaller = false;
    for (const plan::RegionPlan& region : next.regions) {
      const auto known = std::ranges::find(plan_.regions, region.region, &plan::RegionPlan::region);
      if (known == plan_.regions.end() || known->structure != region.structure || known->bytes < region.bytes)
        return false;
      is_smaller |= known->bytes > region.bytes;
    }
    return is_smaller;
  }

  void use(plan::Plan plan) {
    plan_ = std::move(plan);
    recording_.use(planned_fates());
    stage_ = Stage::Planned;
  }

  void be_lean(const std::string& why) {
    options_.say(why + "; from here on all that can be re-made is");
    recording_.use(tape::Fates::recompute());
    stage_ = Stage::Lean;
  }

  plan::Plan plan_;
  SessionOptions options_;
  const plan::Hardware hardware_;
  ThreadCount threads_;
  GrowingSegments segments_;
  memory::Tracker tracker_;      // refuses a second session before that one
  memory::DeviceBudget budget_;  // touches the first one's cap
  capture::Sketcher sketcher_{tracker_};
  hooks::OperatorListenerGuard sketcher_guard_{sketcher_};
  Stage stage_;
  tape::Recording recording_;
  std::string too_much_;  // what a region of this step made more than planned
  std::uint64_t peak_ = 0;
  int steps_ = 0;
  int sketches_ = 0;  // of steps that were not as planned
  bool replanned_ = false;
};

Session::Session(at::TensorList parameters, plan::Plan plan, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(parameters, std::move(plan), options)) {}
Session::~Session() = default;

void Session::end_step() {
  impl_->end_step();
}
const plan::Plan& Session::plan() const {
  return impl_->plan();
}
std::uint64_t Session::peak_bytes() const {
  return impl_->peak();
}
std::uint64_t Session::predicted_bytes() const {
  return impl_->plan().predicted.peak_bytes;
}
bool Session::was_planned_again() const {
  return impl_->was_planned_again();
}
bool Session::is_as_planned() const {
  return impl_->is_as_planned();
}

}  // namespace snug
