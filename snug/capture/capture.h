// Runs a step and writes down what it did to memory. On Meta it predicts, taking no memory; on a real device
// it measures. Both give the same type, so comparing them is one function.
//
//   Captured predicted = capture(c10::kMeta, [&](memory::Tracker& tracker) {
//     auto model = on_meta([&] { return MyModel(options); });
//     tracker.adopt(model->parameters(), trace::Category::Parameter);
//     model->loss(tokens).backward();
//   });
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <vector>

#include "snug/base/export.h"
#include "snug/hooks/operators.h"
#include "snug/memory/tracker.h"
#include "snug/trace/region_tape.h"

namespace snug::capture {

struct Captured {
  trace::Snapshot peak;
  trace::CategoryBytes category_peaks{};  // each category's own maximum; these moments differ
  trace::Snapshot live_at_end;            // what `run` left behind when it returned
  std::uint64_t operators = 0;
  std::vector<trace::RegionTape>
      tapes;  // of the regions whose graphs are gone, in the order of their forwards
};

struct CaptureOptions {
  trace::EventSink* sink = nullptr;  // gets every event
  bool tapes = false;                // record every region, all of it kept
  bool workspaces = true;            // Meta: stand for the CPU, with what its kernels take for themselves
};

// An operator that cannot run on Meta is an Error that names it and its region; so is autocast, which Meta
// does not have.
SNUG_API Captured capture(c10::Device device, const std::function<void(memory::Tracker&)>& run,
                          const CaptureOptions& options = {});

// While it lives, tensors made from nothing on this thread are made on Meta, whatever device they would have
// had: for building modules. Not for running them: code that fills a new tensor through its pointer would
// find none.
class SNUG_API MetaDeviceScope {
 public:
  MetaDeviceScope();
  ~MetaDeviceScope();
  MetaDeviceScope(const MetaDeviceScope&) = delete;  // see hooks::FrameGuard
  MetaDeviceScope& operator=(const MetaDeviceScope&) = delete;

 private:
  class Redirect;
  std::unique_ptr<Redirect> redirect_;
  hooks::OperatorListenerGuard guard_;
};

template <class Make>
auto on_meta(Make make) {
  MetaDeviceScope scope;
  return make();
}

}  // namespace snug::capture
