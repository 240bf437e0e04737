#include "snug/base/error.h"
#include "snug/machine/cuda_probe.h"

namespace snug::machine {

namespace {
[[noreturn]] void no_cuda() {
  fail("this build of snug has no CUDA: configure with -DSNUG_CUDA=ON");
}
}  // namespace

double cuda_seconds(c10::Device, const std::function<void()>&, int) {
  no_cuda();
}
LinkRates measure_links(c10::Device, std::uint64_t, const std::function<void()>&) {
  no_cuda();
}

}  // namespace snug::machine
