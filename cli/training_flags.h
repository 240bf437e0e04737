// The options that train and profile share, and the run they describe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "snug/train/config.h"

namespace CLI {
class App;
}  // namespace CLI

namespace snug::cli {

// As given; what was not given is decided by training_config().
struct TrainingFlags {
  std::string model = "tiny";
  std::vector<std::string> ignore_keys;  // of its config.json
  std::string data = "synthetic";
  std::string device = "auto";
  std::int64_t steps = 10;
  std::int64_t batch_size = 8;
  std::optional<std::int64_t> micro_batch, accumulation, seq_len, max_tokens;
  std::optional<train::Precision> precision;
  std::optional<Recompute> recompute;
  std::optional<OffloadLimit> offload;
  std::optional<std::int64_t> states_on_host, gradients_on_host, weights_on_host,
      stepped_on_host;  // per cent
  std::optional<optim::UpdateTime> update;
  std::optional<std::uint64_t> host_budget;
  train::OptimizerKind optimizer = train::OptimizerKind::AdamW;
  std::optional<optim::Master> master;
  std::optional<double> lr, beta1, beta2, eps, weight_decay, momentum, clip, loss_scale;
  std::optional<bool> decay_matrices_only;
  std::int64_t warmup = 0;
  optim::Schedule::Kind schedule = optim::Schedule::Kind::Constant;
  std::uint64_t seed = 0;
  std::optional<std::uint64_t> shuffle;
  bool allow_nan = false;
  bool allow_quadratic = false;
  std::optional<std::int64_t> ranks, zero_stage;  // no stage: with several ranks it is chosen
  std::optional<std::int64_t> ranks_per_machine;
  int rank = 0;  // among them; none is given, it is known
};

// The first flag that was given of those that choose what a plan would: empty if none was. Of all, or of
// those that say where states, gradients and weights are.
std::string chosen_by_hand(const TrainingFlags& flags);
std::string placed_by_hand(const TrainingFlags& flags);

// Three sets of options: what a step is; its data, seed, --recompute and --offload; all of a run.
// `flags` outlives the parsing; its steps are the verb's default.
void add_step_flags(CLI::App& verb, TrainingFlags& flags);
void add_data_flags(CLI::App& verb, TrainingFlags& flags);
void add_max_tokens(CLI::App& verb, TrainingFlags& flags);
void add_host_budget(CLI::App& verb, TrainingFlags& flags);  // part of add_data_flags
void add_training_flags(CLI::App& verb, TrainingFlags& flags);
void add_rank_flags(CLI::App& verb, TrainingFlags& flags);
void add_ranks_per_machine(CLI::App& verb, TrainingFlags& flags);

// Throws Error for what contradicts itself or has no use.
train::TrainConfig training_config(const TrainingFlags& flags, bool device_must_exist = true);

// For --precision.
train::Precision parse_precision(const std::string& text);

// bf16 on a GPU, fp32 on the CPU.
train::Precision default_precision(c10::Device device);

std::int64_t default_seq_len(const models::ModelConfig& model);

}  // namespace snug::cli
