#include "snug/tape/value.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "snug/base/error.h"
#include "snug/tape/streams.h"

namespace snug::tape {

namespace {

std::atomic<std::int64_t> alive{0};

using Where = Value::Where;
constexpr const char* kNames[] = {"Unheld", "Kept", "Sent", "Away", "Back", "Recomputed"};

bool may_move(Where from, Where to) {
  switch (to) {
    case Where::Unheld:
      return from == Where::Recomputed;
    case Where::Kept:
      return true;
    case Where::Sent:
      return from == Where::Kept;
    case Where::Away:
      return from == Where::Sent || from == Where::Back;
    case Where::Back:
      return from == Where::Sent || from == Where::Away;
    case Where::Recomputed:
      return from == Where::Unheld;
  }
  return false;
}

}  // namespace

Value::Value(c10::Device device, std::uint64_t bytes, std::optional<c10::Stream> made_stream)
    : device(device), bytes(bytes), made_stream(made_stream) {
  ++alive;
}
Value::~Value() {
  --alive;
  settle();
  cannot_be_recomputed();
}
std::int64_t Value::live() {
  return alive;
}

void Value::refuse(std::string why, const c10::FunctionSchema* schema) {
  refused_ = std::move(why);
  refused_operation_ = name_of(schema);
}

void Value::made_by(std::shared_ptr<Operation> operation) {
  maker_ = std::move(operation);
  producer = maker_.get();
  maker_->results.push_back(this);
}

// A chain of operations may be as long as the forward: what this one held is let go by a loop, not by
// recursion.
void Value::cannot_be_recomputed() {
  if (!maker_) return;
  std::ranges::replace(maker_->results, static_cast<trace::ClosureValue*>(this), nullptr);
  producer = nullptr;
  thread_local std::vector<std::shared_ptr<Operation>>* waiting = nullptr;
  if (waiting) {
    waiting->push_back(std::move(maker_));
    return;
  }
  std::vector<std::shared_ptr<Operation>> mine{std::move(maker_)};
  waiting = &mine;
  while (!mine.empty()) {
    const std::shared_ptr<Operation> next = std::move(mine.back());
    mine.pop_back();
  }
  waiting = nullptr;
}

void Value::move_to(Where where) {
  ensure(may_move(where_, where), "a value went from ", kNames[static_cast<int>(where_)], " to ",
         kNames[static_cast<int>(where)]);
  where_ = where;
  here = where_ != Where::Unheld;
  if (where_ != Where::Back && where_ != Where::Recomputed) return;
  backward_stream_ = current_stream(device);
  backward_counter_ = c10::VariableVersion(0);
}

void Value::keep(c10::Storage storage) {
  ensure(!is_moved(), "a value that is elsewhere was kept");
  move_to(Where::Kept);
  storage_ = std::move(storage);
  kept_stream_ = current_stream(device);
}

void Value::may_go(std::unique_ptr<Away> away) {
  ensure(!is_moved(), "a value was asked to go twice");
  away_ = std::move(away);
}

std::string Value::send() {
  if (is_changed()) return "written after it was saved";
  if (kept_stream_) wait_for(*kept_stream_, storage_);
  std::string why_not = away_->put(storage_);
  if (why_not.empty()) move_to(Where::Sent);
  return why_not;
}

void Value::leave() {
  if (where_ != Where::Sent || is_changed()) return;
  move_to(Where::Away);
  settle();
  left_ = storage_.getWeakStorageImpl();
  storage_ = {};
}

// What somebody else still holds as it was need not come.
void Value::bring_back() {
  if (where_ == Where::Back || (where_ == Where::Sent && is_changed())) return;
  if (where_ == Where::Sent) left_ = storage_.getWeakStorageImpl();  // others may have it after the last use
  c10::Storage storage = where_ == Where::Sent ? storage_ : still_alive();
  if (!storage) storage = away_->bring_back();
  move_to(Where::Back);
  storage_ = std::move(storage);
}

void Value::stay(c10::Storage storage) {
  settle();
  away_ = nullptr;
  move_to(Where::Kept);
  storage_ = std::move(storage);
}

void Value::recomputed(c10::Storage storage) {
  move_to(Where::Recomputed);
  storage_ = std::move(storage);
}

c10::Storage Value::take() {
  move_to(Where::Unheld);
  return std::exchange(storage_, {});
}

void Value::last_use() {
  if (is_kept()) return;
  given_ = {};
  if (where_ != Where::Back && where_ != Where::Recomputed) return;
  settle();
  storage_ = {};
  move_to(where_ == Where::Back ? Where::Away : Where::Unheld);
}

const c10::Storage& Value::ready() {
  if (where_ == Where::Back) {
    std::vector<c10::Stream> streams;
    if (const auto stream = current_stream(device)) streams.push_back(*stream);
    if (backward_stream_) streams.push_back(*backward_stream_);  // who waits for that one waits for the copy
    away_->arrive(streams);
  }
  const auto& stream = is_kept() ? kept_stream_ : backward_stream_;
  if (stream) wait_for(*stream, storage_);
  return storage_;
}

void Value::keep_a_copy() {
  storage_ = copy_of(storage_);
  if (is_kept()) watched_ = false;
}

void Value::give(const c10::VariableVersion& counter) {
  given_ = storage_;
  given_counter_ = counter;
  keep_a_copy();
  (is_kept() ? kept_stream_ : backward_stream_) = current_stream(device);
  backward_counter_ = c10::VariableVersion(0);
}

bool Value::is_the_forwards() const {
  if (is_kept()) return true;
  if (where_ != Where::Back || !left_) return false;
  const auto alive = left_->lock();
  return alive && alive.get() == storage_.unsafeGetStorageImpl();
}

// The one that left, if nobody changed it since.
c10::Storage Value::still_alive() const {
  if (is_changed()) return {};
  auto storage = left_ ? left_->lock() : c10::intrusive_ptr<c10::StorageImpl>();
  return storage ? c10::Storage(std::move(storage)) : c10::Storage();
}

// Nobody may use its memory for something else while a copy is under way. If the device fails, whoever uses
// it next says so.
void Value::settle() noexcept try {
  if (!away_) return;
  std::vector<c10::Stream> streams;
  for (const auto& stream : {made_stream, kept_stream_, backward_stream_})
    if (stream) streams.push_back(*stream);
  away_->settle(streams);
} catch (const std::exception&) {
}

void Value::watch(const at::Tensor& tensor) {
  counter_ = tensor.unsafeGetTensorImpl()->version_counter();
  version_ = counter_.current_version();
  watched_ = true;
  may_move_once_ = false;
}

void Value::watch_write(const at::Tensor& tensor) {
  watch(tensor);
  may_move_once_ = true;
}

bool Value::is_changed() const {
  if (!watched_) return false;
  const std::uint32_t now = counter_.current_version();
  return now != version_ && !(may_move_once_ && now == version_ + 1);
}

std::string name_of(const c10::FunctionSchema* schema) {
  if (!schema) return "";
  return schema->overload_name().empty() ? schema->name() : schema->name() + "." + schema->overload_name();
}

}  // namespace snug::tape
