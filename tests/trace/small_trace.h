// A trace small enough to be damaged at every byte, and the saving of any trace.
#pragma once

#include <filesystem>

#include "snug/trace/trace.h"

namespace snug::trace::testing {

// A small trace with names, every kind of event and several sizes of number.
inline Trace small_trace() {
  Trace trace;
  trace.info = {.device = "cpu", .about = {{"model", "tiny"}}};
  const NameId block = trace.names.intern("block.0");
  const NameId add = trace.names.intern("aten::add");
  const NameId to_host = trace.names.intern("to_host");
  const NameId step = trace.names.intern("step 1");
  trace.events = {
      {.kind = EventKind::Mark, .name = step},
      {.kind = EventKind::Alloc, .category = Category::Parameter, .block = 1, .bytes = 1 << 20, .time_ns = 5},
      {.kind = EventKind::Alloc,
       .category = Category::Temporary,
       .region = block,
       .block = 2,
       .bytes = 512,
       .time_ns = 900},
      {.kind = EventKind::Op, .region = block, .name = add, .time_ns = 1'000},
      {.kind = EventKind::Save, .region = block, .block = 2, .bytes = 512, .time_ns = 1'100},
      {.kind = EventKind::Retag,
       .category = Category::Activation,
       .region = block,
       .block = 2,
       .time_ns = 1'100},
      {.kind = EventKind::Copy, .region = block, .name = to_host, .bytes = 512, .time_ns = 2'000'000},
      {.kind = EventKind::Unpack, .region = block, .block = 2, .time_ns = 3'000'000},
      {.kind = EventKind::Free, .block = 2, .time_ns = 3'000'100},
  };
  return trace;
}

inline void save(const Trace& trace, const std::filesystem::path& path) {
  TraceWriter writer(path, trace.info);
  for (const Event& event : trace.events) writer.write(event, trace.names);
  writer.finish();
}

}  // namespace snug::trace::testing
