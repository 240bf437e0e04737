// Note [Offload]
// A value to be offloaded is on the device as long as its region's forward runs. Then
//
//   its region's forward ends            send(): the copy to the host is asked for
//   the next region's forward ends       leave(): the device's memory goes, after the copy
//   the backward of the next region begins   bring_back(): memory is taken, the copy back is asked for
//   a node of the backward needs it      the device waits for that copy
//   its last use                         the device's memory goes
//
// so the link has one region's time for each copy. All of it happens at fixed points of the thread that
// issues work: what the step needs does not depend on how fast the link is. "Next" is in the order of the
// forward; what no later region let leave is still there when its own backward begins.
//
// Internal to tape; under the tape's lock.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "snug/tape/value.h"

namespace snug::tape {

class Offload {
 public:
  std::string send(const ValuePtr& value);  // why it stays; empty if it was sent
  void leave();
  // Those with uses to come. Each follows its uses from here on, as if it had been recomputed.
  void bring_back();
  bool empty() const { return sent_.empty(); }

 private:
  std::vector<std::weak_ptr<Value>> sent_;
};

}  // namespace snug::tape
