// Note [The tape]
// A value is the contents of one storage between two writes. Views need no record: a saved view is its
// storage and how it lies on it. A write makes a new value of the same storage.
//
// There is no list of operations. A saved tensor holds its value; a value that is to be recomputed holds the
// operation that made it; an operation holds the values it reads. What no saved tensor needs is held by
// nobody and goes. Everything here is under its tape's lock.
//
// Where a value's contents are, and what moves them on:
//
//   Unheld      the tape has none: the forward may, or an operation recomputes them
//     keep()        the backward needs them: Kept
//     recomputed()  an operation ran again: Recomputed
//   Kept        the forward's storage
//     send()        its region's forward ended: Sent, if the contents may go
//   Sent        the same, and the contents are on their way (Note [Away])
//     leave()       the next region's forward ended: Away
//     bring_back()  nobody let them leave: Back
//   Away        not on the device
//     bring_back()  the next region's backward began, or someone asks: Back
//   Back        on the device for the backward, or on the way
//     last_use()    Away, as before
//   Recomputed  on the device for the backward
//     last_use()    Unheld
//     take()        an operation that runs again writes over them: Unheld
//
// stay() makes Kept of all that were, or are, to go. Internal to tape.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/Stream.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "snug/tape/away.h"
#include "snug/tape/forward_state.h"
#include "snug/tape/geometry.h"
#include "snug/trace/closure.h"
#include "snug/trace/fate.h"

namespace snug::tape {

using trace::Fate;

struct Operation;

// What a value is called: by its place on the tape, in the region's description, and in the proof.
struct Origin {
  static constexpr std::uint32_t kInput = ~std::uint32_t{0};

  std::uint32_t operation = kInput;             // on its tape
  std::uint32_t output = 0;                     // of that operation, or of all that came in
  std::uint32_t serial = 0;                     // among all values of its tape
  std::uint32_t number = 0;                     // in the region's description
  std::uint64_t name = 0;                       // for the proof
  const c10::FunctionSchema* schema = nullptr;  // of the operator that made it
};

class Value final : public trace::ClosureValue {
 public:
  enum class Where { Unheld, Kept, Sent, Away, Back, Recomputed };

  Value(c10::Device device, std::uint64_t bytes, std::optional<c10::Stream> made_stream);
  ~Value();
  static std::int64_t live();    // in the whole process
  Value(const Value&) = delete;  // operations point to it
  Value& operator=(const Value&) = delete;

  const c10::Device device;
  const std::uint64_t bytes;
  const std::optional<c10::Stream> made_stream;  // whose memory it is
  Origin origin;
  Fate fate = Fate::Keep;
  bool is_external = false;   // it came into the region
  bool is_leaf = false;       // and autograd did not make it
  bool is_undefined = false;  // made by empty() and not written yet
  bool is_constant = false;   // made by zeros(), arange() ... and not written yet
  bool is_scratch = false;    // some of its bytes are left as they were: not compared

  // Why it is kept although it was not to be, for the report; of which operator, if one made it.
  void refuse(std::string why, const c10::FunctionSchema* schema = nullptr);
  const std::string& refused() const { return refused_; }
  const std::string& refused_operation() const { return refused_operation_; }

  void made_by(std::shared_ptr<Operation> operation);
  void cannot_be_recomputed();
  bool can_be_recomputed() const { return maker_ != nullptr; }

  // See Note [The tape]. Each checks where it comes from.
  Where where() const { return where_; }
  bool is_kept() const { return where_ == Where::Kept || where_ == Where::Sent; }
  bool is_moved() const { return where_ == Where::Sent || where_ == Where::Away || where_ == Where::Back; }
  const c10::Storage& storage() const { return storage_; }  // none when Unheld or Away
  void keep(c10::Storage storage);
  void may_go(std::unique_ptr<Away> away);
  Away* away() const { return away_.get(); }  // null: nobody asked for it to go
  std::string send();                         // why it stays; empty if it was sent
  void leave();
  void bring_back();
  void stay(c10::Storage storage);
  void recomputed(c10::Storage storage);
  c10::Storage take();
  void last_use();
  const c10::Storage& ready();  // for the current stream, on which it may be read from here on

  // Contents that an operation relies on are about to change: it gets a copy.
  void keep_a_copy();
  // To saved tensors, if one of them may be written by the node that asked: replays have a copy.
  void give(const c10::VariableVersion& counter);
  const c10::Storage& given() const { return given_; }
  const c10::VariableVersion& given_counter() const { return given_counter_; }
  const c10::VariableVersion& counter_in_backward() const { return backward_counter_; }  // of tensors on it

  // Is it still what it was, as far as its version says? The counter is that of the tensor through which it
  // was first seen: writes past the dispatcher on other threads, and a Function's mark_dirty(), move it.
  void watch(const at::Tensor& tensor);
  void watch_write(const at::Tensor& tensor);  // the operator that makes it moves the counter once it is done
  bool is_watched() const { return watched_; }
  // It is on the forward's storage, which others may hold and write: kept, or sent and never gone.
  bool is_the_forwards() const;
  bool is_alias() const { return is_the_forwards() && watched_; }
  bool is_changed() const;
  const c10::VariableVersion& counter() const { return counter_; }

  // Who holds it: see Held. The table of the forward does not count, it asks.
  int saves = 0;    // saved tensors
  int readers = 0;  // operations to run again, one for each of their arguments
  int proofs = 0;   // while the region is proven
  bool is_needed() const { return saves + readers > 0; }  // in the backward
  bool is_held() const { return is_needed() || proofs > 0; }
  int armed_saves = 0;  // saved tensors that will ask in this backward

  // See Note [Proof].
  std::optional<std::uint64_t> checksum;    // of what the backward should find
  std::optional<std::uint64_t> at_its_end;  // in a call that was proven
  std::optional<std::size_t> proof;         // where the tape's proof has it

 private:
  void move_to(Where where);
  c10::Storage still_alive() const;
  void settle() noexcept;

  Where where_ = Where::Unheld;
  c10::Storage storage_;  // Kept, Sent: an alias of what the user holds
  std::unique_ptr<Away> away_;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> left_;
  std::optional<c10::Stream> kept_stream_;      // on which it was last seen to be whole
  std::optional<c10::Stream> backward_stream_;  // whose memory it is when Back or Recomputed
  c10::VariableVersion backward_counter_;       // then
  c10::Storage given_;
  c10::VariableVersion given_counter_;

  std::string refused_, refused_operation_;
  std::shared_ptr<Operation> maker_;
  c10::VariableVersion counter_;
  std::uint32_t version_ = 0;
  bool watched_ = false;
  bool may_move_once_ = false;
};

using ValuePtr = std::shared_ptr<Value>;

// A pointer that counts, under a name. What happens to a value is decided by these counts and never by how
// many pointers there are: whoever looks at one for a while may hold it.
template <int Value::*count>
class Held {
 public:
  Held() = default;
  explicit Held(ValuePtr value) : value_(std::move(value)) {
    if (value_) ++(value_.get()->*count);
  }
  Held(const Held& other) : Held(other.value_) {}
  Held(Held&& other) noexcept = default;
  Held& operator=(Held other) noexcept {
    value_.swap(other.value_);
    return *this;
  }
  ~Held() {
    if (value_) --(value_.get()->*count);
  }

  const ValuePtr& pointer() const { return value_; }
  Value* get() const { return value_.get(); }
  Value& operator*() const { return *value_; }
  Value* operator->() const { return value_.get(); }
  explicit operator bool() const { return value_ != nullptr; }

 private:
  ValuePtr value_;
};

using SavedTensorsValue = Held<&Value::saves>;
using OperationsValue = Held<&Value::readers>;
using ProofsValue = Held<&Value::proofs>;

std::string name_of(const c10::FunctionSchema* schema);  // with its overload: aten::add.Tensor

// What is needed to run an operator again.
struct Operation final : trace::ClosureOperation {
  struct Argument {
    std::uint32_t position;
    std::int32_t place;     // in a list; -1: the argument is the tensor
    OperationsValue value;  // null: only the shape is read
    Geometry geometry;
    c10::Device device = c10::kCPU;
    bool is_written = false;
    c10::VariableVersion counter;  // of the tensor that was read
    std::uint32_t version = 0;
    std::weak_ptr<Value> after;  // what a written argument holds afterwards
  };

  void reads(Value& value) { trace::ClosureOperation::reads.push_back(&value); }

  c10::OperatorHandle handle;
  c10::DispatchKeySet keys;
  c10::impl::LocalDispatchKeySet thread_keys = c10::impl::tls_local_dispatch_key_set();
  bool grad_mode = true;
  std::optional<GeneratorState> generator;
  std::optional<AutocastState> autocast = AutocastState::now();
  torch::jit::Stack constants;  // the arguments; where tensors go there are holes
  std::vector<Argument> arguments;
  std::vector<std::pair<std::size_t, std::weak_ptr<Value>>> outputs;  // by place among the flattened results

  explicit Operation(const c10::OperatorHandle& handle) : handle(handle) {}
};

}  // namespace snug::tape
