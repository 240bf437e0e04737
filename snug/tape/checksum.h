// A 64-bit checksum of a storage's bytes, at constant memory. Internal to tape.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>

#include "snug/tape/span.h"

namespace snug::tape {

// They wait for the device, and are 0 on Meta.
std::int64_t checksum(const c10::Storage& storage);
std::int64_t checksum(const c10::Storage& storage, const Span& span);

}  // namespace snug::tape
