// Where a process stands among the ranks, as whoever started it says: torchrun, mpirun, srun, or
// `snug train` itself.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "snug/base/export.h"

namespace snug::zero {

struct Place {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among those on this machine; if nobody says how many, all are
  std::string address;                 // where ranks meet; empty for one rank alone
  int port = 0;
  bool is_met_elsewhere = false;  // somebody else listens there; else rank 0 does
  std::string meeting;            // its name there: a job that is started again has another one
};

using Environment = std::function<const char*(const char*)>;

// None if nothing says that there are several. Throws Error, naming the variable, for what is missing or
// makes no sense.
SNUG_API std::optional<Place> place_from_environment(const Environment& variable = nullptr);

}  // namespace snug::zero
