// The tape of one call of a region: the values that its saved tensors and recorded operations hold. Internal
// to tape; see Note [The tape] in value.h.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <unordered_set>

#include "snug/hooks/operators.h"
#include "snug/hooks/region.h"
#include "snug/tape/fates.h"
#include "snug/tape/ledgers.h"
#include "snug/tape/away.h"
#include "snug/tape/offload.h"
#include "snug/tape/operator_facts.h"
#include "snug/tape/proof.h"
#include "snug/tape/replay.h"
#include "snug/tape/sketch_listener.h"
#include "snug/tape/value_table.h"
#include "snug/trace/region_tape.h"

namespace snug::tape {

class SavedValue;

// Of parameters and buffers, frozen ones too: they stay where they are, and nobody is asked for their fate.
using ModelStorages = std::unordered_set<const c10::StorageImpl*>;

// A region that the forward is in. Regions within regions share the outermost tape.
struct Level {
  const Fates* fates;
  std::string region;
  bool record_generators = true;
};

struct TapeOptions {
  bool spare_statistics = true;
  bool check_sizes = true;
  bool verify = false;
  bool differing_throws = false;
  bool time_replays = false;
  bool describe = false;    // keep a RegionTape of the call
  bool sketch = false;      // the same, as if all were kept, and tell the listener
  bool stand_ins = false;   // keep that alone: no contents, no operations to run again
  bool prove = true;        // see Note [Proof]
  std::uint64_t place = 0;  // in the program, beside the region's name
  double offload_share = 1;
  std::uint64_t offload_bytes = 0;
};

class Tape : public std::enable_shared_from_this<Tape> {
 public:
  // `previous`: of the region before, if its backward is still to come.
  Tape(hooks::RegionId region, const TapeOptions& options, std::shared_ptr<Ledgers> ledgers,
       std::shared_ptr<host::Store> store, std::shared_ptr<const ModelStorages> model,
       const std::shared_ptr<Tape>& previous);
  ~Tape();
  Tape(const Tape&) = delete;  // saved tensors hold it
  Tape& operator=(const Tape&) = delete;

  void enter(const Level* level) { level_ = level; }  // null: it is left
  void record(hooks::OperatorCall& call, Level& level);
  // A Function that may write whatever it is given, or makes, runs in between. What it leaves is what was.
  std::string enter_function(const std::string& name, at::TensorList inputs);
  void leave_function(std::string outer);
  void end_forward() noexcept;
  bool has_begun_backward();

 private:
  friend class Proof;
  friend class RecordedCall;
  friend class SavedValue;
  friend class Replay;

  ValuePtr value_of(const at::Tensor& tensor);
  bool is_of_the_model(const at::Tensor& tensor) const;
  Fate fate_of_input(const at::Tensor& tensor, std::uint32_t number) const;
  bool is_to_go(const Value& value) const;
  std::uint64_t bytes_to_go() const;
  void send_or_keep(const ValuePtr& value, std::uint64_t may_go);
  void look_back();
  void pin(const ValuePtr& pinned, const at::Tensor& tensor);
  void note_parameter(const at::Tensor& tensor);
  void before_write(const at::Tensor& tensor);
  void follow(const ValuePtr& old, const ValuePtr& now, const at::Tensor& tensor);
  void came_in(const c10::Storage& storage, const ValuePtr& old, const std::string& why);
  void distrust_all();
  void distrust_previous();
  void keep_what_others_hold();
  void keep_after_all(const ValuePtr& value, const c10::Storage& contents, const std::string& why);

  std::string told(const Value& value) const;  // in words
  void note_difference(const std::string& what);
  void compare(const Value& value, const c10::Storage& storage);
  void finish_forward();
  void note_unpack(Value& value, const at::Tensor& tensor);
  SketchListener* listener() const;
  Fate described_fate(const Value& value) const;
  trace::RegionTape* description() { return description_ ? &*description_ : nullptr; }
  void describe(Value& value, const at::Tensor& tensor, bool is_parameter);
  void describe_as_kept(const Value& value);

  std::recursive_mutex mutex_;
  const hooks::RegionId region_;
  const std::string region_name_;
  const TapeOptions options_;
  const std::weak_ptr<Tape> previous_;
  const std::shared_ptr<std::uint64_t> sent_in_forward_;  // by this tape and those before it
  const Level* level_ = nullptr;
  ValueTable values_;
  std::uint32_t inputs_ = 0;      // seen so far
  std::uint32_t operations_ = 0;  // recorded so far
  std::uint32_t serial_ = 0;      // of values
  std::optional<Proof> proof_;
  // Saved and not kept, with storages that others held when the forward ended.
  std::vector<std::pair<std::weak_ptr<Value>, c10::weak_intrusive_ptr<c10::StorageImpl>>> lent_;
  std::string function_;  // the forward is in; why nothing that is made there is recomputed
  const int exceptions_ = std::uncaught_exceptions();  // when the forward began
  std::string failure_;  // to be thrown in the backward: the end of a forward cannot
  std::unordered_set<SavedValue*> saved_;
  std::vector<std::weak_ptr<Value>> pinned_;  // while the forward runs
  std::size_t prune_at_ = 64;
  std::vector<at::Tensor> parameters_;  // that are needed in the backward
  std::unordered_set<const c10::TensorImpl*> parameters_noted_;
  const torch::autograd::Node* last_node_ = nullptr;  // that unpacked
  const std::shared_ptr<host::Store> store_;
  Offload offload_;
  Replay replay_{*this};
  trace::RegionTotals totals_;
  std::optional<trace::RegionTape> description_;
  std::uint64_t number_ = 0;  // among the described
  const std::shared_ptr<const ModelStorages> model_;
  std::shared_ptr<Ledgers> ledgers_;
};

}  // namespace snug::tape
