// Ranks that are connected by Gloo: on CPUs, and on GPUs where NCCL cannot (several ranks on one).
//
// Note [Sums in rank order]
// Gloo's own reduce-scatter is an all-reduce of a copy of everything. Ours sends each rank the slices of its
// piece from all others, and adds them in the order of the ranks, in fp32, with one rounding: every rank, and
// every stage of sharding, has the same bits, and what it takes beside the tensor is some slices.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <memory>
#include <string>

#include "snug/zero/group.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace snug::zero {

struct GlooOptions {
  std::string address;  // of this machine, towards the others
  std::chrono::milliseconds timeout{120'000};
  std::chrono::milliseconds delay{0};  // before each collective: to see what hides behind what
};

// All ranks call it. The device is that of the tensors.
SNUG_API std::shared_ptr<Group> connect_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                             c10::Device device, const GlooOptions& options);

}  // namespace snug::zero
