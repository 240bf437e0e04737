// While it lives, every region of this thread's forward is recorded, and each value meets the fate it is
// given.
//
//   tape::Recording recording(tape::Fates::cheap());
//   model->loss(batch).backward();
//   std::cout << report::recomputed(recording.totals());
//
// Nothing of the model changes and nothing of it runs twice. Recordings nest: the innermost gives the fates
// and says whether generators are recorded. A region inside another shares its tape, and with it the other
// options and the totals of the Recording that opened it. The calls of a region in one forward are named
// "layer", "layer#2", "layer#3"; after a backward the count starts again.
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "snug/base/export.h"
#include "snug/hooks/operators.h"
#include "snug/hooks/region.h"
#include "snug/hooks/saved_tensors.h"
#include "snug/host/store.h"
#include "snug/tape/fates.h"
#include "snug/tape/sketch_listener.h"
#include "snug/trace/region_totals.h"
#include "snug/trace/region_tape.h"

namespace snug::tape {

// A recomputed value that differs from the one of the forward is an error in the backward: never, if it has
// another size, or if any bit differs. Bits takes a checksum of every value when it is made and when it is
// used.
enum class DeterminismCheck { None, Size, Bits };

// How much of what is to be offloaded is: the first values of each region up to this share of its bytes, and
// the first regions of a forward up to these bytes (of several forwards, if no backward has begun between
// them). The rest is kept.
struct OffloadLimit {
  double share = 1;
  std::uint64_t bytes = std::numeric_limits<std::uint64_t>::max();
};

struct RecordingOptions {
  bool record_generators = true;  // random operators draw the same numbers again
  DeterminismCheck determinism_check = DeterminismCheck::Size;
  bool spare_statistics =
      true;             // batch norm's running statistics move in the forward, not again in the backward
  bool verify = false;  // as Bits, but counts in totals() instead of throwing
  bool time_replays = false;
  bool describe = false;              // keep the tapes as plain data
  SketchListener* sketch = nullptr;   // hears of tapes as they are made; they are described
  std::shared_ptr<host::Store> host;  // where values go that are offloaded; null: the process's own
  OffloadLimit offload;
  bool stand_ins = false;  // Meta only: nothing is kept, and what the backward asks for is made of nothing
  // The first call of each region with a new structure is proven: it holds the region whole, and what someone
  // writes past the dispatcher is found and never recomputed. False: the caller knows that nobody does.
  bool prove = true;
  std::uint64_t place = 0;  // in the program: regions of one name at other places are proven apart
  // Parameters and buffers of the model, frozen ones too: they stay where they are.
  std::vector<at::Tensor> model;
  // What runs in no region is recorded too, where autograd follows it: each stretch between named regions, or
  // up to the backward, is a region "rest".
  bool rest = false;
  // Whether the end of a Function that is not pure (see pure.h) is noticed. Default: in a process with
  // Python, whose Functions tell of themselves.
  std::optional<bool> watch_functions;
};

class SNUG_API Recording {
 public:
  explicit Recording(Fates fates, const RecordingOptions& options = {});
  ~Recording();
  Recording(const Recording&) = delete;  // it is a place in torch's stacks of hooks
  Recording& operator=(const Recording&) = delete;

  // Between steps, for regions that begin from now on.
  void use(Fates fates, SketchListener* sketch = nullptr);
  void offload_to(std::shared_ptr<host::Store> host);  // the same

  // Passes, each a forward up to its backward, are counted from here on. take_tapes() and use() end a step
  // too.
  void end_step();

  // Of the regions whose graphs are gone, so after the backward. Waits for the device if replays are timed.
  trace::Totals totals() const;
  // Between steps, with `describe`: of the same regions, in the order of their forwards; taken away.
  std::vector<trace::RegionTape> take_tapes();
  std::map<std::uint64_t, trace::RegionTape> take_numbered_tapes();  // as SketchListener numbers them

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Every region is proven again when it is next called.
SNUG_API void forget_proofs();

// Values that tapes hold at the moment, in the whole process: 0 when every graph is gone.
SNUG_API std::int64_t live_values();

}  // namespace snug::tape
