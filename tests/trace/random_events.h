// Random streams of events: possible ones for the ledger, arbitrary ones for the file format.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "snug/trace/event.h"

namespace snug::trace::testing {

class RandomEvents {
 public:
  explicit RandomEvents(std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 12; ++i) names.intern("region." + std::to_string(i));
  }

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  // An event that can happen after those before it.
  Event possible() {
    Event event;
    event.region = static_cast<NameId>(below(names.size()));
    event.category = static_cast<Category>(below(kCategories));
    event.time_ns = time_ += static_cast<std::int64_t>(below(1'000));
    const std::uint64_t choice = below(100);
    if (choice < 45 || live_.empty()) {
      event.kind = EventKind::Alloc;
      event.block = ++blocks_;
      event.bytes = below(8) == 0 ? 0 : below(64) * 512;
      live_.push_back(event.block);
    } else if (choice < 85) {
      event.kind = EventKind::Free;
      std::swap(live_[below(live_.size())], live_.back());
      event.block = live_.back();
      live_.pop_back();
    } else if (choice < 95) {
      event.kind = EventKind::Retag;
      event.block = live_[below(live_.size())];
    } else {
      event.kind = EventKind::Op;
      event.name = static_cast<NameId>(below(names.size()));
    }
    return event;
  }

  // Any event the types allow, extremes included; now and then with a name that was not there before.
  Event arbitrary() {
    if (below(10) == 0) names.intern(std::string(below(40), 'n') + std::to_string(below(1'000)));
    Event event;
    event.kind = static_cast<EventKind>(below(kEventKinds));
    event.category = static_cast<Category>(below(kCategories));
    event.region = static_cast<NameId>(below(names.size()));
    event.name = static_cast<NameId>(below(names.size()));
    event.block = number();
    event.bytes = number();
    event.time_ns = static_cast<std::int64_t>(number());
    return event;
  }

  NameTable names;

 private:
  std::uint64_t number() {
    const std::array<std::uint64_t, 4> extremes = {0, 1, ~std::uint64_t{0}, std::uint64_t{1} << 63};
    return below(8) == 0 ? extremes[below(extremes.size())] : random_() >> below(64);
  }

  std::mt19937_64 random_;
  std::vector<BlockId> live_;
  BlockId blocks_ = 0;
  std::int64_t time_ = 0;
};

}  // namespace snug::trace::testing
