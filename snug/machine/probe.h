// Measures the machine that is here, in well under 20 seconds: what plans are made with.
//
//   plan::Hardware hardware = machine::probe({.device = c10::Device(c10::kCUDA, 0)});
//   plan::save_hardware(hardware, machine::probe_file(c10::kCUDA));
//
// Nothing else should run on the machine meanwhile.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/export.h"
#include "snug/machine/operator_probe.h"
#include "snug/plan/hardware.h"

namespace snug::machine {

struct ProbeOptions {
  c10::Device device = c10::kCPU;
  // The model at whose shapes products and attention are timed: llama-1.3b.
  std::int64_t layers = 22, hidden = 2048, intermediate = 5632, vocabulary = 32768;
  std::int64_t heads = 16, kv_heads = 16, head_dim = 128;
  // Tokens of a forward, rising; the first is also the length of attention's sequences and what fp32 is timed
  // at. Default: 4096 and 32768, on the CPU 256.
  std::vector<std::int64_t> tokens;
  std::uint64_t copy_bytes = 256_MiB;
  std::int64_t adam_parameters = 32 << 20;
  std::filesystem::path disk_folder;  // empty: the disk is not measured
  std::uint64_t disk_bytes = 256_MiB;
  double least_seconds = 0.01;  // for each thing that is timed, three times; it runs as often as that takes
  double most_seconds = 3;      // for each figure; it is then that of what was timed by then
  // Takes steps of a model, whose operators are timed one by one: products and attention alone, on a rested
  // GPU, are faster than in a step. Empty: plans are made with the rates above.
  RunSteps steps;
  std::int64_t most_positions = 32768;          // of a sequence in such a step
  std::function<void(const std::string&)> say;  // what is being measured
};

// Throws Error for a folder that cannot be written and for heads without an attention kernel, RunError when
// memory or the disk run out.
SNUG_API plan::Hardware probe(const ProbeOptions& options);

}  // namespace snug::machine
