#include "snug/session/session.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/memory/process_memory.h"
#include "snug/session/planned_fates.h"
#include "snug/tape/recording.h"

namespace snug {

namespace {

class ThreadCount {
 public:
  explicit ThreadCount(const plan::Plan& plan) : before_(at::get_num_threads()) {
    const auto planned = plan.step.find("threads");
    if (planned != plan.step.end() && planned->is_number_integer() && planned->get<int>() > 0)
      at::set_num_threads(planned->get<int>());
  }
  ~ThreadCount() { at::set_num_threads(before_); }
  ThreadCount(const ThreadCount&) = delete;  // it is a stretch of time
  ThreadCount& operator=(const ThreadCount&) = delete;

 private:
  int before_;
};

class CudaCap {
 public:
  CudaCap(c10::Device device, std::uint64_t budget) : device_(device) {
    if (device_.is_cuda()) memory::cap_cuda_memory(index(), budget);
  }
  ~CudaCap() {
    try {
      if (device_.is_cuda()) memory::cap_cuda_memory(index(), std::nullopt);
    } catch (const std::exception&) {  // the device failed, and whoever uses it next will say so
    }
  }
  CudaCap(const CudaCap&) = delete;  // it is a stretch of time
  CudaCap& operator=(const CudaCap&) = delete;

 private:
  c10::DeviceIndex index() const { return std::max<c10::DeviceIndex>(device_.index(), 0); }
  c10::Device device_;
};

void say_on_stderr(const std::string& text) {
  std::fprintf(stderr, "snug: %s\n", text.c_str());
}

}  // namespace

class Session::Impl {
 public:
  Impl(at::TensorList parameters, plan::Plan plan, std::shared_ptr<const plan::Planner> planner,
       const SessionOptions& options)
      : plan_(std::move(plan)),
        budget_(plan_.budget_bytes),
        planner_(std::move(planner)),
        options_(options),
        threads_(plan_),
        cap_(options.device, budget_),
        tracker_({.device = options.device,
                  .budget_bytes = options.device.is_cuda() ? std::nullopt : std::optional(budget_)}) {
    if (!options_.say) options_.say = say_on_stderr;
    check(!options_.lean_at_first || planner_,
          "a session that is lean at first needs a planner for what comes then");
    if (options_.lean_at_first) use(planner_->decide(0));
    tracker_.adopt(parameters, trace::Category::Parameter);
    record(session::planned_fates(plan_));
  }

  void end_step() {
    const std::uint64_t peak = tracker_.peak_bytes();
    peak_ = std::max(peak_, peak);
    tracker_.reset_peak();
    const std::vector<trace::RegionTape> tapes = recording_->take_tapes();
    if (as_planned) look_at(tapes);
    if (as_planned && ++steps_ == kStepsToSettle) compare(peak);
  }

  const plan::Plan& plan() const { return plan_; }
  std::uint64_t peak() const { return peak_; }

  bool planned_again = false;
  bool as_planned = true;

 private:
  static constexpr int kStepsToSettle = 2;  // the first makes the optimizer's states

  void record(tape::Fates fates) {
    recording_.reset();  // one at a time
    recording_.emplace(std::move(fates), tape::RecordingOptions{.describe = true});
  }

  void look_at(const std::vector<trace::RegionTape>& tapes) {
    for (const trace::RegionTape& tape : tapes) {
      if (tape.unpacks.empty()) continue;  // no backward: an evaluation, or a step that threw
      const auto planned = std::ranges::find(plan_.regions, tape.region, &plan::RegionPlan::region);
      try {
        check(planned != plan_.regions.end(), "region \"", tape.region, "\" is not in the plan");
        plan::check_matches(*planned, tape);
      } catch (const Error& error) {
        options_.say(concat(error.what(), "; from here on all that can be re-made is"));
        as_planned = false;
        return record(tape::Fates::recompute());
      }
    }
  }

  void compare(std::uint64_t peak) {
    if (!planner_) return;
    const std::uint64_t predicted = plan_.predicted.peak_bytes;
    // On CUDA the plan's figure holds what no tensor needs: it says nothing of this peak.
    const std::uint64_t more = !options_.device.is_cuda() && peak > predicted ? peak - predicted : 0;
    const bool is_off = static_cast<double>(more) > options_.margin * static_cast<double>(predicted);
    if (!is_off && !options_.lean_at_first) return;
    if (is_off)
      options_.say(concat("the step needed ", format_bytes(peak), " where ", format_bytes(predicted),
                          " were predicted: planned again with ", format_bytes(more), " less"));
    planned_again = is_off;
    use(planner_->decide(budget_ - std::min(budget_, more)));
    record(session::planned_fates(plan_));
  }

  void use(const plan::Decision& decision) { plan_ = planner_->write_down(decision, plan_.step); }

  plan::Plan plan_;
  const std::uint64_t budget_;
  std::shared_ptr<const plan::Planner> planner_;
  SessionOptions options_;
  ThreadCount threads_;
  CudaCap cap_;
  memory::Tracker tracker_;
  std::optional<tape::Recording> recording_;
  std::uint64_t peak_ = 0;
  int steps_ = 0;
};

Session::Session(at::TensorList parameters, PlannedStep planned, const SessionOptions& options)
    : impl_(
          std::make_unique<Impl>(parameters, std::move(planned.plan), std::move(planned.planner), options)) {}
Session::Session(at::TensorList parameters, plan::Plan plan, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(parameters, std::move(plan), nullptr, options)) {}
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
  return impl_->planned_again;
}
bool Session::is_as_planned() const {
  return impl_->as_planned;
}

}  // namespace snug
