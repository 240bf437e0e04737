// A 64-bit checksum of a storage's bytes, at constant memory. Internal to tape.
#pragma once

#include <c10/core/Storage.h>

#include <cstdint>

namespace snug::tape {

std::int64_t checksum(const c10::Storage& storage);  // waits for the device; 0 on Meta

}  // namespace snug::tape
