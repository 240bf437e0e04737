// Makes a sketch of a step while it runs, from its memory, its operators and its tapes.
//
//   Sketcher sketcher(tracker);
//   hooks::OperatorListenerGuard guard(sketcher);
//   tape::Recording recording(tape::Fates::recompute());
//   ...
//   sketcher.begin(recording);
//   run_step();
//   trace::Sketch sketch = sketcher.finish(recording);
//
// On a real device nothing is kept for the backward meanwhile: all is recomputed. It is then exact but for
// one thing: what a region is given counts as alive as long as recomputing needs it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "snug/base/export.h"
#include "snug/hooks/operators.h"
#include "snug/memory/tracker.h"
#include "snug/tape/recording.h"
#include "snug/trace/sketch.h"

namespace snug::capture {

class SketchedMoments;

class SNUG_API Sketcher final : public hooks::OperatorListener, public tape::SketchListener {
 public:
  explicit Sketcher(memory::Tracker& tracker, bool stand_ins = false);  // as in RecordingOptions
  ~Sketcher() override;
  Sketcher(const Sketcher&) = delete;  // it listens
  Sketcher& operator=(const Sketcher&) = delete;

  // Between steps. The recording is younger than the listener's guard. `fates`: on a real device, which keep
  // nothing; what comes into a region may wait on the host.
  void begin(tape::Recording& recording, tape::Fates fates = tape::Fates::recompute());
  // What happens in between is not part of it; what it leaves was there before the step.
  void pause(tape::Recording& recording);
  void go_on(tape::Recording& recording);
  // Throws Error if the graph of a region is still there. The recording has all fates Recompute afterwards.
  // `inputs_may_leave`: plans may send to the host what these fates sent there.
  trace::Sketch finish(tape::Recording& recording, bool inputs_may_leave = false);
  // Instead: what was sketched so far is of no use.
  void abandon(tape::Recording& recording);
  // Of what the finished step left: the tracker's block, and the sketch's.
  const std::unordered_map<trace::BlockId, std::uint32_t>& left() const { return left_; }

  void on_operator(hooks::OperatorCall& call) override;
  void on_begin(std::uint64_t tape) override;
  void on_end(std::uint64_t tape) override;
  void on_value(std::uint64_t tape, trace::ValueIndex value, const at::Tensor& tensor) override;
  void on_operation(std::uint64_t tape, std::uint32_t operation) override;
  void on_save(std::uint64_t tape) override;
  void before_unpack(std::uint64_t tape, std::size_t save) override;
  void after_unpack() override;
  void on_release(std::uint64_t tape, std::size_t save) override;

 private:
  // Where a tape's parts were, as it was described.
  struct Places {
    std::map<trace::ValueIndex, trace::BlockId> blocks;
    std::vector<std::uint32_t> operators;  // by operation
    std::vector<std::uint32_t> saved_at;   // by save
  };

  trace::Sketch::Call make_call(const SketchedMoments& moments, std::uint64_t number,
                                trace::RegionTape tape) const;

  memory::Tracker& tracker_;
  const bool stand_ins_;
  std::unique_ptr<SketchedMoments> moments_;  // while it sketches
  std::mutex mutex_;  // of moments_->sketch.operators and places_: a backward may run on several threads
  std::map<std::uint64_t, Places> places_;  // by tape
  std::unordered_map<trace::BlockId, std::uint32_t> left_;
};

}  // namespace snug::capture
