// snug eval: how well does a model predict this data?
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <memory>
#include <string>

#include "cli/flags.h"
#include "cli/model_flag.h"
#include "cli/output.h"
#include "cli/training_flags.h"
#include "cli/verbs.h"
#include "snug/base/error.h"
#include "snug/train/evaluate.h"
#include "snug/train/progress.h"

namespace snug::cli {
namespace {

constexpr auto kExamples = R"(Examples:
  snug eval --model runs/book-1/state/step-500 --data held-out.bin --seq-len 1024
      The mean loss of a model that 'snug train' saved, on every whole window of the data.
  snug eval --model Qwen3-0.6B --data held-out.bin --batch-size 2 --json
      The same of a published model; fewer windows at a time need less memory.)";

struct Flags {
  TrainingFlags training;
  bool json = false;
};

void run(const Flags& flags) {
  check(!flags.training.model.empty(), "--model is missing: name the folder to evaluate");
  const train::TrainConfig config = training_config(flags.training);
  check(!config.weights.empty(), "--model ", config.model_name,
        " has no weights to evaluate: expected a folder with config.json and model.safetensors");
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const train::Evaluation result = train::evaluate(config, [&](std::uint64_t done, std::uint64_t windows) {
    if (terminal)
      print(fmt::format("\rwindow {} of {}{}", done, windows, done == windows ? "\n" : ""), stderr);
  });
  if (!std::isfinite(result.loss))
    throw RunError(concat("the loss is ", std::isnan(result.loss) ? "nan" : "infinite", ": the weights of ",
                          config.model_name, " are not finite, or too large for this --precision"));
  if (flags.json) return print_json({{"loss", result.loss}, {"tokens", result.tokens}});
  print(fmt::format("Loss {:.6f} over {} tokens, perplexity {:.4g}\n", result.loss,
                    train::grouped(result.tokens), std::exp(result.loss)),
        stdout);
}

}  // namespace

void add_eval(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb = add_verb(snug, "eval", "The mean loss of a model on every whole window of token data",
                            kExamples, [flags] { run(*flags); });
  TrainingFlags& training = flags->training;
  training.model.clear();  // no usual one
  add_text(verb, "--model", "PATH", training.model, "Hugging Face folder, or one that 'snug train' saved");
  add_ignore_keys(verb, training.ignore_keys);
  add_text(verb, "--data", "FILE", training.data, "Token file (*.bin) or plain text");
  add_count(verb, "--batch-size", training.batch_size, "Windows at a time; default 8", 1, kMostSequences);
  add_count(verb, "--seq-len", training.seq_len,
            "Tokens per window; default 256, or the model's positions if fewer", 1);
  add_choice(verb, "--precision", "fp32|bf16|fp16", training.precision, parse_precision,
             "Default bf16 on a GPU, fp32 on the CPU");
  add_flag(verb, "--allow-quadratic", training.allow_quadratic,
           "Head sizes without an attention kernel: let memory grow with tokens squared");
  add_device(verb, training.device);
  add_json(verb, flags->json);
}

}  // namespace snug::cli
