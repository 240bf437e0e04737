// Ranks that notice when one of them is gone.
//
// Note [How ranks fail together]
// A collective that one rank does not come to never ends on the others, whatever carries it. So every rank
// has a thread that says in the store, several times within the timeout, that it is there and how many
// collectives it has asked for, and that looks whether somebody failed. Rank 0 looks at all others, the
// others at rank 0. A rank that is silent for long, a collective that takes longer than the timeout (the
// rank that asked for the fewest is the one that is waited for), a connection that breaks and an error that
// somebody report()s all end in the same way: the first who notices writes it down, all others find it there,
// and each throws it from what it waits for, or from the next thing it asks for. What does not end by itself
// in time, because its thread is stuck elsewhere, is ended. The store itself may be what does not answer any
// more, for ever if whoever holds it was stopped: so a second thread, which never asks it anything, looks
// whether the first one gets on.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "snug/zero/group.h"
#include "snug/zero/meeting.h"

namespace snug::zero {

struct WatchOptions {
  std::chrono::milliseconds timeout{120'000};
  bool is_store_of_rank_0 = true;    // else whoever started the ranks holds it
  bool speaks_without_store = true;  // says that it is gone: one rank of each machine
  // When the process does not end by itself. Default: a line on standard error, and exit status 3.
  std::function<void(const std::string& why)> end = nullptr;
};

SNUG_API std::shared_ptr<Group> watched(std::shared_ptr<Group> group, const StorePtr& store,
                                        const WatchOptions& options);

}  // namespace snug::zero
