#include "cli/training_flags.h"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "cli/flags.h"
#include "cli/model_flag.h"
#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/io/training_state.h"
#include "snug/models/presets.h"
#include "snug/models/slow_sizes.h"

namespace snug::cli {
namespace {

namespace fs = std::filesystem;
using train::OptimizerKind;
using train::Precision;

constexpr std::int64_t kByteTokens = 256;
constexpr std::int64_t kMostRanks = 1 << 20;
constexpr int kFirstStage = 1;  // what stage 0 does and less memory: as many bytes go between ranks

void add_loop_flags(CLI::App& verb, TrainingFlags& flags) {
  add_count(verb, "--steps", flags.steps, "Optimizer steps; default " + std::to_string(flags.steps));
  add_flag(verb, "--allow-nan", flags.allow_nan, "Go on when the loss or the gradients are not finite");
  add_number(verb, "--loss-scale", flags.loss_scale,
             "fp16: loss scale of the first step; halved when gradients overflow; default 65536");
}

bool parse_decay(const std::string& text) {
  check(text == "all" || text == "matrices", "--decay must be all or matrices, got \"", text, "\"");
  return text == "matrices";
}

void add_optimizer_flags(CLI::App& verb, TrainingFlags& flags) {
  add_number(verb, "--lr", flags.lr, "Learning rate; default 3e-4");
  add_choice(verb, "--schedule", "constant|cosine|linear", flags.schedule, optim::parse_schedule,
             "How the learning rate falls; default constant");
  add_count(verb, "--warmup", flags.warmup, "Steps over which the learning rate rises; default 0", 0);
  add_number(verb, "--weight-decay", flags.weight_decay, "Default 0.01 for adamw, 0 for sgd");
  add_choice(verb, "--decay", "all|matrices", flags.decay_matrices_only, parse_decay,
             "adamw: the parameters that decay; default all");
  add_number(verb, "--beta1", flags.beta1, "adamw; default 0.9", 1);
  add_number(verb, "--beta2", flags.beta2, "adamw; default 0.999", 1);
  add_number(verb, "--eps", flags.eps, "adamw; default 1e-8");
}

void refuse_unused(std::initializer_list<std::pair<const char*, bool>> given, OptimizerKind kind) {
  for (const auto& [flag, is_given] : given) {
    check(!is_given, flag, " has no use with --optimizer ", name(kind), "; leave it out");
  }
}

train::OptimizerConfig optimizer_config(const TrainingFlags& flags) {
  const train::OptimizerConfig standard;
  const bool is_adamw = flags.optimizer == OptimizerKind::AdamW;
  if (is_adamw) {
    refuse_unused({{"--momentum", flags.momentum.has_value()}}, flags.optimizer);
  } else {
    refuse_unused({{"--beta1", flags.beta1.has_value()},
                   {"--beta2", flags.beta2.has_value()},
                   {"--eps", flags.eps.has_value()},
                   {"--decay", flags.decay_matrices_only.has_value()}},
                  flags.optimizer);
  }
  return {.kind = flags.optimizer,
          .lr = flags.lr.value_or(standard.lr),
          .beta1 = flags.beta1.value_or(standard.beta1),
          .beta2 = flags.beta2.value_or(standard.beta2),
          .eps = flags.eps.value_or(standard.eps),
          .weight_decay = flags.weight_decay.value_or(is_adamw ? standard.weight_decay : 0.0),
          .decay_matrices_only = flags.decay_matrices_only.value_or(false),
          .momentum = flags.momentum.value_or(0.0),
          .master = flags.master,
          .clip = flags.clip.value_or(standard.clip),
          .warmup = flags.warmup,
          .schedule = flags.schedule};
}

std::int64_t micro_batch(const TrainingFlags& flags) {
  const std::int64_t ranks = flags.ranks.value_or(1);
  check(flags.batch_size % ranks == 0, "--ranks ", ranks, " does not divide --batch-size ", flags.batch_size,
        ", which is that of all ranks together");
  const std::int64_t batch = flags.batch_size / ranks;
  if (!flags.accumulation) return flags.micro_batch.value_or(batch);
  check(batch % *flags.accumulation == 0, "--accumulation ", *flags.accumulation, " does not divide ",
        ranks > 1 ? concat(batch, ", a rank's part of ") : "", "--batch-size ", flags.batch_size);
  const std::int64_t micro = batch / *flags.accumulation;
  check(flags.micro_batch.value_or(micro) == micro, "--micro-batch ", flags.micro_batch.value_or(micro),
        " and --accumulation ", *flags.accumulation, " disagree for --batch-size ", flags.batch_size,
        "; give one of them");
  return micro;
}

// A config.json alone is a model of the user's own making, whose tokens may well be bytes, and so is what was
// trained from one.
void refuse_text_for_published(const TrainingFlags& flags, const models::ModelConfig& model) {
  const bool is_text = flags.data != "synthetic" && fs::path(flags.data).extension() != ".bin";
  std::error_code ignored;  // a file that is not there is refused when it is opened
  if (!is_text || model.vocab_size <= kByteTokens || !fs::is_regular_file(flags.data, ignored)) return;
  const fs::path folder = flags.model;
  const bool is_own = folder.extension() == ".json" ||
                      (io::is_training_state(folder) && !fs::exists(folder / "tokenizer.json", ignored));
  check(is_own, "--data ", flags.data, " is plain text, but ", flags.model, " has a vocabulary of its own (",
        model.vocab_size, " tokens): make a token file with tools/tokenize.py");
}

// A folder stands for the weights in it; a preset or a config.json for fresh ones.
fs::path weights_of(const std::string& model) {
  std::error_code ignored;
  return !models::find_preset(model) && fs::is_directory(model, ignored) ? fs::path(model) : fs::path();
}

// The schedule would refuse these at its first step, when there is a run directory already.
void check_schedule(const train::TrainConfig& config) {
  using Kind = optim::Schedule::Kind;
  check(config.optimizer.schedule == Kind::Constant || config.optimizer.warmup < config.steps, "--warmup ",
        config.optimizer.warmup, " leaves no step to --schedule ", to_string(config.optimizer.schedule),
        " of --steps ", config.steps);
}

}  // namespace

std::string placed_by_hand(const TrainingFlags& flags) {
  if (flags.states_on_host) return "--states-on-host";
  if (flags.gradients_on_host) return "--gradients-on-host";
  return flags.weights_on_host ? "--weights-on-host" : "";
}

std::string chosen_by_hand(const TrainingFlags& flags) {
  if (flags.recompute) return "--recompute";
  return flags.offload ? "--offload" : placed_by_hand(flags);
}

void add_step_flags(CLI::App& verb, TrainingFlags& flags) {
  add_text(verb, "--model", "NAME|PATH", flags.model,
           "Preset (" + models::preset_names() + "), Hugging Face folder or config.json; default tiny");
  add_ignore_keys(verb, flags.ignore_keys);
  add_count(verb, "--batch-size", flags.batch_size, "Sequences per optimizer step; default 8", 1,
            kMostSequences);
  add_count(verb, "--micro-batch", flags.micro_batch,
            "Sequences per forward; default: the whole batch, or what a plan takes", 1, kMostSequences);
  add_count(verb, "--accumulation", flags.accumulation, "The same, as the number of forwards per step", 1,
            kMostSequences);
  add_count(verb, "--seq-len", flags.seq_len,
            "Tokens per sequence; default 256, or the model's positions if fewer", 1, kMostSequences);
  add_choice(verb, "--precision", "fp32|bf16|fp16", flags.precision, parse_precision,
             "Default bf16 on a GPU, fp32 on the CPU");
  add_choice(verb, "--optimizer", "adamw|sgd", flags.optimizer, train::parse_optimizer, "Default adamw");
  add_number(verb, "--momentum", flags.momentum, "sgd; default 0", 1);
  add_number(verb, "--clip", flags.clip, "Largest global norm of the gradients, 0 = any; default 1");
  add_choice(
      verb, "--update", "step|forward|backward", flags.update, train::parse_update,
      "When parameters are updated: at the end of the step; those with states on the host just before "
      "their block runs again, beside the blocks before it; all in the last backward, which frees each "
      "gradient at once (needs --clip 0, no fp16). Default backward or forward with states on the host, "
      "else step");
  add_choice(
      verb, "--stepped-on-host", "none|P%|all", flags.stepped_on_host, train::parse_share_on_host,
      "Of the parameters with states on the host, how many the CPU updates, beside the device; fewer with "
      "--budget where the host has no room. Default none, with --budget as many as it has done while the "
      "others stream");
  add_choice(verb, "--master", "split|fp32", flags.master, train::parse_master,
             "fp32 value of 16-bit weights: 2 or 4 bytes more; default split for bf16, fp32 for fp16");
  add_flag(verb, "--allow-quadratic", flags.allow_quadratic,
           "Head sizes without an attention kernel: let memory grow with tokens squared");
  add_device(verb, flags.device);
}

void add_max_tokens(CLI::App& verb, TrainingFlags& flags) {
  add_count(verb, "--max-tokens", flags.max_tokens, "Plan for sequences of up to N tokens; default --seq-len",
            1, kMostSequences);
}

void add_data_flags(CLI::App& verb, TrainingFlags& flags) {
  add_text(verb, "--data", "FILE|synthetic", flags.data,
           "Token file (*.bin), plain text, or synthetic (default)");
  add_count(verb, "--shuffle", flags.shuffle, "Seed of a shuffled order; default: in file order", 0);
  add_count(verb, "--seed", flags.seed, "Seed of weights and synthetic data; default 0", 0);
  add_choice(verb, "--recompute", "none|cheap|block", flags.recompute, train::parse_recompute,
             "What the backward recomputes: nothing, all but matrix products and attention, or whole blocks; "
             "default none");
  add_choice(
      verb, "--offload", "SIZE|P%|all", flags.offload, train::parse_offload,
      "How much of what --recompute keeps waits on the host between forward and backward; default none");
  add_choice(verb, "--states-on-host", "none|P%|all", flags.states_on_host, train::parse_share_on_host,
             "How much of the optimizer's states waits on the host between steps; default none");
  add_choice(verb, "--gradients-on-host", "none|P%|all", flags.gradients_on_host, train::parse_share_on_host,
             "Of how many blocks the gradients wait on the host while the block does not run; default none");
  add_choice(verb, "--weights-on-host", "none|P%|all", flags.weights_on_host, train::parse_share_on_host,
             "Of how many blocks the weights wait on the host while the block does not run; default none");
  add_host_budget(verb, flags);
}

void add_host_budget(CLI::App& verb, TrainingFlags& flags) {
  add_choice(verb, "--host-budget", "SIZE", flags.host_budget, parse_budget,
             "The most host memory for what waits there; default 80 % of what is free");
}

void add_training_flags(CLI::App& verb, TrainingFlags& flags) {
  add_step_flags(verb, flags);
  add_data_flags(verb, flags);
  add_loop_flags(verb, flags);
  add_optimizer_flags(verb, flags);
}

void add_rank_flags(CLI::App& verb, TrainingFlags& flags) {
  add_count(
      verb, "--ranks", flags.ranks,
      "Processes that train together, each with its part of the batch; default 1, or as many as torchrun, "
      "mpirun or srun started",
      1, kMostRanks);
  add_choice(
      verb, "--zero-stage", "auto|0|1|2|3", flags.zero_stage,
      [](const std::string& text) -> std::optional<std::int64_t> {
        if (text == "auto") return std::nullopt;
        return parse_count("--zero-stage", text, 0, 3);
      },
      "What ranks share out: 0 nothing, 1 the optimizer's states, 2 gradients too, 3 weights too; default "
      "auto, of 1 to 3 the one that is fastest within --budget");
}

void add_ranks_per_machine(CLI::App& verb, TrainingFlags& flags) {
  add_count(verb, "--ranks-per-machine", flags.ranks_per_machine,
            "How many of --ranks share a machine, and so its links: default 8 GPUs, or all on the CPU", 1,
            kMostRanks);
}

train::TrainConfig training_config(const TrainingFlags& flags, bool device_must_exist) {
  train::TrainConfig config;
  config.optimizer = optimizer_config(flags);
  config.batch_size = flags.batch_size;
  config.micro_batch = micro_batch(flags);
  config.steps = flags.steps;
  config.seed = flags.seed;
  config.shuffle_seed = flags.shuffle;
  config.device = parse_device(flags.device, device_must_exist);
  config.precision = flags.precision.value_or(default_precision(config.device));
  config.recompute = flags.recompute.value_or(Recompute::None);
  config.offload = flags.offload;
  config.states_on_host = flags.states_on_host.value_or(0);
  config.gradients_on_host = flags.gradients_on_host.value_or(0);
  config.weights_on_host = flags.weights_on_host.value_or(0);
  config.stepped_on_host = flags.stepped_on_host.value_or(0);
  config.update = flags.update;
  config.host_budget_bytes = flags.host_budget;
  config.model_name = flags.model;
  config.model = load_model_config(flags.model, flags.ignore_keys, /*says=*/flags.rank == 0);
  config.seq_len = flags.seq_len.value_or(default_seq_len(config.model));
  config.data = flags.data;
  config.ranks = static_cast<int>(flags.ranks.value_or(1));
  config.rank = flags.rank;
  config.zero_stage = flags.zero_stage;
  // The lowest that makes the pieces which are to wait on the host.
  if (config.ranks > 1 && !config.zero_stage)
    config.zero_stage = flags.weights_on_host.value_or(0) > 0     ? 3
                        : flags.gradients_on_host.value_or(0) > 0 ? 2
                                                                  : kFirstStage;
  check(!flags.ranks_per_machine || config.ranks > 1,
        "--ranks-per-machine has no use with one rank: give --ranks");
  if (flags.ranks_per_machine) config.ranks_per_machine = static_cast<int>(*flags.ranks_per_machine);
  config.allow_nan = flags.allow_nan;
  config.allow_quadratic = flags.allow_quadratic;
  check(!flags.loss_scale || config.precision == Precision::Fp16, "--loss-scale has no use with --precision ",
        name(config.precision), "; leave it out");
  config.loss_scale = flags.loss_scale.value_or(config.loss_scale);
  check_schedule(config);
  train::validate(config);
  if (config.device.is_cuda() && config.rank == 0)
    for (const std::string& sentence : models::slow_sizes(config.model, train::dtype(config.precision)))
      print("snug: slow: " + sentence + "\n", stderr);
  refuse_text_for_published(flags, config.model);
  if (device_must_exist) config.weights = weights_of(flags.model);
  return config;
}

train::Precision parse_precision(const std::string& text) {
  return train::parse_precision(text);
}

train::Precision default_precision(c10::Device device) {
  return device.is_cuda() ? Precision::Bf16 : Precision::Fp32;
}

std::int64_t default_seq_len(const models::ModelConfig& model) {
  return std::min<std::int64_t>(256, model.max_positions);
}

}  // namespace snug::cli
