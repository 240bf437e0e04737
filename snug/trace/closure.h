// Which operations a backward has to run again, in which order, and how long each result lives.
//
// The rules, for one backward: an operation runs at most once; it runs when the first value that needs it is
// asked for; a recomputed value is freed after its last use. Replay follows them on tensors (tape/replay),
// the planner on bytes (closure()): they are one piece of code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "snug/base/export.h"
#include "snug/trace/region_tape.h"

namespace snug::trace {

struct ClosureOperation;

struct ClosureValue {
  ClosureOperation* producer = nullptr;  // null: cannot be recomputed
  bool here = false;                     // the contents are there: kept, or recomputed and not freed yet
  int uses = 0;                          // still to come in this backward
};

struct ClosureOperation {
  std::vector<ClosureValue*> reads;    // all that must be here for it to run; one entry per argument
  std::vector<ClosureValue*> results;  // those it can recompute; null where one is gone
  bool armed = false;                  // it will run in this backward, unless all that need it go away
};

class SNUG_API ClosureWalk {
 public:
  virtual ~ClosureWalk() = default;

  void arm(ClosureValue& value);      // one use more to come
  void require(ClosureValue& value);  // runs what leads to it; afterwards it is here
  void release(ClosureValue& value);  // one use less; the last one frees it

 protected:
  // Makes all results; those with uses to come are `here` afterwards.
  virtual void run(ClosureOperation& operation) = 0;
  // Nobody needs it any more. Called for kept values too.
  virtual void last_use(ClosureValue& value) = 0;

 private:
  void disarm(ClosureOperation& operation, std::vector<ClosureValue*>& released);
};

// The bytes of recomputed and offloaded values as a backward goes on, and the operations it runs again. What
// was offloaded is back when it begins, and goes with its last use.
class SNUG_API ClosureBytes : private ClosureWalk {
 public:
  // `fates` has one entry per value of the tape; values that cannot be recomputed count as kept.
  ClosureBytes(const RegionTape& tape, std::span<const Fate> fates);

  void unpack(ValueIndex wanted);  // a node asks for it
  void end_node();                 // and lets go what it was given

  bool is_recomputed(ValueIndex value) const { return values_[value].producer != nullptr; }
  bool is_offloaded(ValueIndex value) const { return offloaded_[value]; }  // and needed
  std::uint64_t live_bytes() const { return live_; }
  std::uint64_t take_peak();  // since the last call
  const std::vector<std::uint32_t>& operations() const { return ran_; }

 protected:
  // What happens to memory, one after the other, for whoever wants to know more than its bytes. What is
  // offloaded is back before all of it. What is not wanted goes when its operation ends, unheard.
  virtual void on_fetch(ValueIndex) {}  // back once more
  virtual void on_copy(ValueIndex /*after*/, bool /*is_wanted*/) {}
  virtual void on_move(ValueIndex /*before*/, ValueIndex /*after*/, bool /*is_wanted*/) {}
  virtual void on_run(std::uint32_t /*operation*/, std::span<const ValueIndex> /*wanted results*/) {}
  virtual void on_free(ValueIndex) {}

 private:
  void connect(std::size_t operation, std::span<const Fate> fates);
  bool is_held(ValueIndex value) const;
  bool is_there(ValueIndex value) const { return offloaded_[value] ? back_[value] : values_[value].here; }
  void bring_back(ValueIndex value);
  void free(ValueIndex value);
  std::uint64_t bytes(ValueIndex value) const { return tape_.values[value].bytes; }
  void run(ClosureOperation& operation) override;
  void last_use(ClosureValue& value) override;

  const RegionTape& tape_;
  std::vector<ClosureOperation> operations_;
  std::vector<ClosureValue> values_;
  std::vector<bool> offloaded_, back_;    // by value
  std::vector<int> armed_;                // by value: saves that no node asked for yet
  std::vector<ValueIndex> held_by_node_;  // handed out, until the node ends
  std::vector<std::uint32_t> ran_;
  std::vector<ValueIndex> wanted_;  // results of the operation that runs
  std::uint64_t live_ = 0;
  std::uint64_t peak_ = 0;
};

// Which values must be there from the forward on, so that all that autograd saved can be had: saved values,
// and what the operations to run again read. Without parameters.
SNUG_API std::vector<bool> kept_values(const RegionTape& tape, const ClosureBytes& walk);

struct Closure {
  std::vector<std::uint32_t> operations;  // to run again, in order, as numbers in tape.operations
  std::uint64_t peak_bytes = 0;           // of recomputed values, at the highest
  std::uint64_t kept_bytes = 0;           // of values kept from the forward to the backward
};

SNUG_API Closure closure(const RegionTape& tape, std::span<const Fate> fates);

}  // namespace snug::trace
