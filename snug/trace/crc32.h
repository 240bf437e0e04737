// The CRC-32 of zlib and PNG (polynomial 0xEDB88320), which guards the chunks of a trace.
#pragma once

#include <cstdint>
#include <string_view>

#include "snug/base/export.h"

namespace snug::trace {

SNUG_API std::uint32_t crc32(std::string_view bytes);

}  // namespace snug::trace
