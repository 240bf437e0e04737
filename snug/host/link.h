// The link between a device and the host, one queue per direction.
//
//   const auto link = Link::open(device);
//   const CopyPtr sent = link->to_host(storage.data(), slot, bytes);
//   ...
//   sent->wait();                   // from here on the device may write into the storage, or free it
//   const CopyPtr fetched = link->to_device(other.mutable_data(), slot, bytes);
//   fetched->wait();                // from here on the device may read it
//
// A copy begins after all that the device's current stream was given before it was asked for, and after the
// copies that its slot depends on. Nothing waits for "done by now": what is free when does not depend on how
// fast the link is.
//
// Note [One queue per direction]
// Copies are done in the order in which they are asked for. Queues of their own, one for what is urgent and
// one for what streams by the gigabyte, were tried: an H200's copy engine stays with a queue for as long as
// that has copies that are ready, whatever the streams' priorities, and the urgent ones waited until all else
// was done. So who asks for much asks for it late: see optim/deferred.cpp.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "snug/base/export.h"
#include "snug/host/arena.h"
#include "snug/host/copy.h"

namespace snug::host {

class SNUG_API Link {
 public:
  virtual ~Link() = default;
  // The one link of that device. CUDA: a stream per direction, for as long as the process lives. CPU: a
  // thread per direction, for as long as anyone holds the link.
  static std::shared_ptr<Link> open(c10::Device device);

  c10::Device device() const { return device_; }
  // For work between copies, beside the caller's stream, by number; none where nothing runs beside the
  // caller. Of our own: the first that torch's pool hands out makes a hundred more, in some 60 MiB of the
  // device.
  virtual std::optional<c10::Stream> stream_beside(std::size_t) { return std::nullopt; }

  // bytes <= slot.bytes(); for CUDA the slot is of a pinned arena. Memory at `from` or `to` is held by the
  // caller until it waited for the copy.
  CopyPtr to_host(const void* from, Slot& to, std::uint64_t bytes);
  CopyPtr to_device(void* to, Slot& from, std::uint64_t bytes);

  // For whoever keeps the order of copies himself: after `before`, if there is one, and after no other of the
  // same host memory.
  // `since`: a mark(), instead of all that the current stream was given by now.
  virtual CopyPtr copy_to_host(const void* from, void* to, std::uint64_t bytes, const CopyPtr& before,
                               const CopyPtr& since = nullptr) = 0;
  virtual CopyPtr copy_to_device(void* to, const void* from, std::uint64_t bytes, const CopyPtr& before,
                                 const CopyPtr& since = nullptr) = 0;
  // Done when all that the current stream was given so far is; null where the caller is that far already.
  virtual CopyPtr mark() { return nullptr; }

 protected:
  explicit Link(c10::Device device) : device_(device) {}

 private:
  const c10::Device device_;
};

}  // namespace snug::host
