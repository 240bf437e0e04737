// Writes the trace of a run's first steps. Internal to session.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "snug/trace/trace.h"

namespace snug::session {

class TraceRecorder final : public trace::EventSink {
 public:
  // Empty path: no trace.
  TraceRecorder(const std::filesystem::path& path, const trace::TraceInfo& info, std::int64_t steps);
  // A run that failed for want of memory leaves its trace: it shows why. Never throws.
  ~TraceRecorder() override;

  trace::EventSink* sink() { return writer_ ? this : nullptr; }
  void write(const trace::Event& event, const trace::NameTable& names) override;
  void write(const std::vector<trace::RegionTape>& tapes);
  void end_step();
  void finish();

 private:
  std::optional<trace::TraceWriter> writer_;
  std::int64_t steps_left_;
  bool failed_ = false;
};

}  // namespace snug::session
