// Host memory for what leaves the device: made at start, handed out in pieces.
//
//   Arena arena({.pinned = true, .budget_bytes = 64_GiB});
//   arena.reserve(20_GiB);                 // before the first step: pinning takes 0.14 s per GiB
//   Slot slot = arena.take(128_MiB);       // nothing is allocated or pinned, unless more is taken than
//   reserved
#pragma once

#include <cstdint>
#include <memory>

#include "snug/base/export.h"
#include "snug/host/copy.h"

namespace snug::host {

// What is taken is rounded up to these, as torch's CUDA blocks.
inline constexpr std::uint64_t kPieceBytes = 512;

struct ArenaOptions {
  bool pinned = false;             // for a GPU: copies to and from it run beside the host and at full rate
  std::uint64_t budget_bytes = 0;  // of all slabs together
};

// A piece of the arena; goes back when it goes, also while it is being copied. For one thread at a time.
class SNUG_API Slot {
 public:
  Slot() = default;
  Slot(Slot&&) noexcept;
  Slot& operator=(Slot&&) noexcept;
  ~Slot();

  void* data() const { return data_; }
  std::uint64_t bytes() const { return bytes_; }
  explicit operator bool() const { return data_ != nullptr; }
  // The host waits until it may read and write the bytes itself. A slot that was just taken may still be
  // under a copy of whoever had the place before.
  void finish() const;

 private:
  friend class ArenaState;
  friend class Link;

  void release() noexcept;

  std::shared_ptr<class ArenaState> state_;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
  CopyPtr written_;  // the copy that fills it
  CopyPtr read_;     // the last copy out of it: who fills it next waits for that one
};

// Thread-safe. Pieces are handed out first fit, so the same sequence of takes and returns gives the same
// places. An arena serves one device: only copies of one link have an order.
class SNUG_API Arena {
 public:
  explicit Arena(const ArenaOptions& options);
  ~Arena();                      // waits for copies that are under way; the memory goes with the last slot
  Arena(const Arena&) = delete;  // slots point into it
  Arena& operator=(const Arena&) = delete;

  // Throws Error if that is more than the budget, than the host has free, or than may be pinned.
  void reserve(std::uint64_t bytes);
  // As reserve(), if nothing that is there is large enough.
  Slot take(std::uint64_t bytes);

  std::uint64_t reserved_bytes() const;
  std::uint64_t used_bytes() const;  // whole pieces
  std::uint64_t peak_bytes() const;
  void reset_peak();
  int growths() const;  // times that take() had to reserve

 private:
  std::shared_ptr<class ArenaState> state_;
};

// What this process may still take: of the machine, or of its container if that is less.
SNUG_API std::uint64_t free_host_bytes();

}  // namespace snug::host
