// Note [Away]
// Contents that are elsewhere between forward and backward, in another place or another form, and come back:
// a value that is to be offloaded has one of these from the time it is first needed. Value says when they go:
//
//   needs()        the backward will need these bytes: only the span of all of them moves
//   put()          the contents are asked to go
//   settle()       before their memory on the device is used for something else
//   bring_back()   memory on the device, and the contents are asked to come
//   arrive()       before they are read
//
// Nothing here asks whether a copy is done by now: the device waits. The host's memory is the one place that
// there is. Internal to tape; under the tape's lock.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "snug/host/schedule.h"
#include "snug/host/store.h"
#include "snug/tape/geometry.h"

namespace snug::tape {

class Tape;
class Value;

class Away {
 public:
  using Streams = std::span<const c10::Stream>;  // of the contents' device; none on the CPU: the caller waits

  virtual ~Away() = default;

  void needs(const at::Tensor& tensor) { span_.cover(tensor); }
  std::uint64_t bytes() const { return span_.size(); }
  std::uint64_t checksum(const c10::Storage& contents) const;  // of what moves

  // Why they stay; empty if they are on their way.
  virtual std::string put(const c10::Storage& contents) = 0;
  // As large as what was put; after the last use of an earlier one also once more.
  virtual c10::Storage bring_back() = 0;
  virtual void arrive(Streams streams) = 0;
  virtual void settle(Streams streams) = 0;

 protected:
  Span span_;
};

// In a slot of the store; null: of the process's own. On Meta nothing but device memory comes and goes.
std::unique_ptr<Away> on_the_host(std::shared_ptr<host::Store> store);

// A value with an Away as the schedule moves it, under the lock of its tape, for as long as both live.
std::shared_ptr<host::Item> as_item(const std::shared_ptr<Tape>& tape, const std::shared_ptr<Value>& value);

}  // namespace snug::tape
