// Where a tensor's contents are while it has no memory: on the host, or with other ranks.
#pragma once

#include "snug/host/copy.h"

namespace snug::host {

class Source {
 public:
  virtual ~Source() = default;
  // Fills memory that was taken at `since`, a mark(), after `after`. Null: there is nothing to wait for.
  virtual CopyPtr fetch(void* memory, const CopyPtr& after, const CopyPtr& since) = 0;
  // What is in the memory is what is fetched from now on. Null as above.
  virtual CopyPtr send(const void* memory) = 0;
  virtual CopyPtr mark() { return nullptr; }  // see Link
};

}  // namespace snug::host
