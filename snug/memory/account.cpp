#include "snug/memory/account.h"

#include "snug/base/error.h"

namespace snug::memory {

using trace::Category;
using trace::EventKind;

namespace {

bool unclaimed(Category category) {
  return category == Category::Temporary || category == Category::Other;
}

// Note [Who may claim a block]
// A block starts unclaimed (Temporary inside an operator, else Other). What autograd saves claims unclaimed
// blocks only. A gradient was an operation's output, perhaps saved as well, so it also claims activations. A
// leaf that wants a gradient is a parameter, unless it was said to be an input. Everything else is said by
// someone who knows.
bool may_claim(Category now, Category next) {
  if (next == Category::Activation) return unclaimed(now);
  if (next == Category::Gradient) return unclaimed(now) || now == Category::Activation;
  if (next == Category::Parameter) return now != Category::Input;
  return true;
}

}  // namespace

void Account::apply(const RawEvent& raw) {
  last_time_ = raw.time_ns;
  trace::Event event{.kind = raw.kind,
                     .category = raw.category,
                     .region = region_name(raw.region),
                     .name = raw.op ? operator_name(raw.op) : raw.name,
                     .bytes = raw.bytes,
                     .time_ns = raw.time_ns};
  auto block = raw.address ? blocks_.find(raw.address) : blocks_.end();
  const bool known = block != blocks_.end();
  switch (raw.kind) {
    case EventKind::Alloc:
      ensure(!known, "a live address was allocated again");
      event.block = next_++;
      blocks_.emplace(raw.address, Block{event.block, raw.bytes, raw.category, event.region != 0});
      emit(event);
      return;
    case EventKind::Free:
      if (!known) return;  // older than the tracker
      event.block = block->second.id;
      event.bytes = block->second.bytes;
      event.category = block->second.category;
      blocks_.erase(block);
      emit(event);
      return;
    case EventKind::Retag:
      if (known) retag(block->second, event);
      return;
    case EventKind::Save:
      event.block = known ? block->second.id : 0;
      emit(event);
      if (known) retag(block->second, event);
      return;
    case EventKind::Unpack:
      event.block = known ? block->second.id : 0;
      emit(event);
      return;
    case EventKind::Mark:
      if (raw.refused) {
        event.name = names_.intern("out of memory");
        last_refusal_ = {raw.bytes, ledger_.live(names_)};
      }
      emit(event);
      return;
    case EventKind::Op:
    case EventKind::Copy:
      emit(event);
      return;
  }
}

void Account::retag(Block& block, const trace::Event& why) {
  const bool moves = !block.in_region && why.region != 0;
  if (block.category == why.category ? !moves : !may_claim(block.category, why.category)) return;
  block.category = why.category;
  block.in_region |= moves;
  emit({.kind = EventKind::Retag,
        .category = why.category,
        .region = why.region,
        .block = block.id,
        .bytes = block.bytes,
        .time_ns = why.time_ns});
}

void Account::claim_since(trace::BlockId first, Category category, std::int64_t time_ns) {
  for (auto& [address, block] : blocks_)
    if (block.id >= first && unclaimed(block.category))
      retag(block, {.category = category, .time_ns = time_ns});
}

void Account::send_to(trace::EventSink* sink) {
  sink_ = sink;
  if (!sink_) return;
  for (trace::Event event : ledger_.live_allocations()) {
    event.time_ns = last_time_;
    sink_->write(event, names_);
  }
}

void Account::emit(const trace::Event& event) {
  ledger_.apply(event);
  if (!sink_) return;
  try {
    sink_->write(event, names_);
  } catch (...) {
    sink_ = nullptr;  // the account goes on; whoever asks next is told, once
    sink_failure_ = std::current_exception();
  }
}

trace::NameId Account::region_name(hooks::RegionId id) {
  if (id == 0) return 0;
  auto [entry, fresh] = regions_.try_emplace(id, 0);
  if (fresh) entry->second = names_.intern(hooks::region_name(id));
  return entry->second;
}

trace::NameId Account::operator_name(const c10::OperatorName* op) {
  auto [entry, fresh] = operators_.try_emplace(op, 0);
  if (fresh)
    entry->second = names_.intern(op->overload_name.empty() ? op->name : op->name + "." + op->overload_name);
  return entry->second;
}

}  // namespace snug::memory
