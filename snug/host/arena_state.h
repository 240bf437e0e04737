// What an arena and its slots share, so that a slot may be dropped after its arena.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "snug/host/arena.h"
#include "snug/host/slab.h"

namespace snug::host {

// Note [Free pieces remember copies]
// A slot goes back as soon as nobody needs it, not when its copies are done: what is free must not depend on
// how fast the link is. So a free piece remembers the last copy out of it and the last one into it, and the
// slot that is made of it inherits them. Who copies into that slot waits for the last reader; the last writer
// is in the same direction, and so is done before. When neighbours merge, the later copy of each direction
// stands for both, for copies of one direction are done in the order of their numbers.
class ArenaState : public std::enable_shared_from_this<ArenaState> {
 public:
  explicit ArenaState(const ArenaOptions& options);
  ~ArenaState();
  ArenaState(const ArenaState&) = delete;  // slots point to it
  ArenaState& operator=(const ArenaState&) = delete;

  void reserve(std::uint64_t bytes);
  Slot take(std::uint64_t bytes);
  void give_back(const Slot& slot);
  // When the arena goes: waits for, and forgets, the copies of slots that went back. Those that live hold
  // theirs.
  void finish() noexcept;
  // Throws Error if the arena serves another device, or is not pinned and the device is a GPU.
  void serve(c10::Device device);

  std::uint64_t reserved_bytes() const;
  std::uint64_t used_bytes() const;
  std::uint64_t peak_bytes() const;
  void reset_peak();
  int growths() const;

 private:
  struct Piece {
    std::uint64_t bytes = 0;
    CopyPtr written, read;
  };
  struct Pool {
    std::unique_ptr<Slab> slab;
    std::map<std::uint64_t, Piece> free;  // by offset; no two touch
  };

  std::optional<Slot> take_from(Pool& pool, std::uint64_t bytes);
  // At least `need`, and what is convenient if there is room for it.
  Pool& add_slab(std::uint64_t need, std::uint64_t convenient);
  void check_budget(std::uint64_t need) const;

  const ArenaOptions options_;
  mutable std::mutex mutex_;
  std::vector<Pool> pools_;  // in the order in which they were reserved, which is that of first fit
  std::optional<c10::Device> device_;
  std::uint64_t reserved_ = 0, used_ = 0, peak_ = 0;
  int growths_ = 0;
};

}  // namespace snug::host
