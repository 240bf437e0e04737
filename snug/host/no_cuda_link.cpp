#include "snug/base/error.h"
#include "snug/host/cuda_link.h"

namespace snug::host {

std::shared_ptr<Link> open_cuda_link(c10::DeviceIndex) {
  fail("a link to a GPU: this build of snug has no CUDA: configure with -DSNUG_CUDA=ON");
}

}  // namespace snug::host
