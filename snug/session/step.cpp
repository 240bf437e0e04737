#include "snug/session/step.h"

#include <ATen/Parallel.h>
#include <torch/version.h>

namespace snug {

Json identity_of(const Step& step) {
  Json identity = {{"torch", TORCH_VERSION},
                   {"device", step.device.is_cuda() ? "cuda" : "cpu"},
                   {"threads", step.device.is_cuda() ? 0 : at::get_num_threads()}};
  identity.update(step.identity);
  return identity;
}

}  // namespace snug
