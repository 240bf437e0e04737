#include "snug/tape/recording.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <deque>
#include <unordered_map>
#include <utility>

#include "snug/base/error.h"
#include "snug/hooks/functions.h"
#include "snug/tape/figures.h"
#include "snug/tape/pure.h"
#include "snug/tape/quiet.h"
#include "snug/tape/saved_value.h"
#include "snug/tape/stream_capture.h"
#include "snug/tape/tape.h"

namespace snug::tape {

namespace {

// What this thread's forward is in.
struct Forward {
  std::shared_ptr<Tape> tape;
  std::weak_ptr<Tape> last;
  std::deque<Level> levels;  // a kernel may open a region while its operator is being recorded
  std::unordered_map<hooks::RegionId, std::uint64_t> calls;  // of this forward
};
thread_local Forward forward;

}  // namespace

class Recording::Impl final : public hooks::OperatorListener,
                              public hooks::SavedTensorPolicy,
                              public hooks::RegionListener,
                              public hooks::FunctionListener {
 public:
  Impl(Fates fates, const RecordingOptions& options)
      : fates_(std::move(fates)),
        options_(options_of_tapes(options)),
        model_(storages_of(options.model)),
        outer_(std::exchange(innermost, this)) {
    figures_->sketch = options.sketch;
    if (options.watch_functions.value_or(hooks::is_python_here())) functions_guard_.emplace(*this);
  }
  ~Impl() override {
    if (std::ranges::any_of(forward.levels, [&](const Level& level) { return level.fates == &fates_; })) {
      forward.levels.clear();  // it ends inside a region
      std::exchange(forward.tape, nullptr)->end_forward();
    }
    figures_->sketch = nullptr;
    Impl** place = &innermost;  // they may end in any order
    while (*place && *place != this) place = &(*place)->outer_;
    if (*place) *place = outer_;
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void use(Fates fates, SketchListener* sketch) {
    check(forward.levels.empty(),
          "the fates of a recording were changed inside a region: change them between steps");
    fates_ = std::move(fates);
    figures_->sketch = sketch;
  }

  void before_forward(hooks::RegionId region) override {
    if (innermost != this || Quiet::on()) return;
    if (!forward.tape) {
      if (!at::GradMode::is_enabled()) return;  // nothing is saved: an evaluation
      check(!is_capturing_stream(), "region \"", hooks::region_name(region),
            "\" cannot be recorded while a CUDA graph is captured: capture without a Recording");
      const std::shared_ptr<Tape> previous = last_before_its_backward();
      if (!previous) forward.calls.clear();
      const std::shared_ptr<Pass> pass = previous ? previous->pass() : std::make_shared<Pass>();
      const std::uint64_t call = ++forward.calls[region];
      forward.tape =
          std::make_shared<Tape>(region, options_->place + kApart * call, options_, model_, figures_, pass);
      pass->add(forward.tape);
      forward.last = forward.tape;
    }
    forward.levels.push_back({&fates_, hooks::region_name(region), options_->record_generators});
    forward.tape->enter(&forward.levels.back());
  }

  void after_forward(hooks::RegionId) override {
    if (innermost != this || Quiet::on() || forward.levels.empty()) return;
    forward.levels.pop_back();
    forward.tape->enter(forward.levels.empty() ? nullptr : &forward.levels.back());
    if (forward.levels.empty()) std::exchange(forward.tape, nullptr)->end_forward();
  }

  void on_operator(hooks::OperatorCall& call) override {
    if (innermost != this || !forward.tape || Quiet::on()) return call.proceed();
    const std::shared_ptr<Tape> tape = forward.tape;
    tape->record(call, forward.levels.back());
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override {
    if (innermost != this || !forward.tape || Quiet::on()) return nullptr;
    return std::make_unique<SavedValue>(forward.tape);
  }

  std::function<void()> on_function(const std::string& name, at::TensorList inputs) override {
    if (innermost != this || !forward.tape || Quiet::on() || is_pure(name)) return {};
    return [tape = forward.tape, outer = forward.tape->enter_function(name, inputs)] {
      tape->leave_function(outer);
    };
  }

  const std::shared_ptr<Figures>& figures() const { return figures_; }

 private:
  static constexpr std::uint64_t kApart = 0x9E3779B97F4A7C15;

  // A graph may outlive the model.
  static std::shared_ptr<const RecordingOptions> options_of_tapes(RecordingOptions options) {
    options.model.clear();
    return std::make_shared<const RecordingOptions>(std::move(options));
  }

  static std::shared_ptr<const ModelStorages> storages_of(const std::vector<at::Tensor>& tensors) {
    auto storages = std::make_shared<ModelStorages>();
    for (const at::Tensor& tensor : tensors)
      if (tensor.defined() && tensor.has_storage()) storages->insert(tensor.storage().unsafeGetStorageImpl());
    return storages;
  }

  static std::shared_ptr<Tape> last_before_its_backward() {
    std::shared_ptr<Tape> last = forward.last.lock();
    return last && !last->has_begun_backward() ? last : nullptr;
  }

  static thread_local Impl* innermost;

  Fates fates_;
  const std::shared_ptr<const RecordingOptions> options_;
  const std::shared_ptr<const ModelStorages> model_;
  std::shared_ptr<Figures> figures_ = std::make_shared<Figures>();
  Impl* outer_;
  hooks::RegionListenerGuard regions_guard_{*this};
  hooks::OperatorListenerGuard operators_guard_{*this};
  hooks::SavedTensorGuard saves_guard_{*this};
  std::optional<hooks::FunctionListenerGuard> functions_guard_;
};

thread_local Recording::Impl* Recording::Impl::innermost = nullptr;

Recording::Recording(Fates fates, const RecordingOptions& options)
    : impl_(std::make_unique<Impl>(std::move(fates), options)) {}
Recording::~Recording() = default;

void Recording::use(Fates fates, SketchListener* sketch) {
  impl_->use(std::move(fates), sketch);
}

trace::Totals Recording::totals() const {
  Figures& figures = *impl_->figures();
  std::lock_guard lock(figures.mutex);
  settle(figures);
  return figures.totals;
}

std::map<std::uint64_t, trace::RegionTape> Recording::take_numbered_tapes() {
  Figures& figures = *impl_->figures();
  std::lock_guard lock(figures.mutex);
  return std::exchange(figures.tapes, {});
}

std::vector<trace::RegionTape> Recording::take_tapes() {
  std::vector<trace::RegionTape> tapes;
  for (auto& [number, tape] : take_numbered_tapes()) tapes.push_back(std::move(tape));
  return tapes;
}

void forget_proofs() {
  Site::forget_all();
}

std::int64_t live_values() {
  return Value::live();
}

}  // namespace snug::tape
