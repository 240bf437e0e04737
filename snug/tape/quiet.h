// Internal to tape.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include "snug/hooks/region.h"

namespace snug::tape {

// Work of the tape's own: not recorded, and not autograd's.
class Quiet {
 private:
  hooks::AsideScope aside_;
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

}  // namespace snug::tape
