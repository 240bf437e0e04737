// Every allocation, with what is alive once it is made. Equal for two steps that take and give back memory in
// the same order: between two allocations the order of frees does not matter.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "snug/trace/ledger.h"
#include "snug/trace/trace.h"

namespace snug {

struct LiveLog final : trace::EventSink {
  void write(const trace::Event& event, const trace::NameTable&) override {
    ledger.apply(event);
    if (event.kind == trace::EventKind::Alloc) taken.emplace_back(event.bytes, ledger.live_bytes());
  }

  trace::Ledger ledger;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken;
};

}  // namespace snug
