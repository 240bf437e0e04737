#include "cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/trace/category_json.h"

namespace snug::cli {
namespace {

// Taken at the end of a step, when the CPU has given back what the peak held.
std::uint64_t reserved_bytes(const train::Measured& measured) {
  return std::max(measured.memory.reserved_bytes, measured.peak.total);
}

}  // namespace

void print(std::string_view text, std::FILE* to) {
  const bool written = std::fwrite(text.data(), 1, text.size(), to) == text.size();
  if (written && std::fflush(to) == 0) return;
  throw RunError(concat("cannot write the output: ", std::generic_category().message(errno)));
}

void print_json(const Json& document) {
  print(document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Json to_json(const train::Measured& measured) {
  return {{"peak_bytes", measured.peak.total},
          {"reserved_bytes", reserved_bytes(measured)},
          {"process_bytes", measured.memory.process_bytes},
          {"outside_bytes", measured.memory.outside_bytes()},
          {"host_bytes", measured.host_bytes},
          {"allocation_retries", measured.memory.retries},
          {"step_seconds", measured.step_seconds},
          {"bytes", trace::to_json(measured.peak.bytes)}};
}

std::string memory_lines(const train::Measured& measured) {
  const memory::ProcessMemory& memory = measured.memory;
  return fmt::format(
      "allocated {:>12}  by tensors, at the peak\n"
      "reserved  {:>12}  by torch's allocator, at the peak\n"
      "outside   {:>12}  at the end of a step: code, libraries, what no allocator owns\n"
      "process   {:>12}  at the end of a step: {}\n",
      format_bytes(measured.peak.total), format_bytes(reserved_bytes(measured)),
      format_bytes(memory.outside_bytes()), format_bytes(memory.process_bytes), memory.source);
}

}  // namespace snug::cli
