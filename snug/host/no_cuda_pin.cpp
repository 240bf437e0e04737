#include "snug/base/error.h"
#include "snug/host/pin.h"

namespace snug::host {

namespace {
[[noreturn]] void cannot_pin() {
  fail("pinned host memory: this build of snug has no CUDA: configure with -DSNUG_CUDA=ON");
}
}  // namespace

void check_can_pin() {
  cannot_pin();
}
void pin(void*, std::uint64_t) {
  cannot_pin();
}
void unpin(void*) noexcept {}

}  // namespace snug::host
