// Traces on disk and in memory. Written as a compact stream: ten million events need no RAM to speak of.
//
//   TraceWriter writer("step.trace", {.device = "cpu"});
//   writer.write(event, names);
//   writer.finish();
//   Trace trace = load("step.trace");  // a file cut short is read up to the cut, and says so
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/trace/event.h"
#include "snug/trace/region_tape.h"

namespace snug::trace {

struct TraceInfo {
  std::string device;           // "cpu", "cuda:0", "meta"
  Json about = Json::object();  // free for the writer: model, batch, command; shown by reports
};

struct Trace {
  TraceInfo info;
  NameTable names;
  std::vector<Event> events;
  std::vector<RegionTape> tapes;
  bool cut_short = false;  // the file ended inside its last chunk; everything before it is here
};

// Receives events one by one as they happen.
class SNUG_API EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void write(const Event& event, const NameTable& names) = 0;
};

// Note [Trace file]: "SNUGTRC1", then a header (JSON) and chunks (records), each as [bytes][crc32][payload]
// with u32 little-endian. A record is a name (numbered in order, before the first event that uses it), an
// event (kind, which fields follow, then varints; times and blocks as differences), a piece of a region's
// tape, or the end with the number of events. The end stands alone in the last chunk: a file without it was
// cut short.
class SNUG_API TraceWriter final : public EventSink {
 public:
  TraceWriter(const std::filesystem::path& path, const TraceInfo& info);
  ~TraceWriter() override;  // without finish() the file is removed
  // Always the same table: its numbers are the file's. Throws RunError once the disk is full.
  void write(const Event& event, const NameTable& names) override;
  void write(const RegionTape& tape);
  void finish();
  std::uint64_t events() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads one event at a time in constant memory. Damage, or a foreign file, is an Error that names the file.
class SNUG_API TraceReader {
 public:
  explicit TraceReader(const std::filesystem::path& path);
  ~TraceReader();
  bool next(Event& event);  // false at the end, or at the cut
  const TraceInfo& info() const;
  const NameTable& names() const;                // grows while reading
  const std::vector<RegionTape>& tapes() const;  // likewise
  bool cut_short() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

SNUG_API Trace load(const std::filesystem::path& path);

}  // namespace snug::trace
