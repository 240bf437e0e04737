#include "snug/tape/value.h"

#include <algorithm>
#include <atomic>

namespace snug::tape {

namespace {
std::atomic<std::int64_t> live_values{0};
}

Value::Value() {
  ++live_values;
}
Value::~Value() {
  --live_values;
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
  watch_later = false;
}

}  // namespace snug::tape
