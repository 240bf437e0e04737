#include "snug/host/arena.h"

#include <filesystem>
#include <utility>

#include "snug/host/arena_state.h"
#include "snug/host/free_memory.h"

namespace snug::host {

Slot::Slot(Slot&& other) noexcept
    : state_(std::move(other.state_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      written_(std::move(other.written_)),
      read_(std::move(other.read_)) {}

Slot& Slot::operator=(Slot&& other) noexcept {
  if (this == &other) return *this;
  release();
  state_ = std::move(other.state_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  written_ = std::move(other.written_);
  read_ = std::move(other.read_);
  return *this;
}

Slot::~Slot() {
  release();
}

void Slot::finish() const {
  if (written_) written_->finish();
  if (read_) read_->finish();
}

void Slot::release() noexcept {
  if (!state_) return;
  state_->give_back(*this);
  state_.reset();  // the last one unmaps
  data_ = nullptr;
  bytes_ = 0;
  written_.reset();
  read_.reset();
}

Arena::Arena(const ArenaOptions& options) : state_(std::make_shared<ArenaState>(options)) {}
Arena::~Arena() {
  state_->finish();
}

void Arena::reserve(std::uint64_t bytes) {
  state_->reserve(bytes);
}
Slot Arena::take(std::uint64_t bytes) {
  return state_->take(bytes);
}
std::uint64_t Arena::reserved_bytes() const {
  return state_->reserved_bytes();
}
std::uint64_t Arena::used_bytes() const {
  return state_->used_bytes();
}
std::uint64_t Arena::peak_bytes() const {
  return state_->peak_bytes();
}
void Arena::reset_peak() {
  state_->reset_peak();
}
int Arena::growths() const {
  return state_->growths();
}

std::uint64_t free_host_bytes() {
  return free_host_bytes_below("/");
}

}  // namespace snug::host
