// A copy between a device and the host that was asked for and may still be under way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "snug/base/export.h"

namespace snug::host {

class SNUG_API Copy {
 public:
  virtual ~Copy() = default;
  // What the device's current stream is given from now on happens after the copy. The host does not wait.
  // On the CPU the calling thread waits.
  virtual void wait() = 0;
  // The host waits.
  virtual void finish() = 0;
  // Copies of one direction are done in this order.
  virtual std::uint64_t number() const = 0;
};

using CopyPtr = std::shared_ptr<Copy>;  // null: nothing to wait for

// All of them, whichever fail, so that their memory may go; then throws what the first of those did.
SNUG_API void wait_for_all(const std::vector<CopyPtr>& copies);
SNUG_API void finish_all(const std::vector<CopyPtr>& copies);

}  // namespace snug::host
