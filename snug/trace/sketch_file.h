// Sketches as files: a step that was sketched once is planned for anywhere, without torch and without its
// model.
//
//   save_sketch(sketch, "step.sketch");
//   Sketch sketch = load_sketch("step.sketch");
#pragma once

#include <filesystem>

#include "snug/base/export.h"
#include "snug/trace/sketch.h"

namespace snug::trace {

// Note [Sketch file]: "SNUGSKT1", of which the digit is the version, then [bytes][crc32][payload] with u32
// little-endian. The payload is coded as codec.h has it.
SNUG_API void save_sketch(const Sketch& sketch, const std::filesystem::path& path);

// Throws Error that names the file if it is none, of another version, cut short, damaged, or contradicts
// itself.
SNUG_API Sketch load_sketch(const std::filesystem::path& path);

}  // namespace snug::trace
