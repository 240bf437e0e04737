// snug estimate: bytes by category before there is a run.
#include "cli/estimate_text.h"

#include <memory>
#include <optional>
#include <string>

#include "cli/flags.h"
#include "cli/model_flag.h"
#include "cli/output.h"
#include "cli/training_flags.h"
#include "cli/verbs.h"
#include "snug/base/error.h"
#include "snug/models/presets.h"
#include "snug/train/planning.h"

namespace snug::cli {
namespace {

using trace::Category;

constexpr auto kExamples = R"(Examples:
  snug estimate --params 7e9 --precision fp32 --optimizer adamw
      112.0 GB: 28 of parameters, 28 of gradients, 56 of optimizer states, before any activation.
  snug estimate --model llama2-7b --batch-size 1 --seq-len 4096 --precision bf16
      The same from the model's sizes, with activations and temporaries of a real step. No weights are loaded.
  snug estimate --params 70e9 --precision bf16 --zero-stage 3 --ranks 64
      What one of 64 GPUs holds when parameters, gradients and states are sharded.)";

struct Flags {
  std::optional<std::int64_t> params, zero_stage, ranks, batch_size, seq_len;
  std::string model, device = "auto";
  std::vector<std::string> ignore_keys;
  std::optional<train::Precision> precision;
  std::optional<train::Master> master;
  train::OptimizerKind optimizer = train::OptimizerKind::AdamW;
  bool allow_quadratic = false;
  bool json = false;
};

void check_flags(const Flags& flags) {
  check(flags.params.has_value() != !flags.model.empty(), "give either --params or --model",
        flags.params ? ", not both" : ", such as --params 7e9 or --model llama2-7b");
  check(!flags.model.empty() || !flags.batch_size, "--batch-size needs --model: it decides the activations");
  check(!flags.model.empty() || !flags.seq_len, "--seq-len needs --model: it decides the activations");
  check(!flags.model.empty() || !flags.allow_quadratic, "--allow-quadratic needs --model");
  check(!flags.model.empty() || flags.ignore_keys.empty(), "--ignore-keys needs --model");
  check(!flags.ranks || flags.zero_stage,
        "--ranks needs --zero-stage: 1 shards the optimizer, 2 gradients too, 3 all");
  check(flags.zero_stage.value_or(0) == 0 || flags.ranks, "--zero-stage ", flags.zero_stage.value_or(0),
        " needs --ranks: over how many ranks?");
}

Activations activations_of_one_rank(const Flags& flags, const models::ModelConfig& model, c10::Device device,
                                    train::Precision precision, std::int64_t ranks) {
  const std::int64_t batch = flags.batch_size.value_or(8 * ranks);
  check(batch % ranks == 0, "--batch-size ", batch, " is over all ranks, and --ranks ", ranks,
        " does not divide it");
  train::TrainConfig config;
  config.model_name = flags.model;
  config.model = model;
  config.batch_size = config.micro_batch = batch / ranks;
  config.seq_len = flags.seq_len.value_or(default_seq_len(model));
  config.device = device;
  config.precision = precision;
  config.allow_quadratic = flags.allow_quadratic;
  config.optimizer.kind = flags.optimizer;
  train::validate(config);
  const Prediction step = train::predict(config, {.steps = 1});
  const auto highest = [&](Category category) {
    return step.category_peaks[static_cast<std::size_t>(category)];
  };
  return {.saved = highest(Category::Activation), .temporaries = highest(Category::Temporary)};
}

void run(const Flags& flags) {
  check_flags(flags);
  const c10::Device device = parse_device(flags.device, /*must_exist=*/false);
  train::EstimateRequest request{.precision = flags.precision.value_or(default_precision(device)),
                                 .master = flags.master,
                                 .optimizer = flags.optimizer,
                                 .zero_stage = flags.zero_stage.value_or(0),
                                 .ranks = flags.ranks.value_or(1)};
  std::optional<models::ModelConfig> model;
  if (!flags.model.empty()) model = load_model_config(flags.model, flags.ignore_keys);
  request.parameters = model ? models::parameter_count(*model) : static_cast<std::uint64_t>(*flags.params);
  const train::StateBytes states = estimate_states(request);
  std::optional<Activations> step;
  if (model) step = activations_of_one_rank(flags, *model, device, request.precision, request.ranks);
  flags.json ? print_json(document(request, states, step)) : print(table(request, states, step));
}

}  // namespace

void add_estimate(CLI::App& snug) {
  auto flags = std::make_shared<Flags>();
  CLI::App& verb =
      add_verb(snug, "estimate", "How much memory training needs, by category, before there is a run",
               kExamples, [flags] { run(*flags); });
  add_count(verb, "--params", flags->params, "Number of parameters, such as 7e9");
  add_text(verb, "--model", "NAME|PATH", flags->model,
           "Instead of --params: a preset (" + models::preset_names() + "), folder or config.json");
  add_ignore_keys(verb, flags->ignore_keys);
  add_choice(verb, "--precision", "fp32|bf16|fp16", flags->precision, parse_precision,
             "Default bf16 on a GPU, fp32 on the CPU");
  add_choice(verb, "--master", "split|fp32", flags->master, train::parse_master,
             "fp32 value of 16-bit weights: 2 or 4 bytes more; default split for bf16, fp32 for fp16");
  add_choice(verb, "--optimizer", "adamw|sgd", flags->optimizer, train::parse_optimizer, "Default adamw");
  add_count(verb, "--zero-stage", flags->zero_stage,
            "Shard 1: the optimizer, 2: gradients too, 3: parameters too", 0, 3);
  add_count(verb, "--ranks", flags->ranks, "GPUs to shard over", 1, kMostSequences);
  add_count(verb, "--batch-size", flags->batch_size, "Sequences per step over all ranks; default 8 per rank",
            1, kMostSequences);
  add_count(verb, "--seq-len", flags->seq_len, "Tokens per sequence; default 256", 1, kMostSequences);
  add_flag(verb, "--allow-quadratic", flags->allow_quadratic,
           "Head sizes without an attention kernel: count memory that grows with tokens squared");
  add_device(verb, flags->device);
  add_json(verb, flags->json);
}

}  // namespace snug::cli
