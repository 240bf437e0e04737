// What verbs print: text or JSON on standard output, with a full disk noticed.
#pragma once

#include <cstdio>
#include <string_view>

#include "snug/base/json.h"
#include "snug/train/trainer.h"

namespace snug::cli {

// Flushed when it returns. Throws RunError if it could not be written.
void print(std::string_view text, std::FILE* to = stdout);
void print_json(const Json& document);

// peak_bytes, reserved_bytes, process_bytes, outside_bytes, host_bytes, step_seconds, bytes{...}
Json to_json(const train::Measured& measured);

// What tensors held, what the allocator held, what the process held beyond it.
std::string memory_lines(const train::Measured& measured);

}  // namespace snug::cli
