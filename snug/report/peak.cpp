// One pass over a trace with a ledger and a few counters by name.
#include "snug/report/peak.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "snug/base/error.h"

namespace snug::report {
namespace {

using trace::Event;
using trace::EventKind;
using trace::NameId;
using trace::NameTable;

class Counter {
 public:
  void add(NameId id, std::uint64_t bytes) {
    if (id >= counts_.size()) counts_.resize(id + std::size_t{1});
    ++counts_[id].count;
    counts_[id].bytes += bytes;
  }

  std::vector<NamedCount> named(const NameTable& names) && {
    for (std::size_t id = 0; id < counts_.size(); ++id) {
      if (counts_[id].count > 0) counts_[id].name = names[static_cast<NameId>(id)];
    }
    std::erase_if(counts_, [](const NamedCount& entry) { return entry.count == 0; });
    std::ranges::sort(counts_, [](const NamedCount& a, const NamedCount& b) {
      if (a.bytes != b.bytes) return a.bytes > b.bytes;
      return a.count != b.count ? a.count > b.count : a.name < b.name;
    });
    return std::move(counts_);
  }

 private:
  std::vector<NamedCount> counts_;  // by NameId
};

class Pass {
 public:
  void apply(const Event& event, const NameTable& names) {
    ledger_.apply(event);
    switch (event.kind) {
      case EventKind::Alloc:
        allocated_ += event.bytes;
        break;
      case EventKind::Op:
        operators_.add(event.name, std::exchange(allocated_, 0));
        break;
      case EventKind::Mark:
        allocated_ = 0;
        if (names[event.name].starts_with("step ")) ++summary_.steps;
        break;
      case EventKind::Save:
        saves_.add(event.region, event.bytes);
        break;
      case EventKind::Unpack:
        unpacks_.add(event.region, event.bytes);
        break;
      case EventKind::Copy:
        copies_.add(event.name, event.bytes);
        break;
      case EventKind::Free:
      case EventKind::Retag:
        break;
    }
    ++summary_.events;
    summary_.seconds = static_cast<double>(event.time_ns) * 1e-9;
  }

  std::uint64_t events() const { return summary_.events; }

  Summary finish(const trace::TraceReader& reader) && {
    const NameTable& names = reader.names();
    summary_.peak = ledger_.peak(names);
    summary_.category_peaks = ledger_.category_peaks();
    summary_.live_at_end = ledger_.live_bytes();
    summary_.operators = std::move(operators_).named(names);
    summary_.saves = std::move(saves_).named(names);
    summary_.unpacks = std::move(unpacks_).named(names);
    summary_.copies = std::move(copies_).named(names);
    summary_.cut_short = reader.cut_short();
    summary_.info = reader.info();
    return std::move(summary_);
  }

 private:
  Summary summary_;
  trace::Ledger ledger_;
  std::uint64_t allocated_ = 0;  // since the last operator or mark
  Counter operators_, saves_, unpacks_, copies_;
};

}  // namespace

Summary summarise(const std::filesystem::path& trace) {
  trace::TraceReader reader(trace);
  Pass pass;
  for (Event event; reader.next(event);) {
    try {
      pass.apply(event, reader.names());
    } catch (const InternalError& error) {
      // The ledger speaks of a bug in snug, but here the events come from a file.
      std::string_view what = error.what();
      what.remove_prefix(what.find(": ") + 2);
      fail(trace.string(), ": event ", pass.events() + 1, " contradicts those before it: ", what);
    }
  }
  return std::move(pass).finish(reader);
}

}  // namespace snug::report
