// What a machine can do: the rates and sizes that plans are made with, by name or from what `snug probe`
// wrote.
//
//   Hardware hardware = load_hardware("h200");             // a preset
//   Hardware hardware = load_hardware("hardware.json");    // measured
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/trace/work.h"

namespace snug::plan {

// One that was timed in a step.
struct MeasuredOperator {
  trace::Work work;
  double seconds = 0;

  bool operator==(const MeasuredOperator&) const = default;
};

// Rates are per second, and what programs reach at a model's shapes, not the peaks of data sheets.
struct Hardware {
  std::string name;
  bool is_gpu = false;
  bool is_estimate = true;          // a preset, not measured on the machine
  std::uint64_t memory_bytes = 0;   // all that the driver, or the system, reports
  std::uint64_t outside_bytes = 0;  // of these, taken by CUDA's context and its libraries
  std::uint64_t host_bytes = 0;     // the host's memory, or its container's if that is less
  double matmul_flops_fp32 = 0;     // without TF32, as torch has it by default
  double matmul_flops_bf16 = 0;
  double attention_flops = 0;  // forward and backward together; on a GPU at 16 bits
  double memory_rate = 0;      // bytes read + bytes written by a copy
  // Bytes to pinned memory, one direction at work. All three are 0 on the CPU, and on a GPU that has no
  // memory but the host's: nothing is gained by waiting there.
  double to_host_rate = 0;
  double to_device_rate = 0;
  double both_ways_rate = 0;     // bytes of both directions together, both at work
  double copy_slowdown = 0;      // share by which matrix products take longer meanwhile: 0.03
  double operation_seconds = 0;  // of every operator, however small
  double adam_rate = 0;          // parameters of an AdamW step in fp32 on the host, all its cores at work
  // Bytes that one of several ranks sends in a collective while it receives as many: to others of its
  // machine, and over one of its machine's network cards to other machines.
  double peer_rate = 0;
  double network_rate = 0;
  std::int64_t ranks_per_network = 1;       // of a machine, that share such a card
  double disk_rate = 0;                     // bytes written in sequence, then read again; 0: not measured
  std::vector<MeasuredOperator> operators;  // of steps at a model's shapes; see MeasuredCosts

  bool operator==(const Hardware&) const = default;
};

// Context, cuBLAS, cuDNN and kernels are loaded as they are first used: 0.75 GiB on an H200 after a step of a
// Llama-like model; and some.
inline constexpr std::uint64_t kUsualOutside = 922_MiB;
// NCCL's buffers, where ranks are planned for that are not here: it has one for every channel and way of
// doing something. One rank on an H200 took 484 MiB; several were not measured.
inline constexpr std::uint64_t kUsualNccl = 512_MiB;
// A plan written by hand, and no plan, say nothing of it.
inline std::uint64_t outside_or_usual(std::uint64_t planned_bytes) {
  return planned_bytes > 0 ? planned_bytes : kUsualOutside;
}

// A preset's name goes before a file of that name; write ./h200 for the file. Throws Error for what is
// neither, and for a file that from_json() refuses.
SNUG_API Hardware load_hardware(const std::string& name_or_path);

// The file is replaced whole or not at all. Throws Error for a place that cannot be written, RunError for a
// disk that is full.
SNUG_API void save_hardware(const Hardware& hardware, const std::filesystem::path& path);

SNUG_API Hardware preset(std::string_view name);  // throws Error, which lists the names
// The one that a GPU with this name and memory is most like; the h200, said to be an estimate like all of
// them, if none has its name.
SNUG_API Hardware preset_like(std::string_view device_name, std::uint64_t memory_bytes);
SNUG_API const std::vector<Hardware>& presets();
SNUG_API std::string preset_names();  // "h200, h100, ...", for messages and help

// from_json() gives back exactly what to_json() was given, if that is valid. It throws Error for a key that
// is missing (a file of an older snug: it says to probe again) or unknown, and for a value of the wrong type
// or out of range; `where` is what errors call the object.
SNUG_API Json to_json(const Hardware& hardware);
SNUG_API Hardware from_json(Json object, const std::string& where);

// Throws Error unless a plan can be made with it: positive finite rates (links only on a GPU, a disk
// nowhere), more memory than what lies outside, a name.
SNUG_API void validate(const Hardware& hardware, const std::string& where);

}  // namespace snug::plan
