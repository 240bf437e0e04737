#include "snug/train/config.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "snug/base/bytes.h"
#include "snug/base/error.h"

namespace snug::train {
namespace {

std::string missing_attention(const TrainConfig& config) {
  return ops::missing_attention_kernel(config.device.type(), dtype(config.precision), config.model.head_dim);
}

}  // namespace

Precision parse_precision(std::string_view text, std::string_view flag) {
  for (Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp16})
    if (text == name(precision)) return precision;
  fail(flag, " must be fp32, bf16 or fp16, got \"", text, "\"");
}

std::string_view name(Precision precision) {
  switch (precision) {
    case Precision::Fp32:
      return "fp32";
    case Precision::Bf16:
      return "bf16";
    case Precision::Fp16:
      return "fp16";
  }
  ensure(false, "unnamed precision");
  return {};
}

c10::ScalarType dtype(Precision precision) {
  switch (precision) {
    case Precision::Fp32:
      return c10::kFloat;
    case Precision::Bf16:
      return c10::kBFloat16;
    case Precision::Fp16:
      return c10::kHalf;
  }
  ensure(false, "precision without a type");
  return c10::kFloat;
}

Recompute parse_recompute(std::string_view text) {
  for (Recompute recompute : {Recompute::None, Recompute::Cheap, Recompute::Block})
    if (text == name(recompute)) return recompute;
  fail("`recompute` must be none, cheap or block, got \"", text, "\"");
}

OffloadLimit parse_offload(std::string_view text) {
  if (text == "all") return {};
  if (!text.ends_with('%')) return {.bytes = parse_bytes(std::string(text))};
  double percent = 0;
  const char* const end = text.data() + text.size() - 1;
  const auto [stop, bad] = std::from_chars(text.data(), end, percent);
  check(bad == std::errc() && stop == end && percent > 0 && percent <= 100,
        "`offload` must be a size, a share above 0 % and up to 100 %, or all, got \"", text, "\"");
  return {.share = percent / 100};
}

std::int64_t parse_share_on_host(std::string_view text) {
  if (text == "none") return 0;
  if (text == "all") return 100;
  std::int64_t percent = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), percent);
  check(error == std::errc() && std::string_view(end, text.data() + text.size()) == "%" && percent >= 1 &&
            percent <= 100,
        "expected a whole share from 1% to 100%, all or none, got \"", text, "\"");
  return percent;
}

std::string to_string(const OffloadLimit& offload) {
  if (offload.share < 1) return concat(offload.share * 100, "%");
  return offload.bytes == OffloadLimit{}.bytes ? "all" : format_bytes(offload.bytes);
}

std::string_view name(Recompute recompute) {
  return recompute == Recompute::None ? "none" : recompute == Recompute::Cheap ? "cheap" : "block";
}

OptimizerKind parse_optimizer(std::string_view text) {
  for (OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Sgd})
    if (text == name(kind)) return kind;
  fail("`optimizer` must be adamw or sgd, got \"", text, "\"");
}

std::string_view name(OptimizerKind kind) {
  return kind == OptimizerKind::AdamW ? "adamw" : "sgd";
}

optim::Master parse_master(std::string_view text) {
  for (optim::Master master : {optim::Master::Split, optim::Master::Fp32})
    if (text == name(master)) return master;
  fail("`master` must be split or fp32, got \"", text, "\"");
}

std::string_view name(optim::Master master) {
  return master == optim::Master::Split ? "split" : "fp32";
}

optim::UpdateTime parse_update(std::string_view text) {
  using enum optim::UpdateTime;
  for (optim::UpdateTime update : {InStep, BeforeForward, InBackward})
    if (text == name(update)) return update;
  fail("`update` must be step, forward or backward, got \"", text, "\"");
}

std::string_view name(optim::UpdateTime update) {
  switch (update) {
    case optim::UpdateTime::InStep:
      return "step";
    case optim::UpdateTime::BeforeForward:
      return "forward";
    case optim::UpdateTime::InBackward:
      return "backward";
  }
  return "";
}

namespace {

// The norm of all gradients decides how each is used.
bool needs_all_gradients(const TrainConfig& config) {
  return config.optimizer.clip > 0 || config.precision == Precision::Fp16;
}

}  // namespace

optim::UpdateTime update_time(const TrainConfig& config) {
  if (config.update) return *config.update;
  if (!config.has_states_on_host()) return optim::UpdateTime::InStep;
  return needs_all_gradients(config) || config.zero_stage == 0 ? optim::UpdateTime::BeforeForward
                                                               : optim::UpdateTime::InBackward;
}

Treatment treatment(const TrainConfig& config) {
  return {.plan = config.plan,
          .by_hand = {.recompute = config.recompute, .offload = config.offload, .regions = "layers."}};
}

void check_master(Precision precision, std::optional<optim::Master> master) {
  check(!master || precision != Precision::Fp32,
        "`master` has no use with `precision` fp32: its weights are the master");
  check(master != optim::Master::Split || precision != Precision::Fp16,
        "`master` split needs `precision` bf16; with fp16 the master is fp32");
}

std::optional<double> first_loss_scale(const TrainConfig& config) {
  if (config.precision != Precision::Fp16) return std::nullopt;
  return config.loss_scale;
}

std::optional<optim::Master> master(const TrainConfig& config) {
  if (config.precision == Precision::Fp32) return std::nullopt;
  if (config.precision == Precision::Fp16) return optim::Master::Fp32;
  return config.optimizer.master.value_or(optim::Master::Split);
}

ops::AttentionBackend attention_backend(const TrainConfig& config) {
  using Backend = ops::AttentionBackend;
  return config.allow_quadratic && !missing_attention(config).empty() ? Backend::Quadratic : Backend::Default;
}

namespace {

void check_ranks(const TrainConfig& config) {
  check(config.ranks >= 1, "`ranks` must be at least 1, got ", config.ranks);
  check(config.batch_size % config.ranks == 0, "`ranks` ", config.ranks, " does not divide `batch_size` ",
        config.batch_size, ", which is that of all ranks together");
  check(!config.ranks_per_machine || *config.ranks_per_machine >= 1,
        "`ranks_per_machine` must be at least 1, got ", config.ranks_per_machine.value_or(0));
  if (!config.zero_stage) return;
  check(*config.zero_stage >= 0 && *config.zero_stage <= 3, "`zero_stage` must be 0, 1, 2 or 3, got ",
        *config.zero_stage);
  check(config.gradients_on_host == 0 || *config.zero_stage >= 2,
        "`gradients_on_host` is of pieces, which `zero_stage` 2 and 3 make; got ", *config.zero_stage);
  check(config.weights_on_host == 0 || *config.zero_stage == 3,
        "`weights_on_host` is of pieces, which `zero_stage` 3 makes; got ", *config.zero_stage);
  check(
      config.update != optim::UpdateTime::InBackward || *config.zero_stage > 0,
      "`update` backward uses each gradient as it is summed over the ranks: it needs `zero_stage` 1, 2 or 3");
}

}  // namespace

void validate(const TrainConfig& config) {
  check(config.steps >= 1, "`steps` must be at least 1, got ", config.steps);
  check(config.batch_size >= 1, "`batch_size` must be at least 1, got ", config.batch_size);
  check(config.micro_batch >= 1, "`micro_batch` must be at least 1, got ", config.micro_batch);
  check_ranks(config);
  check(config.rank_batch() % config.micro_batch == 0, "`micro_batch` ", config.micro_batch,
        " does not divide ", config.ranks == 1 ? "" : concat(config.rank_batch(), ", a rank's part of "),
        "`batch_size` ", config.batch_size);
  check(config.seq_len >= 1, "`seq_len` must be at least 1, got ", config.seq_len);
  check(config.seq_len <= config.model.max_positions, "`seq_len` ", config.seq_len, " is longer than the ",
        config.model.max_positions, " positions of ", config.model_name);
  check_master(config.precision, config.optimizer.master);
  check(config.update != optim::UpdateTime::InBackward || !needs_all_gradients(config),
        "`update` backward uses each gradient before the others are known: it needs `clip` 0 and another "
        "`precision` than fp16");
  const std::string missing = missing_attention(config);
  check(missing.empty() || config.allow_quadratic, missing,
        "; `allow_quadratic` runs it in plain operators, whose memory grows with the square of `seq_len`");
  check(!missing.empty() || !config.allow_quadratic,
        "`allow_quadratic` has no use here: there is an attention kernel for heads of ",
        config.model.head_dim, " in ", name(config.precision), " on ", config.device.str(), "; leave it out");
  check(config.loss_scale >= 1 && config.loss_scale <= std::numeric_limits<float>::max(),
        "`loss_scale` must be at least 1 and fit fp32, got ", config.loss_scale);
  check(config.optimizer.warmup >= 0 && config.optimizer.warmup <= config.steps,
        "`warmup` must be between 0 and `steps` ", config.steps, ", got ", config.optimizer.warmup);
  const OptimizerConfig& optimizer = config.optimizer;
  for (auto [value, flag] : {std::pair{optimizer.lr, "`lr`"},
                             {optimizer.clip, "`clip`"},
                             {optimizer.weight_decay, "`weight_decay`"},
                             {optimizer.eps, "`eps`"}})
    check(value >= 0 && value <= std::numeric_limits<float>::max(), flag,
          " must be 0 or a positive number that fits fp32, got ", value);
}

Json to_json(const TrainConfig& config) {
  Json json = {{"model", config.model_name},
               {"architecture", models::to_json(config.model)},
               {"data", config.data},
               {"steps", config.steps},
               {"batch_size", config.batch_size},
               {"micro_batch", config.micro_batch},
               {"accumulation", config.accumulation()},
               {"head_chunks", config.head_chunks},
               {"states_on_host", config.states_on_host},
               {"gradients_on_host", config.gradients_on_host},
               {"weights_on_host", config.weights_on_host},
               {"stepped_on_host", config.stepped_on_host},
               {"update", config.has_states_on_host() ? Json(name(update_time(config))) : Json(nullptr)},
               {"seq_len", config.seq_len},
               {"seed", config.seed},
               {"device", config.device.str()},
               {"precision", name(config.precision)},
               {"recompute", config.plan ? "planned" : name(config.recompute)},
               {"offload", config.offload ? Json(to_string(*config.offload)) : Json(nullptr)},
               {"optimizer", name(config.optimizer.kind)},
               {"master", master(config) ? Json(name(*master(config))) : Json(nullptr)},
               {"lr", config.optimizer.lr},
               {"weight_decay", config.optimizer.weight_decay},
               {"clip", config.optimizer.clip},
               {"warmup", config.optimizer.warmup},
               {"schedule", optim::to_string(config.optimizer.schedule)}};
  if (config.optimizer.kind == OptimizerKind::AdamW) {
    json["beta1"] = config.optimizer.beta1;
    json["beta2"] = config.optimizer.beta2;
    json["eps"] = config.optimizer.eps;
    json["decay"] = config.optimizer.decay_matrices_only ? "matrices" : "all";
  } else {
    json["momentum"] = config.optimizer.momentum;
  }
  if (config.precision == Precision::Fp16) json["loss_scale"] = config.loss_scale;
  if (config.zero_stage) {
    json["ranks"] = config.ranks;
    json["zero_stage"] = *config.zero_stage;
  }
  if (config.allow_quadratic) json["allow_quadratic"] = true;
  if (config.allow_nan) json["allow_nan"] = true;
  json["shuffle"] = config.shuffle_seed ? Json(*config.shuffle_seed) : Json(nullptr);
  json["budget_bytes"] = config.budget_bytes ? Json(*config.budget_bytes) : Json(nullptr);
  json["host_budget_bytes"] = config.host_budget_bytes ? Json(*config.host_budget_bytes) : Json(nullptr);
  return json;
}

}  // namespace snug::train
