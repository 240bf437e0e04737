// snug convert: weights from one folder into another.
#include <fmt/format.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>

#include "cli/exit_status.h"
#include "cli/flags.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/verbs.h"
#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/io/convert.h"
#include "snug/train/config.h"

namespace snug::cli {
namespace {

constexpr auto kExamples = R"(Examples:
  snug convert runs/book-1/state/step-500 book-model --dtype bf16
      What was trained, as a folder that transformers and others load.
  snug convert runs/book-1/state/step-500 book-exact --dtype fp32
      With all bits that the optimizer knows of 16-bit weights.
  snug convert Qwen3-8B qwen3-small-files --shard-size 2GB
      The same weights in files of at most 2 GB.)";

struct Flags {
  std::string from, to;
  std::optional<train::Precision> dtype;
  std::optional<std::uint64_t> shard_bytes;
  bool json = false;
};

io::Converted convert(const Flags& flags, const io::ConvertOptions& options) {
  try {
    return io::convert_weights(flags.from, flags.to, options);
  } catch (const RunError& error) {
    if (stop_signal() != 0) throw Stopped{stop_signal(), error.what()};
    throw;
  }
}

void run(const Flags& flags) {
  io::ConvertOptions options{.stop = &stop_on_signal("this tensor")};
  if (flags.dtype) options.dtype = train::dtype(*flags.dtype);
  if (flags.shard_bytes) options.shard_bytes = *flags.shard_bytes;
  if (::isatty(STDERR_FILENO) == 1)
    options.on_tensor = [](std::size_t done, std::size_t tensors) {
      print(fmt::format("\rtensor {} of {}{}", done, tensors, done == tensors ? "\n" : ""), stderr);
    };
  const io::Converted result = convert(flags, options);
  if (flags.json)
    return print_json({{"folder", flags.to},
                       {"tensors", result.tensors},
                       {"files", result.files},
                       {"bytes", result.bytes}});
  print(fmt::format("{}: {} tensors, {} in {} {}\n", flags.to, result.tensors, format_bytes(result.bytes),
                    result.files, result.files == 1 ? "file" : "files"),
        stdout);
}

}  // namespace

void add_convert(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb =
      add_verb(snug, "convert", "Weights into other shards or another dtype, one tensor at a time", kExamples,
               [flags] { run(*flags); });
  add_argument(verb, "FROM", flags->from, "Hugging Face folder, or a state that 'snug train' saved");
  add_argument(verb, "TO", flags->to, "Folder to make; it must not exist yet");
  add_choice(
      verb, "--dtype", "fp32|bf16|fp16", flags->dtype,
      [](const std::string& text) { return train::parse_precision(text, "--dtype"); },
      "Type of the weights that are written; default: unchanged");
  add_choice(verb, "--shard-size", "SIZE", flags->shard_bytes, parse_bytes,
             "The most that one file holds; default 5GB");
  add_json(verb, flags->json);
}

}  // namespace snug::cli
