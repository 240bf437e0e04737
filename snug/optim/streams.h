// Streams of a device: which is current, and which waits for which. Internal to optim.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstddef>

namespace snug::optim {

// Of those beside the caller's that a link has: see host::Link::stream_beside().
enum StreamsBeside : std::size_t { kOfUpdates, kOfHostWorker, kFirstOfBuffers };

// The one that this thread gives a device's work to.
inline c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// What `later` is given from now on happens after all that `first` was given.
inline void run_after(const c10::Stream& first, const c10::Stream& later) {
  c10::Event reached(first.device_type());
  reached.record(first);
  reached.block(later);
}

}  // namespace snug::optim
