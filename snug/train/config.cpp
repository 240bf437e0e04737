#include "snug/train/config.h"

#include <cmath>
#include <limits>

#include "snug/base/error.h"

namespace snug::train {

Precision parse_precision(std::string_view text) {
  for (Precision precision : {Precision::Fp32, Precision::Bf16, Precision::Fp16})
    if (text == name(precision)) return precision;
  fail("--precision must be fp32, bf16 or fp16, got \"", text, "\"");
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
  fail("--recompute must be none, cheap or block, got \"", text, "\"");
}

std::string_view name(Recompute recompute) {
  return recompute == Recompute::None ? "none" : recompute == Recompute::Cheap ? "cheap" : "block";
}

OptimizerKind parse_optimizer(std::string_view text) {
  for (OptimizerKind kind : {OptimizerKind::AdamW, OptimizerKind::Sgd})
    if (text == name(kind)) return kind;
  fail("--optimizer must be adamw or sgd, got \"", text, "\"");
}

std::string_view name(OptimizerKind kind) {
  return kind == OptimizerKind::AdamW ? "adamw" : "sgd";
}

void validate(const TrainConfig& config) {
  check(config.steps >= 1, "--steps must be at least 1, got ", config.steps);
  check(config.batch_size >= 1, "--batch-size must be at least 1, got ", config.batch_size);
  check(config.micro_batch >= 1, "--micro-batch must be at least 1, got ", config.micro_batch);
  check(config.batch_size % config.micro_batch == 0, "--micro-batch ", config.micro_batch,
        " does not divide --batch-size ", config.batch_size);
  check(config.seq_len >= 1, "--seq-len must be at least 1, got ", config.seq_len);
  check(config.seq_len <= config.model.max_positions, "--seq-len ", config.seq_len, " is longer than the ",
        config.model.max_positions, " positions of ", config.model_name);
  check(config.precision != Precision::Fp16,
        "--precision fp16 needs loss scaling, which snug does not have yet: use bf16 or fp32");
  check(config.optimizer.warmup >= 0 && config.optimizer.warmup <= config.steps,
        "--warmup must be between 0 and --steps ", config.steps, ", got ", config.optimizer.warmup);
  const OptimizerConfig& optimizer = config.optimizer;
  for (auto [value, flag] : {std::pair{optimizer.lr, "--lr"},
                             {optimizer.clip, "--clip"},
                             {optimizer.weight_decay, "--weight-decay"},
                             {optimizer.eps, "--eps"}})
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
               {"seq_len", config.seq_len},
               {"seed", config.seed},
               {"device", config.device.str()},
               {"precision", name(config.precision)},
               {"recompute", config.plan ? "planned" : name(config.recompute)},
               {"optimizer", name(config.optimizer.kind)},
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
  if (config.allow_nan) json["allow_nan"] = true;
  json["shuffle"] = config.shuffle_seed ? Json(*config.shuffle_seed) : Json(nullptr);
  json["budget_bytes"] = config.budget_bytes ? Json(*config.budget_bytes) : Json(nullptr);
  return json;
}

}  // namespace snug::train
