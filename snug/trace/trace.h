// Traces on disk and in memory. Written as a stream in a compact form, so that ten million events need no RAM to speak of.
//
//   TraceWriter writer("step.trace", {.device = "cpu"});
//   writer.write(event, names);
//   writer.finish();
//   Trace trace = load("step.trace");  // a file cut short is read up to the cut, and says so
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/trace/event.h"

namespace snug::trace {

struct TraceInfo {
  std::string device;             // "cpu", "cuda:0", "meta"
  Json about = Json::object();    // free for the writer: model, batch, command; shown by reports
};

struct Trace {
  TraceInfo info;
  NameTable names;
  std::vector<Event> events;
  bool cut_short = false;         // the file ended inside its last chunk; everything before it is here
};

// Receives events one by one as they happen.
class SNUG_API EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void write(const Event& event, const NameTable& names) = 0;
};

// Note [Trace file]: "SNUGTRC1", a length-prefixed JSON header with its checksum, then chunks of [payload bytes u32]
// [crc32 u32][payload]. A payload holds records; a record is a kind byte and varints, times and blocks as differences.
// Names are defined in the chunk that first uses them. The last chunk is an end record with the number of events.
class SNUG_API TraceWriter final : public EventSink {
 public:
  TraceWriter(const std::filesystem::path& path, const TraceInfo& info);
  ~TraceWriter() override;        // without finish() the file is removed
  void write(const Event& event, const NameTable& names) override;
  void finish();                  // throws RunError when the disk is full
  std::uint64_t events() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads one event at a time in constant memory. A damaged header or chunk, or a foreign file, is an Error that names it.
class SNUG_API TraceReader {
 public:
  explicit TraceReader(const std::filesystem::path& path);
  ~TraceReader();
  bool next(Event& event);        // false at the end, or at the cut
  const TraceInfo& info() const;
  const NameTable& names() const; // grows while reading
  bool cut_short() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

SNUG_API Trace load(const std::filesystem::path& path);

}  // namespace snug::trace
