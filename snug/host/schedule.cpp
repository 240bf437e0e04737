#include "snug/host/schedule.h"

#include <ranges>
#include <utility>

#include "snug/trace/moves.h"

namespace snug::host {

std::size_t Schedule::begin_forward() {
  std::lock_guard lock(mutex_);
  regions_.emplace_back();
  return regions_.size() - 1;
}

std::string Schedule::send(std::size_t region, std::shared_ptr<Item> item) {
  std::string why_not = item->send();
  if (!why_not.empty()) return why_not;
  std::lock_guard lock(mutex_);
  sent_bytes_ += item->bytes();
  regions_.at(region).push_back(std::move(item));
  return "";
}

void Schedule::end_forward(std::size_t region) {
  if (const auto copied = trace::copies_beside(region))
    for (const auto& item : items_of(*copied)) item->leave();
}

void Schedule::begin_backward(std::size_t region) {
  for (const auto& item : items_of(region) | std::views::reverse) item->fetch();
  if (const auto copied = trace::copies_beside(region))
    for (const auto& item : items_of(*copied) | std::views::reverse) item->fetch();
}

void Schedule::forget(std::size_t region) {
  std::lock_guard lock(mutex_);
  regions_.at(region) = {};
}

std::uint64_t Schedule::sent_bytes() const {
  std::lock_guard lock(mutex_);
  return sent_bytes_;
}

Schedule::Items Schedule::items_of(std::size_t region) const {
  std::lock_guard lock(mutex_);
  return regions_.at(region);
}

}  // namespace snug::host
