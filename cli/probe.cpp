// snug probe: measures this machine, so that plans are made with its own speed.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "cli/exit_status.h"
#include "cli/flags.h"
#include "cli/model_flag.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/base/output_file.h"
#include "snug/models/config.h"
#include "snug/models/presets.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/probe.h"
#include "snug/train/planning.h"

namespace snug::cli {
namespace {

namespace fs = std::filesystem;

constexpr auto kExamples = R"(Examples:
  snug probe
      The GPU that is here, or else the CPU: what plan, train, tune and verify use from then on.
  snug probe --model llama3-8b --out h200.json && snug plan --model llama3-8b --hardware h200.json --budget 100GiB
      At the shapes of another model, into a file of its own, which also serves on other machines.
  snug probe --device cpu --no-disk --json
      The CPU beside a GPU, without a test of the disk, for scripts.)";

struct Flags {
  std::string device = "auto", model = "llama-1.3b", out;
  std::vector<std::string> ignore_keys;
  bool no_disk = false;
  bool json = false;
};

// Found out before anything is measured. A device or a pipe would be replaced by a file.
void check_writable(const fs::path& path) {
  std::error_code unreachable;  // then opening it says why
  check(!fs::is_directory(path, unreachable), path.string(), ": is a folder, expected a file");
  check(!fs::exists(path, unreachable) || fs::is_regular_file(path, unreachable), path.string(),
        ": is not a regular file, and no other is replaced; --json prints to standard output");
  OutputFile(path.string() + ".part");  // and is gone
}

fs::path place(const Flags& flags, c10::Device device) {
  if (!flags.out.empty()) return flags.out;
  const fs::path file = machine::probe_file(device.type());
  check(!file.empty(), "neither XDG_CACHE_HOME nor HOME says where to keep it: give --out FILE");
  fs::create_directories(file.parent_path());
  return file;
}

machine::ProbeOptions at_shapes_of(const models::ModelConfig& model) {
  return {.layers = model.num_layers,
          .hidden = model.hidden_size,
          .intermediate = model.intermediate_size,
          .vocabulary = model.vocab_size,
          .heads = model.num_heads,
          .kv_heads = model.num_kv_heads,
          .head_dim = model.head_dim,
          .most_positions = model.max_positions};
}

std::string line(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string row(const char* what, double value, const char* unit, const std::string& note = "") {
  return line(fmt::format("  {:<18} {:>9.4g} {:<15} {}", what, value, unit, note));
}

std::string size_row(const char* what, std::uint64_t bytes, const std::string& note = "") {
  return line(fmt::format("  {:<18} {:>13} {:>11} {}", what, format_bytes(bytes), "", note));
}

std::string table(const plan::Hardware& hardware, const std::string& model) {
  std::string text = hardware.name + "\n";
  text += row("products, bf16", hardware.matmul_flops_bf16 * 1e-12, "TFLOP/s", "at the shapes of " + model);
  text += row("products, fp32", hardware.matmul_flops_fp32 * 1e-12, "TFLOP/s");
  text += row("attention", hardware.attention_flops * 1e-12, "TFLOP/s", "forward and backward");
  text += row("memory", hardware.memory_rate * 1e-9, "GB/s", "read and written");
  text += row("operator", hardware.operation_seconds * 1e6, "us", "however small");
  if (hardware.is_gpu) {
    text += row("to the host", hardware.to_host_rate * 1e-9, "GB/s");
    text += row("to the device", hardware.to_device_rate * 1e-9, "GB/s");
    text += row("both ways", hardware.both_ways_rate * 1e-9, "GB/s",
                fmt::format("products take {:.1f} % longer meanwhile", 100 * hardware.copy_slowdown));
  }
  text += row("AdamW on the CPU", hardware.adam_rate * 1e-9, "G parameters/s");
  text += row("ranks of a machine", hardware.peer_rate * 1e-9, "GB/s", "not measured: it takes several");
  text += row("ranks elsewhere", hardware.network_rate * 1e-9, "GB/s", "not measured");
  if (hardware.disk_rate > 0) text += row("disk", hardware.disk_rate * 1e-9, "GB/s", "written, then read");
  if (hardware.is_gpu)
    text += size_row("GPU memory", hardware.memory_bytes,
                     format_bytes(hardware.outside_bytes) + " of it for context and libraries");
  text += size_row("host memory", hardware.host_bytes);
  if (!hardware.operators.empty())
    text += line(fmt::format("  {:<18} {:>9} {:<15} timed in steps of {}", "operators",
                             hardware.operators.size(), "kinds and sizes", model));
  return text;
}

void run(const Flags& flags) {
  const c10::Device device = parse_device(flags.device, /*must_exist=*/true);
  const models::ModelConfig model = load_model_config(flags.model, flags.ignore_keys);
  machine::ProbeOptions options = at_shapes_of(model);
  const fs::path file = place(flags, device);
  check_writable(file);
  options.device = device;
  if (!flags.no_disk) options.disk_folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  options.say = [](const std::string& what) {
    std::fputs(with_flags("probe: " + what + "\n").c_str(), stderr);
  };
  if (device.is_cuda()) options.steps = train::probe_steps(model, device);
  const plan::Hardware hardware = machine::probe(options);
  plan::save_hardware(hardware, file);
  if (flags.json) return print_json(plan::to_json(hardware));
  print(table(hardware, flags.model));
  print(flags.out.empty()
            ? fmt::format("Written to {}: plan, train, tune and verify use it from now on\n", file.string())
            : fmt::format("Written to {}: give it as --hardware {}\n", file.string(), file.string()));
}

}  // namespace

void add_probe(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb = add_verb(snug, "probe", "Measure this machine, so that plans are made with its own speed",
                            kExamples, [flags] { run(*flags); });
  add_device(verb, flags->device);
  add_text(verb, "--model", "NAME|PATH", flags->model,
           "Time products and attention at the shapes of this preset (" + models::preset_names() +
               "), folder or config.json; default llama-1.3b");
  add_ignore_keys(verb, flags->ignore_keys);
  add_text(
      verb, "--out", "FILE", flags->out,
      "File to write; default: this machine's, snug/hardware-cuda.json or -cpu.json in $XDG_CACHE_HOME or "
      "~/.cache");
  add_flag(verb, "--no-disk", flags->no_disk, "Leave out the disk: no test file of 256 MiB beside FILE");
  add_json(verb, flags->json);
}

}  // namespace snug::cli
