// Ranks that are connected by NCCL: on GPUs, each rank with one of its own.
//
// Note [Sums on GPUs]
// NCCL adds up along its rings: each rank rounds to the tensor's type, in the order in which the ring visits
// them. We count on that order being the same for the same sizes on the same ranks, which NCCL does not
// promise: then stages that sum at the same moments have the same bits here too, but not those that Gloo has.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>
#include <string>

#include "snug/base/export.h"
#include "snug/zero/group.h"

namespace snug::zero {

// A name that no other GPU has, of this machine or another; empty where NCCL is missing.
SNUG_API std::string nccl_name_of(c10::Device device);

struct NcclOptions {
  std::string address;  // of this machine, towards the others; empty: NCCL chooses
  std::chrono::milliseconds timeout{120'000};
};

// All ranks call it, each with a GPU of its own. `host`: among the same ranks, for what the GPU has no part
// in.
SNUG_API std::shared_ptr<Group> connect_nccl(std::shared_ptr<Group> host, c10::Device device,
                                             const NcclOptions& options = {});

}  // namespace snug::zero
