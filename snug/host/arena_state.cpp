#include "snug/host/arena_state.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/host/pin.h"

namespace snug::host {

namespace {

constexpr std::uint64_t kSlabUnit = 2_MiB;
constexpr std::uint64_t kLeastGrowth = 64_MiB;

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

const CopyPtr& later(const CopyPtr& a, const CopyPtr& b) {
  if (!a || !b) return a ? a : b;
  return a->number() < b->number() ? b : a;
}

void finish_quietly(const CopyPtr& copy) noexcept {
  try {
    if (copy) copy->finish();
  } catch (const std::exception& error) {
    TORCH_WARN("a copy to or from host memory failed: ", error.what());
  }
}

}  // namespace

ArenaState::ArenaState(const ArenaOptions& options) : options_(options) {
  if (options_.pinned) check_can_pin();
}

ArenaState::~ArenaState() {
  finish();  // nothing may be unmapped under a copy
}

void ArenaState::reserve(std::uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (bytes <= reserved_) return;
  const std::uint64_t need = bytes - reserved_;
  check_budget(need);
  add_slab(need, round_up(need, kSlabUnit));
}

Slot ArenaState::take(std::uint64_t bytes) {
  check(bytes > 0, "host memory: a slot of 0 bytes was asked for");
  std::lock_guard lock(mutex_);
  const std::uint64_t need =
      std::max(bytes, round_up(bytes, kPieceBytes));  // what overflows is refused below
  std::optional<Slot> slot;
  for (Pool& pool : pools_)
    if ((slot = take_from(pool, need))) break;
  if (!slot) {
    check_budget(need);
    slot = take_from(add_slab(need, std::max(round_up(need, kSlabUnit), kLeastGrowth)), need);
    ensure(slot.has_value(), "a slab is smaller than what it was made for");
    ++growths_;
  }
  slot->state_ = shared_from_this();
  slot->bytes_ = bytes;
  used_ += need;
  peak_ = std::max(peak_, used_);
  return std::move(*slot);
}

std::optional<Slot> ArenaState::take_from(Pool& pool, std::uint64_t bytes) {
  const auto found =
      std::ranges::find_if(pool.free, [&](const auto& at) { return at.second.bytes >= bytes; });
  if (found == pool.free.end()) return std::nullopt;
  const std::uint64_t offset = found->first;
  Slot slot;
  slot.data_ = pool.slab->data() + offset;
  slot.written_ = found->second.written;
  slot.read_ = found->second.read;
  auto rest = pool.free.extract(found);
  if (rest.mapped().bytes > bytes) {
    rest.key() += bytes;
    rest.mapped().bytes -= bytes;
    pool.free.insert(std::move(rest));
  }
  return slot;
}

void ArenaState::give_back(const Slot& slot) {
  std::lock_guard lock(mutex_);
  Pool& pool = *std::ranges::find_if(pools_, [&](const Pool& at) { return at.slab->contains(slot.data_); });
  const auto offset =
      static_cast<std::uint64_t>(static_cast<const std::byte*>(slot.data_) - pool.slab->data());
  Piece piece{round_up(slot.bytes_, kPieceBytes), slot.written_, slot.read_};
  used_ -= piece.bytes;

  const auto merge = [&](const Piece& other) {
    piece = {piece.bytes + other.bytes, later(piece.written, other.written), later(piece.read, other.read)};
  };
  auto next = pool.free.upper_bound(offset);
  if (next != pool.free.end() && next->first == offset + piece.bytes) {
    merge(next->second);
    next = pool.free.erase(next);
  }
  if (next != pool.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second.bytes == offset) {
      merge(before->second);
      before->second = std::move(piece);
      return;
    }
  }
  pool.free.emplace_hint(next, offset, std::move(piece));
}

void ArenaState::finish() noexcept {
  std::vector<CopyPtr> copies;  // waited for outside the lock
  {
    std::lock_guard lock(mutex_);
    for (Pool& pool : pools_)
      for (auto& [offset, piece] : pool.free)
        for (CopyPtr* copy : {&piece.written, &piece.read}) copies.push_back(std::exchange(*copy, nullptr));
  }
  for (const CopyPtr& copy : copies) finish_quietly(copy);
}

void ArenaState::serve(c10::Device device) {
  check(options_.pinned || !device.is_cuda(), "host memory: copies to and from ", device.str(),
        " need a pinned arena (ArenaOptions::pinned)");
  std::lock_guard lock(mutex_);
  if (!device_) device_ = device;
  check(*device_ == device, "host memory: the arena serves ", device_->str(), ", not ", device.str(),
        ": make one arena per device");
}

ArenaState::Pool& ArenaState::add_slab(std::uint64_t need, std::uint64_t convenient) {
  const std::uint64_t free = free_host_bytes();
  check(need <= free, "host memory: ", format_bytes(need),
        " more is wanted, and the machine (or its container) has ", format_bytes(free),
        " free: lower `host_budget`, or end what else uses memory here");
  const bool room = convenient <= std::min(free, options_.budget_bytes - reserved_);
  Pool pool{std::make_unique<Slab>(room ? convenient : need, options_.pinned), {}};
  const std::uint64_t usable = pool.slab->bytes() / kPieceBytes * kPieceBytes;
  if (usable > 0) pool.free.emplace(0, Piece{usable, nullptr, nullptr});
  reserved_ += pool.slab->bytes();
  return pools_.emplace_back(std::move(pool));
}

void ArenaState::check_budget(std::uint64_t need) const {
  if (need <= options_.budget_bytes - reserved_) return;
  std::uint64_t largest = 0;
  for (const Pool& pool : pools_)
    for (const auto& [offset, piece] : pool.free) largest = std::max(largest, piece.bytes);
  fail("host memory: ", format_bytes(need), " (", need, " bytes) more is wanted; of the budget of ",
       format_bytes(options_.budget_bytes), " ", format_bytes(reserved_), " is reserved, of that ",
       format_bytes(used_), " is in use and the largest free piece is ", format_bytes(largest),
       ": raise `host_budget`, or keep more on the device");
}

std::uint64_t ArenaState::reserved_bytes() const {
  std::lock_guard lock(mutex_);
  return reserved_;
}
std::uint64_t ArenaState::used_bytes() const {
  std::lock_guard lock(mutex_);
  return used_;
}
std::uint64_t ArenaState::peak_bytes() const {
  std::lock_guard lock(mutex_);
  return peak_;
}
void ArenaState::reset_peak() {
  std::lock_guard lock(mutex_);
  peak_ = used_;
}
int ArenaState::growths() const {
  std::lock_guard lock(mutex_);
  return growths_;
}

}  // namespace snug::host
