// Where ranks find one another: a store of short texts that one process holds and all others reach.
//
// Torch's own server listens on every interface of the machine. Ours is given a socket that is bound to the
// address that ranks meet at, and to no other.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

#include "snug/base/export.h"
#include "snug/zero/place.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace snug::zero {

// A socket that listens at this address alone; closed unless somebody takes it.
class SNUG_API Listener {
 public:
  // Port 0: any that is free. Throws Error if the port is in use or the address is not this machine's.
  Listener(const std::string& address, int port);
  ~Listener();
  Listener(const Listener&) = delete;  // it is a socket
  Listener& operator=(const Listener&) = delete;

  int port() const { return port_; }
  int take();  // the descriptor is the caller's

 private:
  int descriptor_;
  int port_ = 0;
};

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// The store of a job; rank 0 listens unless somebody else does. Throws RankFailure if nobody answers in time.
SNUG_API StorePtr meet(const Place& place, std::chrono::milliseconds timeout);
// For whoever starts ranks: holds the store for them.
SNUG_API StorePtr hold_store(Listener& listener, const std::string& address,
                             std::chrono::milliseconds timeout);
// Ends all of them, unless they know of a failure by now: `speaker`, one that lives, says so.
SNUG_API void end_ranks(c10d::Store& held, const std::string& why, int speaker);

// This machine's address on the way to that one.
SNUG_API std::string address_towards(const std::string& address, int port);

}  // namespace snug::zero
