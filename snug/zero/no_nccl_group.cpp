#include "snug/zero/nccl_group.h"

namespace snug::zero {

std::string nccl_name_of(c10::Device) {
  return "";
}

std::shared_ptr<Group> connect_nccl(std::shared_ptr<Group>, c10::Device, const NcclOptions&) {
  fail("this build has no NCCL: build with -DSNUG_CUDA=ON where nccl.h and libnccl.so.2 are");
}

}  // namespace snug::zero
