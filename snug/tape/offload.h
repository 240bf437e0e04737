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
#include <utility>
#include <vector>

#include "snug/host/store.h"
#include "snug/tape/value.h"

namespace snug::tape {

class Offload {
 public:
  explicit Offload(std::shared_ptr<host::Store> store) : store_(std::move(store)) {}

  // Why it stays; empty if it was sent.
  std::string send(const ValuePtr& value);
  void leave();
  // Those with uses to come. Each follows its uses from here on, as if it had been re-made.
  void bring_back();
  void bring_back(Value& value);
  bool empty() const { return sent_.empty(); }

 private:
  host::Store& store(c10::Device device);

  std::shared_ptr<host::Store> store_;
  bool is_shared_ = false;  // nobody brought one
  std::vector<std::weak_ptr<Value>> sent_;
};

}  // namespace snug::tape
