// Internal to tape.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

namespace snug::tape {

// Work of the tape's own: not recorded, and not autograd's.
class Quiet {
 public:
  Quiet();
  ~Quiet();
  Quiet(const Quiet&) = delete;  // it is a stretch of time
  Quiet& operator=(const Quiet&) = delete;
  static bool on() noexcept;

 private:
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

}  // namespace snug::tape
