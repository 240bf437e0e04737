#pragma once

#include <memory>

#include "snug/host/link.h"

namespace snug::host {

// The link of the CPU: what a GPU's does with streams is done by two threads. The same for all who hold it.
std::shared_ptr<Link> open_cpu_link();

}  // namespace snug::host
