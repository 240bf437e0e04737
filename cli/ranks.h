// Runs of several processes, the ranks: --ranks starts them on this machine; torchrun, mpirun and srun start
// them anywhere.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "snug/zero/group.h"
#include "snug/zero/join.h"

namespace snug::cli {

// This very command so many times, on this machine; ends when all have. Throws Ended with the status of the
// first that failed, after the others ended too: by themselves within the timeout, or else by force.
void start_ranks(int ranks, std::chrono::milliseconds timeout);

// Threads that each of so many on this machine has, unless OMP_NUM_THREADS says another number.
int threads_of_rank(int ranks);

// Runs as one of them. What goes wrong on any rank ends all; one of them says it.
void as_rank(const zero::Place& place, c10::Device device, const zero::JoinOptions& options,
             const std::function<void(const std::shared_ptr<zero::Group>&)>& run);

}  // namespace snug::cli
