// The tape of one call of a region: the values that its saved tensors and recorded operations hold. Internal
// to tape; see Note [The tape] in value.h.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "snug/hooks/operators.h"
#include "snug/hooks/region.h"
#include "snug/host/schedule.h"
#include "snug/tape/description.h"
#include "snug/tape/fates.h"
#include "snug/tape/figures.h"
#include "snug/tape/proof.h"
#include "snug/tape/recording.h"
#include "snug/tape/replay.h"
#include "snug/tape/value_table.h"

namespace snug::tape {

class SavedValue;

// Of parameters and buffers, frozen ones too: they stay where they are, and nobody is asked for their fate.
using ModelStorages = std::unordered_set<const c10::StorageImpl*>;

// A region that the forward is in. Regions within regions share the outermost tape.
struct Level {
  const Fates* fates;
  std::string region;
  bool record_generators = true;
  int pass = 0;
};

// A forward and the backward that follows it, as far as this thread's tapes share them.
struct Pass {
  host::Schedule schedule;
  std::vector<std::weak_ptr<class Tape>> tapes;  // that live, in the order of their forwards
  void add(const std::shared_ptr<class Tape>& tape);
};

class Tape : public std::enable_shared_from_this<Tape> {
 public:
  // `place`: in the program, beside the region's name.
  Tape(hooks::RegionId region, std::uint64_t place, std::shared_ptr<const RecordingOptions> options,
       std::shared_ptr<const ModelStorages> model, std::shared_ptr<Figures> figures,
       std::shared_ptr<Pass> pass, bool is_captured);
  ~Tape();
  Tape(const Tape&) = delete;  // saved tensors hold it
  Tape& operator=(const Tape&) = delete;

  // A Recording calls these as the forward goes on.
  void enter(const Level* level) { level_ = level; }  // null: it is left
  void record(hooks::OperatorCall& call, const Level& level);
  // A Function that may write whatever it is given, or makes, runs in between. What it leaves is what was.
  std::string enter_function(const std::string& name, at::TensorList inputs);
  void leave_function(std::string outer);
  void end_forward() noexcept;
  bool has_begun_backward();
  const std::shared_ptr<Pass>& pass() const { return pass_; }

  // From here on for the parts of a tape, which hold its lock.
  std::recursive_mutex& mutex() { return mutex_; }
  const RecordingOptions& options() const { return *options_; }
  hooks::RegionId region() const { return region_; }
  const std::string& region_name() const { return region_name_; }
  ValueTable& values() { return values_; }
  Proof* proof() { return proof_ ? &*proof_ : nullptr; }
  Replay& replay() { return replay_; }
  Description* description() { return description_ ? &*description_ : nullptr; }
  Figures& figures() { return *figures_; }
  bool is_captured() const { return is_captured_; }  // its kernels become part of a CUDA graph
  trace::RegionTotals& totals() { return totals_; }
  std::unordered_set<SavedValue*>& saved() { return saved_; }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  const std::string& function() const { return function_; }  // why nothing that it makes is recomputed

  // Of an operator that is recorded.
  ValuePtr value_of(const at::Tensor& tensor);
  void enroll(Value& value, std::uint32_t output);
  std::uint32_t next_operation() { return operations_++; }
  void pin(const ValuePtr& pinned, const at::Tensor& tensor);
  void before_write(const at::Tensor& tensor);
  void follow(const ValuePtr& old, const ValuePtr& now, const at::Tensor& tensor);

  // Of the proof.
  void distrust_all();
  void distrust_previous();
  void keep_after_all(const ValuePtr& value, const c10::Storage& contents, const std::string& why);
  std::string told(const Value& value) const;  // in words
  void note_difference(const std::string& what);

  // Of the backward.
  void before_unpack();
  void after_unpack(Value& value, const at::Tensor& tensor);
  void compare(const Value& value, const c10::Storage& storage);

 private:
  bool is_of_the_model(const at::Tensor& tensor) const;
  Fate fate_of_input(const at::Tensor& tensor, std::uint32_t number) const;
  void note_parameter(const at::Tensor& tensor);
  void keep_what_nobody_wrote(Value& value);
  void came_in(const c10::Storage& storage, const ValuePtr& old, const std::string& why);
  void keep_what_others_hold();
  void is_not_dropped(const Value& value);  // after all, as was counted
  void finish_forward();
  void describe_end();
  bool is_to_go(const Value& value) const;
  std::uint64_t bytes_to_go() const;
  void send_or_keep(const ValuePtr& value, std::uint64_t may_go);

  std::recursive_mutex mutex_;
  const hooks::RegionId region_;
  const std::string region_name_;
  const std::shared_ptr<const RecordingOptions> options_;
  const std::shared_ptr<const ModelStorages> model_;
  const std::shared_ptr<Figures> figures_;
  const std::shared_ptr<Pass> pass_;
  const std::size_t in_pass_;  // its number there
  const bool is_captured_;
  const Level* level_ = nullptr;
  ValueTable values_;
  std::uint32_t inputs_ = 0;      // seen so far
  std::uint32_t operations_ = 0;  // recorded so far
  std::uint32_t serial_ = 0;      // of values
  std::optional<Proof> proof_;
  // Saved and not kept, with storages that others held when the forward ended.
  std::vector<std::pair<std::weak_ptr<Value>, c10::weak_intrusive_ptr<c10::StorageImpl>>> lent_;
  std::string function_;                               // that the forward is in
  const int exceptions_ = std::uncaught_exceptions();  // when the forward began
  std::string failure_;  // to be thrown in the backward: the end of a forward cannot
  std::unordered_set<SavedValue*> saved_;
  std::vector<std::weak_ptr<Value>> pinned_;  // while the forward runs
  std::size_t prune_at_ = 64;
  std::vector<at::Tensor> parameters_;  // that are needed in the backward
  std::unordered_set<const c10::TensorImpl*> parameters_noted_;
  Replay replay_{*this};
  trace::RegionTotals totals_{.calls = 1};
  std::optional<Description> description_;
};

}  // namespace snug::tape
