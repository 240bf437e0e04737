// Turns raw events into numbered blocks, the ledger and the trace. Internal to memory; the Tracker serialises
// calls.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <exception>
#include <optional>
#include <unordered_map>
#include <utility>

#include "snug/memory/event_queue.h"
#include "snug/memory/out_of_budget.h"
#include "snug/trace/ledger.h"
#include "snug/trace/trace.h"

namespace snug::memory {

class Account {
 public:
  explicit Account(trace::EventSink* sink) : sink_(sink) {}

  void apply(const RawEvent& raw);
  void send_to(trace::EventSink* sink);
  bool knows(void* address) const { return blocks_.find(address) != blocks_.end(); }
  trace::BlockId block(void* address) const {
    const auto found = blocks_.find(address);
    return found == blocks_.end() ? 0 : found->second.id;
  }

  // Blocks numbered from `first` on that are alive and that nobody claimed become `category`.
  void claim_since(trace::BlockId first, trace::Category category, std::int64_t time_ns);
  trace::BlockId next_block() const { return next_; }
  std::int64_t last_time() const { return last_time_; }

  const std::optional<Refusal>& last_refusal() const { return last_refusal_; }
  void forget_refusal() { last_refusal_.reset(); }

  // What the sink threw, once; null if nothing.
  std::exception_ptr take_sink_failure() { return std::exchange(sink_failure_, nullptr); }

  trace::Ledger& ledger() { return ledger_; }
  trace::NameTable& names() { return names_; }

 private:
  struct Block {
    trace::BlockId id;
    std::uint64_t bytes;
    trace::Category category;
    bool in_region;
  };

  void retag(Block& block, const trace::Event& event);
  void emit(const trace::Event& event);
  trace::NameId region_name(hooks::RegionId id);
  trace::NameId operator_name(const c10::OperatorName* op);

  trace::EventSink* sink_;
  std::exception_ptr sink_failure_;
  std::optional<Refusal> last_refusal_;
  trace::Ledger ledger_;
  trace::NameTable names_;
  ska::flat_hash_map<void*, Block> blocks_;  // one insertion and one removal per allocation
  std::unordered_map<hooks::RegionId, trace::NameId> regions_;
  std::unordered_map<const c10::OperatorName*, trace::NameId> operators_;
  trace::BlockId next_ = 1;
  std::int64_t last_time_ = 0;
};

}  // namespace snug::memory
