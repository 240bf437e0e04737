#include "snug/session/trace_recorder.h"

#include "snug/base/error.h"

namespace snug::session {

TraceRecorder::TraceRecorder(const std::filesystem::path& path, const trace::TraceInfo& info,
                             std::int64_t steps)
    : steps_left_(steps) {
  if (!path.empty()) writer_.emplace(path, info);
}

TraceRecorder::~TraceRecorder() {
  if (failed_) return;  // the writer removes what it wrote
  try {
    finish();
  } catch (const RunError&) {
  }
}

void TraceRecorder::write(const trace::Event& event, const trace::NameTable& names) {
  if (!writer_) return;
  try {
    writer_->write(event, names);
  } catch (...) {
    failed_ = true;
    throw;
  }
}

void TraceRecorder::write(const std::vector<trace::RegionTape>& tapes) {
  if (!writer_) return;
  for (const trace::RegionTape& tape : tapes) writer_->write(tape);
}

void TraceRecorder::end_step() {
  if (--steps_left_ == 0) finish();
}

void TraceRecorder::finish() {
  if (!writer_) return;
  writer_->finish();
  writer_.reset();
}

}  // namespace snug::session
