#include "snug/host/link.h"

#include "snug/base/error.h"
#include "snug/host/arena_state.h"
#include "snug/host/cpu_link.h"
#include "snug/host/cuda_link.h"

namespace snug::host {

namespace {

void check_fits(const void* memory, const Slot& slot, std::uint64_t bytes) {
  check(static_cast<bool>(slot), "host memory: a copy to or from an empty slot");
  check(bytes <= slot.bytes(), "host memory: a copy of ", bytes, " bytes to or from a slot of ",
        slot.bytes());
  check(memory != nullptr || bytes == 0, "host memory: a copy of ", bytes,
        " bytes to or from a null pointer");
}

}  // namespace

std::shared_ptr<Link> Link::open(c10::Device device) {
  if (device.is_cpu()) return open_cpu_link();
  check(device.is_cuda(), "a link to ", device.str(), ": only cpu and cuda have one");
  return open_cuda_link(device.index());
}

CopyPtr Link::to_host(const void* from, Slot& to, std::uint64_t bytes) {
  check_fits(from, to, bytes);
  to.state_->serve(device_);
  to.written_ = copy_to_host(from, to.data_, bytes, to.read_);
  return to.written_;
}

CopyPtr Link::to_device(void* to, Slot& from, std::uint64_t bytes) {
  check_fits(to, from, bytes);
  from.state_->serve(device_);
  from.read_ = copy_to_device(to, from.data_, bytes, from.written_);
  return from.read_;
}

}  // namespace snug::host
