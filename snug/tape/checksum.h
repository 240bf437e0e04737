// 64-bit checksums of storages: a change of any one word changes it, other changes but for one in 2^64.
// Internal to tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

#include "snug/tape/geometry.h"

namespace snug::tape {

// They wait for the device, and are 0 on Meta.
std::uint64_t checksum(const c10::Storage& storage);
std::uint64_t checksum(const c10::Storage& storage, const Span& span);

// Many of them, each of the contents at its place in the current stream, and one wait for all.
class Checksums {
 public:
  using Ticket = std::uint32_t;

  Ticket reserve(c10::Device device);                     // may allocate on the device, a little
  void take(Ticket ticket, const c10::Storage& storage);  // of that device; allocates nothing
  void join();    // what is taken from here on is taken after all that was, on any stream
  void settle();  // waits
  std::uint64_t operator[](Ticket ticket) const { return sums_[ticket]; }  // taken and settled

 private:
  static constexpr std::size_t kChunk = 1024;

  struct Chunk {
    at::Tensor slots;  // on the device, zero at first
    c10::Stream stream;
    std::vector<Ticket> tickets;
  };
  struct Place {
    std::size_t chunk, slot;  // unused on the CPU
  };
  std::vector<std::uint64_t> sums_;
  std::vector<Place> places_;
  std::vector<Chunk> chunks_;
  std::vector<c10::Stream> streams_;  // that took some
};

}  // namespace snug::tape
