#include "snug/host/region_weights.h"

#include <algorithm>

namespace snug::host {

namespace {

constexpr std::size_t kNone = ~std::size_t{0};

}  // namespace

std::size_t RegionWeights::add_region() {
  regions_.emplace_back();
  return regions_.size() - 1;
}

void RegionWeights::add(std::size_t place, MovingTensor* weight) {
  regions_.at(place).push_back(weight);
}

void RegionWeights::begin_forward(std::size_t place) {
  use(place);
  fetch(place + 1);
}

// The source may have the next one's by now.
void RegionWeights::end_forward(std::size_t place) {
  if (place + 1 == regions_.size()) return;
  drop_all_but(place + 1);
  fetch(place + 1);
}

void RegionWeights::end_backward(std::size_t place) {
  drop_all_but(place == 0 ? 0 : place - 1);
}

void RegionWeights::fetch(std::size_t place, bool wait) {
  if (place >= regions_.size()) return;
  const bool is_ready = !before_fetch_ || before_fetch_(place, wait);
  for (MovingTensor* const weight : regions_[place]) weight->fetch(is_ready);
}

void RegionWeights::use(std::size_t place) {
  fetch(place, /*wait=*/true);
  for (MovingTensor* const weight : regions_.at(place)) weight->use();
}

void RegionWeights::drop_all() {
  drop_all_but(kNone);
}

void RegionWeights::drop_all_but(std::size_t place) {
  for (std::size_t i = 0; i < regions_.size(); ++i)
    for (MovingTensor* const weight : regions_[i]) {
      const bool is_needed =
          place < regions_.size() && std::ranges::find(regions_[place], weight) != regions_[place].end();
      if (!is_needed) weight->drop();
    }
}

}  // namespace snug::host
