// Everything that decides a run, as plain data; defaults are those of the command line.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "snug/base/export.h"
#include "snug/base/json.h"
#include "snug/models/config.h"
#include "snug/ops/attention.h"
#include "snug/optim/optimizer.h"
#include "snug/optim/schedule.h"
#include "snug/plan/plan.h"
#include "snug/session/treatment.h"

namespace snug::train {

enum class Precision { Fp32, Bf16, Fp16 };
// Throws Error that names the flag and lists the names.
SNUG_API Precision parse_precision(std::string_view text, std::string_view flag = "`precision`");
SNUG_API std::string_view name(Precision precision);
SNUG_API c10::ScalarType dtype(Precision precision);

// Of blocks only: the backward begins with the head, so its values are needed at once.
SNUG_API Recompute parse_recompute(std::string_view text);
SNUG_API std::string_view name(Recompute recompute);

// How much of what --recompute leaves kept in the blocks goes to the host.
SNUG_API OffloadLimit parse_offload(std::string_view text);  // "2GiB", "30%", "all"
SNUG_API std::string to_string(const OffloadLimit& offload);

// Per cent: "50%", "all". `what` names it in errors.
SNUG_API std::int64_t parse_share_on_host(std::string_view text);

SNUG_API optim::UpdateTime parse_update(std::string_view text);
SNUG_API std::string_view name(optim::UpdateTime update);

enum class OptimizerKind { AdamW, Sgd };
SNUG_API OptimizerKind parse_optimizer(std::string_view text);
SNUG_API std::string_view name(OptimizerKind kind);

SNUG_API optim::Master parse_master(std::string_view text);
SNUG_API std::string_view name(optim::Master master);

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::AdamW;
  double lr = 3e-4;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;
  bool decay_matrices_only = false;
  double momentum = 0;                  // sgd
  std::optional<optim::Master> master;  // of 16-bit weights; default: split for bf16, fp32 for fp16
  double clip = 1.0;                    // global norm; 0 = never
  std::int64_t warmup = 0;
  optim::Schedule::Kind schedule = optim::Schedule::Kind::Constant;
};

struct TrainConfig {
  std::string model_name;  // as given: preset or path
  models::ModelConfig model;
  std::filesystem::path weights;  // a folder that holds them; empty: fresh ones
  std::string data = "synthetic";
  std::optional<std::uint64_t> shuffle_seed;
  std::int64_t steps = 10;
  std::int64_t batch_size = 8;      // sequences per optimizer step, over all ranks
  std::int64_t micro_batch = 8;     // sequences per forward; divides a rank's part of the batch
  std::int64_t head_chunks = 0;     // pieces in which the head makes its logits; 0: by their size
  std::int64_t states_on_host = 0;  // per cent of the optimizer's states that wait there between steps
  // Per cent of the regions whose gradients, and whose weights, are there while they do not run; so are the
  // states of these.
  std::int64_t gradients_on_host = 0, weights_on_host = 0;
  std::int64_t stepped_on_host =
      0;  // per cent of the parameters with states on the host: the CPU updates them
  std::optional<optim::UpdateTime> update;  // default: see update_time()
  std::int64_t seq_len = 256;
  std::uint64_t seed = 0;
  c10::Device device = c10::kCPU;
  Precision precision = Precision::Fp32;
  Recompute recompute = Recompute::None;
  std::optional<OffloadLimit> offload;
  OptimizerConfig optimizer;
  std::optional<std::uint64_t> budget_bytes;
  std::optional<std::uint64_t> host_budget_bytes;  // default: four fifths of what the host has free
  std::optional<std::uint64_t> host_part_bytes;    // instead of that default, for one of several ranks there
  std::optional<plan::Plan> plan;                  // takes precedence over `recompute` and `offload`
  bool allow_nan = false;     // else a loss or gradient norm that is not finite ends the run
  double loss_scale = 65536;  // at first, in fp16
  // Where the host is slower in launching a step's kernels than the GPU in running them, its passes become
  // one CUDA graph, unless something is on the host or shared with other ranks.
  bool graph = true;
  bool allow_quadratic = false;  // attention whose memory grows with tokens squared, where no kernel is
  // Processes that train together, which of them this one is, and what they share out: see zero/sharding.h.
  // No stage: one that trains by itself.
  int ranks = 1, rank = 0;
  std::optional<int> zero_stage;
  std::optional<int> ranks_per_machine;  // for prices; default: as many GPUs as machines commonly have

  plan::Ranks all_ranks() const {
    constexpr int kUsual = 8;
    return {.count = ranks, .per_machine = ranks_per_machine.value_or(device.is_cuda() ? kUsual : ranks)};
  }

  std::optional<std::uint64_t> host_bytes() const {
    return host_budget_bytes ? host_budget_bytes : host_part_bytes;
  }
  std::int64_t rank_batch() const { return batch_size / ranks; }
  std::int64_t accumulation() const { return rank_batch() / micro_batch; }
  bool has_states_on_host() const {
    return states_on_host > 0 || gradients_on_host > 0 || weights_on_host > 0;
  }
};

SNUG_API Treatment treatment(const TrainConfig& config);

// As configured. Default: of parameters with states on the host in the backward, if nothing is clipped or
// scaled, else before their block's next forward; of others in the step.
SNUG_API optim::UpdateTime update_time(const TrainConfig& config);

// Throws Error for a master that the precision has no use for.
SNUG_API void check_master(Precision precision, std::optional<optim::Master> master);

// In fp16.
SNUG_API std::optional<double> first_loss_scale(const TrainConfig& config);

// Where the fp32 values of the weights are; none for fp32, which are their own.
SNUG_API std::optional<optim::Master> master(const TrainConfig& config);

// Default, or Quadratic where no kernel is and it is allowed; the device is that of the run, also on Meta.
SNUG_API ops::AttentionBackend attention_backend(const TrainConfig& config);

// Throws Error, in the words of the command line, for what cannot be run: sizes below 1, a batch that the
// micro-batch does not divide, a sequence longer than the model's positions, a master that
// the precision has no use for, attention without a kernel.
SNUG_API void validate(const TrainConfig& config);
SNUG_API Json to_json(const TrainConfig& config);

}  // namespace snug::train
