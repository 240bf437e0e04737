#include "snug/tape/offload.h"

namespace snug::tape {

std::string Offload::send(const ValuePtr& value) {
  std::string why_not = value->send();
  if (why_not.empty()) sent_.push_back(value);
  return why_not;
}

void Offload::leave() {
  for (const std::weak_ptr<Value>& weak : sent_)
    if (const ValuePtr value = weak.lock()) value->leave();
}

void Offload::bring_back() {
  for (auto weak = sent_.rbegin(); weak != sent_.rend(); ++weak)
    if (const ValuePtr value = weak->lock(); value && value->is_moved() && value->uses > 0)
      value->bring_back();
}

}  // namespace snug::tape
