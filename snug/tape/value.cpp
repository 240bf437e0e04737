#include "snug/tape/value.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "snug/tape/streams.h"

namespace snug::tape {

namespace {
std::atomic<std::int64_t> live_values{0};
}

Value::Value() {
  ++live_values;
}
Value::~Value() {
  --live_values;
  wait_for_copies();
  cannot_be_remade();
}
std::int64_t Value::live() {
  return live_values;
}

void Value::made_by(std::shared_ptr<Operation> operation) {
  maker = std::move(operation);
  producer = maker.get();
  maker->results.push_back(this);
}

// A chain of operations may be as long as the forward: what this one held is let go by a loop, not by
// recursion.
void Value::cannot_be_remade() {
  if (!maker) return;
  std::ranges::replace(maker->results, static_cast<trace::ClosureValue*>(this), nullptr);
  producer = nullptr;
  thread_local std::vector<std::shared_ptr<Operation>>* waiting = nullptr;
  if (waiting) {
    waiting->push_back(std::move(maker));
    return;
  }
  std::vector<std::shared_ptr<Operation>> mine{std::move(maker)};
  waiting = &mine;
  while (!mine.empty()) {
    const std::shared_ptr<Operation> next = std::move(mine.back());
    mine.pop_back();
  }
  waiting = nullptr;
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

void Value::leaves() {
  wait_for_copies();
  left_ = kept.getWeakStorageImpl();
  kept = {};
}

c10::Storage Value::still_alive() const {
  if (is_changed()) return {};
  auto storage = left_ ? left_->lock() : c10::intrusive_ptr<c10::StorageImpl>();
  return storage ? c10::Storage(std::move(storage)) : c10::Storage();
}

void Value::give(const c10::Storage& storage, const c10::VariableVersion& counter) {
  given = storage;
  given_counter = counter;
  if (kept) {
    kept = copy_of(storage);
    kept_stream = current_stream(device);
    unwatch();
  } else {
    memo = copy_of(storage);
    memo_stream = current_stream(device);
    memo_counter = c10::VariableVersion(0);
  }
}

void Value::drop_memo() {
  if (!kept) given = {};
  if (!memo) return;
  wait_for_copies();
  memo = {};
}

// Nobody may use its memory for something else while a copy is under way. If the device fails, whoever uses
// it next says so.
void Value::wait_for_copies() noexcept try {
  if (!sent && !fetched) return;
  const auto wait = [this] {
    if (sent) sent->wait();
    if (fetched) fetched->wait();
  };
  if (!device.is_cuda()) wait();
  for (const auto& stream : {made_stream, kept_stream, memo_stream}) {
    if (!stream) continue;
    const c10::StreamGuard guard(*stream);
    wait();
  }
  sent = fetched = nullptr;
} catch (const std::exception&) {
}

}  // namespace snug::tape
