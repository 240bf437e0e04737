// Stands in for the CUDA files in a build without CUDA.
#include "snug/ops/kernel_image.h"

namespace snug::ops {

std::string missing_kernel_image(int device) {
  return "snug was built without CUDA, so GPU " + std::to_string(device) +
         " cannot be used; configure again with -DSNUG_CUDA=ON";
}

}  // namespace snug::ops
