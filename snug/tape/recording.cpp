#include "snug/tape/recording.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <unordered_map>
#include <utility>

#include "snug/base/error.h"
#include "snug/hooks/functions.h"
#include "snug/tape/arguments.h"
#include "snug/tape/figures.h"
#include "snug/tape/operator_facts.h"
#include "snug/tape/pure.h"
#include "snug/tape/quiet.h"
#include "snug/tape/saved_value.h"
#include "snug/tape/stream_capture.h"
#include "snug/tape/tape.h"

namespace snug::tape {

namespace {

constexpr const char* kRest = "rest";

// Of the forward, outside every region. It may end on the thread of a backward's first node, while this
// thread waits for that backward.
class Rest {
 public:
  explicit Rest(std::shared_ptr<Tape> tape) : tape_(std::move(tape)) {}
  bool is_over() const { return is_over_; }
  void end() {
    if (is_over_.exchange(true)) return;
    tape_->enter(nullptr);
    tape_->end_forward();
  }

 private:
  const std::shared_ptr<Tape> tape_;
  std::atomic<bool> is_over_{false};
};

// What this thread's forward is in.
struct Forward {
  std::shared_ptr<Tape> tape;
  std::shared_ptr<Rest> rest;  // whose tape it is, if it is no region's
  std::weak_ptr<Tape> last;
  std::deque<Level> levels;  // a kernel may open a region while its operator is being recorded
  bool is_in_operator = false;
  // Of this forward, whichever Recording has them, for the proof: a checkpoint is a Recording of its own.
  std::unordered_map<hooks::RegionId, std::uint64_t> calls;
};
thread_local Forward forward;

bool is_in_backward() {
  return torch::autograd::get_current_graph_task_id() >= 0;
}

// Autograd saves some of what it reads or makes, perhaps.
bool is_followed(const hooks::OperatorCall& call) {
  if (!at::GradMode::is_enabled()) return false;
  const OperatorFacts& facts = facts_of(call.op);
  const bool makes_tensors = std::ranges::any_of(call.op.schema().returns(), [](const c10::Argument& result) {
    return result.type()->kind() == c10::TypeKind::TensorType ||
           result.type()->kind() == c10::TypeKind::ListType;
  });
  if (facts.is_view || facts.changes_shape || facts.reads_shape_only || !makes_tensors) return false;
  bool found = false;
  const std::size_t arguments = call.op.schema().arguments().size();
  for (auto argument = call.stack.end() - static_cast<std::ptrdiff_t>(arguments);
       argument != call.stack.end() && !found; ++argument)
    each_tensor(*argument, [&](const at::Tensor& tensor, int) { found |= tensor.requires_grad(); });
  return found;
}

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
    if (std::ranges::any_of(forward.levels, [&](const Level& level) { return level.fates == &fates_; }))
      leave_tape();  // it ends inside a region
    figures_->sketch = nullptr;
    Impl** place = &innermost;  // they may end in any order
    while (*place && *place != this) place = &(*place)->outer_;
    if (*place) *place = outer_;
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void use(Fates fates, SketchListener* sketch) {
    end_step();
    check(forward.levels.empty(),
          "the fates of a recording were changed inside a region: change them between steps");
    fates_ = std::move(fates);
    figures_->sketch = sketch;
  }

  void offload_to(std::shared_ptr<host::Store> host) {
    RecordingOptions options = *options_;
    options.host = std::move(host);
    options_ = std::make_shared<const RecordingOptions>(std::move(options));
  }

  void end_step() {
    if (forward.rest) leave_tape();
    if (forward.tape) return;
    calls_.clear();
    pass_.clear();
    passes_ = 0;
  }

  void before_forward(hooks::RegionId region) override {
    if (innermost != this || hooks::AsideScope::on()) return;
    if (forward.rest && !forward.is_in_operator) leave_tape();
    if (!forward.tape) {
      if (!at::GradMode::is_enabled()) return;  // nothing is saved: an evaluation
      begin_tape(region);
    }
    enter(hooks::region_name(region));
  }

  void after_forward(hooks::RegionId) override {
    const std::size_t of_rest = forward.rest ? 1 : 0;
    if (innermost != this || hooks::AsideScope::on() || forward.levels.size() == of_rest) return;
    forward.levels.pop_back();
    if (forward.levels.empty()) return leave_tape();
    forward.tape->enter(&forward.levels.back());
  }

  void backward_begins() override {
    is_pass_over_ = true;
    if (const std::shared_ptr<Rest> rest = rest_.load().lock()) rest->end();
    leave_rest_if_over();
  }

  void on_operator(hooks::OperatorCall& call) override {
    if (innermost != this || hooks::AsideScope::on() || !is_recorded([&] { return is_followed(call); }))
      return call.proceed();
    const std::shared_ptr<Tape> tape = forward.tape;
    const bool was_in_operator = std::exchange(forward.is_in_operator, true);
    try {
      tape->record(call, forward.levels.back());
    } catch (...) {
      forward.is_in_operator = was_in_operator;
      if (forward.rest && !was_in_operator) leave_tape();  // nobody else says that this forward is over
      throw;
    }
    forward.is_in_operator = was_in_operator;
  }

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override {
    if (innermost != this || hooks::AsideScope::on() || !is_recorded([] { return true; })) return nullptr;
    return std::make_unique<SavedValue>(forward.tape);
  }

  std::function<void()> on_function(const std::string& name, at::TensorList inputs) override {
    if (innermost != this || hooks::AsideScope::on() || is_pure(name) || !is_recorded([] { return false; }))
      return {};
    return [tape = forward.tape, outer = forward.tape->enter_function(name, inputs)] {
      tape->leave_function(outer);
    };
  }

  // What is over has left its figures.
  static void leave_rest_if_over() {
    if (forward.rest && forward.rest->is_over() && !forward.is_in_operator) leave_tape();
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

  // Is there a tape? Outside every region one begins here, if there is need and it is wanted.
  template <class Need>
  bool is_recorded(Need need) {
    leave_rest_if_over();
    if (forward.tape) return true;
    if (!options_->rest || is_in_backward() || !need()) return false;
    begin_tape(hooks::region_id(kRest));
    enter(kRest);
    forward.rest = std::make_shared<Rest>(forward.tape);
    rest_ = forward.rest;
    return true;
  }

  void begin_tape(hooks::RegionId region) {
    const std::shared_ptr<Tape> previous = last_before_its_backward();
    if (!previous) forward.calls.clear();
    const std::shared_ptr<Pass> pass = previous ? previous->pass() : std::make_shared<Pass>();
    const std::uint64_t place = options_->place + kApart * ++forward.calls[region];
    forward.tape = std::make_shared<Tape>(numbered(region), place, options_, model_, figures_, pass,
                                          is_capturing_stream());
    pass->add(forward.tape);
    forward.last = forward.tape;
    pass_.push_back(forward.tape);
  }

  // A pass ends when a backward begins, or when nothing of it is left: its forward threw, or was dropped.
  hooks::RegionId numbered(hooks::RegionId region) {
    const auto is_gone = [](const std::weak_ptr<Tape>& tape) { return tape.expired(); };
    if (is_pass_over_ || std::ranges::all_of(pass_, is_gone)) {
      if (is_pass_over_ && !pass_.empty()) ++passes_;
      calls_.clear();
      pass_.clear();
    }
    is_pass_over_ = is_in_backward();
    const int call = ++calls_[region];
    return call == 1 ? region : hooks::region_id(concat(hooks::region_name(region), "#", call));
  }

  void enter(std::string region) {
    forward.levels.push_back({&fates_, std::move(region), options_->record_generators, passes_});
    forward.tape->enter(&forward.levels.back());
  }

  // The forward is out of every region.
  static void leave_tape() {
    forward.levels.clear();
    const std::shared_ptr<Tape> tape = std::exchange(forward.tape, nullptr);
    if (const std::shared_ptr<Rest> rest = std::exchange(forward.rest, nullptr)) return rest->end();
    tape->enter(nullptr);
    tape->end_forward();
  }

  static std::shared_ptr<Tape> last_before_its_backward() {
    std::shared_ptr<Tape> last = forward.last.lock();
    return last && !last->has_begun_backward() ? last : nullptr;
  }

  static thread_local Impl* innermost;

  Fates fates_;
  std::shared_ptr<const RecordingOptions> options_;
  const std::shared_ptr<const ModelStorages> model_;
  std::shared_ptr<Figures> figures_ = std::make_shared<Figures>();
  Impl* outer_;
  std::unordered_map<hooks::RegionId, int> calls_;  // in this pass, for their names
  std::vector<std::weak_ptr<Tape>> pass_;
  int passes_ = 0;  // of this step, before the one at hand
  std::atomic<bool> is_pass_over_{false};
  std::atomic<std::weak_ptr<Rest>> rest_;  // that began last
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

void Recording::offload_to(std::shared_ptr<host::Store> host) {
  impl_->offload_to(std::move(host));
}

void Recording::end_step() {
  impl_->end_step();
}

trace::Totals Recording::totals() const {
  Impl::leave_rest_if_over();
  Figures& figures = *impl_->figures();
  std::lock_guard lock(figures.mutex);
  settle(figures);
  return figures.totals;
}

std::map<std::uint64_t, trace::RegionTape> Recording::take_numbered_tapes() {
  impl_->end_step();
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
