// Note [The tape]
// A value is the contents of one storage between two writes. Views need no record: a saved view is its
// storage and how it lies on it. A write makes a new value of the same storage.
//
// There is no list of operations. A saved tensor holds its value; a value that is to be re-made holds the
// operation that made it; an operation holds the values it reads. What no saved tensor needs is held by
// nobody and goes. Everything here is under its tape's lock. Internal to tape.
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
#include <vector>

#include "snug/host/arena.h"
#include "snug/tape/autocast_state.h"
#include "snug/tape/generator.h"
#include "snug/tape/geometry.h"
#include "snug/tape/span.h"
#include "snug/trace/closure.h"

namespace snug::tape {

using trace::Fate;

struct Operation;

struct Value final : trace::ClosureValue {
  Value();
  ~Value();
  static std::int64_t live();    // in the whole process
  Value(const Value&) = delete;  // operations point to it
  Value& operator=(const Value&) = delete;

  void made_by(std::shared_ptr<Operation> operation);
  void cannot_be_remade();

  c10::Device device = c10::kCPU;
  std::uint64_t bytes = 0;
  Fate fate = Fate::Keep;
  bool is_external = false;                // it came into the region
  bool is_undefined = false;               // made by empty() and not written yet
  bool is_pinned = false;                  // its contents will be there in the backward
  bool is_scratch = false;                 // some of its bytes are left as they were: not compared
  std::string refused, refused_operation;  // why it is kept although it was to be re-made
  std::uint32_t number = 0;                // in the region's description
  std::shared_ptr<Operation> maker;

  c10::Storage kept;                                    // from the forward: an alias of what the user holds
  c10::Storage memo;                                    // re-made, or back from the host
  c10::VariableVersion memo_counter;                    // of all tensors on it
  std::optional<c10::Stream> kept_stream, memo_stream;  // on which the contents were made

  // Is `kept` still what it was? The counter is that of the tensor through which it was kept.
  void watch(const at::Tensor& tensor);
  bool is_alias() const { return kept && watched_; }
  bool is_changed() const { return watched_ && counter_.current_version() != version_; }
  void unwatch() { watched_ = false; }
  bool watch_later = false;  // the write that made it has not moved the counter yet

  // See Note [Offload].
  bool is_offloaded = false;         // a copy is on the host, or on its way there
  host::Slot slot;                   // none on Meta
  host::CopyPtr sent, fetched;       // not waited for yet
  Span span;                         // what someone needs of it
  void leaves();                     // the host has it
  c10::Storage still_alive() const;  // what left, if somebody else holds it as it was
  void drop_memo();

  int saves = 0;                         // saved tensors that hold it
  std::optional<std::int64_t> checksum;  // verify: taken when it was made

 private:
  void wait_for_copies() noexcept;

  c10::VariableVersion counter_;
  std::uint32_t version_ = 0;
  bool watched_ = false;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> left_;
};

using ValuePtr = std::shared_ptr<Value>;

struct Operation final : trace::ClosureOperation {
  struct Argument {
    std::uint32_t position;
    std::int32_t place;  // in a list; -1: the argument is the tensor
    ValuePtr value;      // null: only the shape is read
    Geometry geometry;
    c10::Device device = c10::kCPU;
    bool is_written = false;
    c10::VariableVersion counter;  // of the tensor that was read
    std::uint32_t version = 0;
    std::weak_ptr<Value> after;  // what a written argument holds afterwards
  };

  void reads(const ValuePtr& value) { trace::ClosureOperation::reads.push_back(value.get()); }

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
