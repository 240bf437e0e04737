// Rotary positions: each pair (x[i], x[i + head_dim/2]) is rotated by an angle that grows with the position.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "snug/base/export.h"

namespace snug::ops {

// Cosines and sines of all angles, [tokens, head_dim / 2] each; made once per forward, shared by all layers.
struct RopeTable {
  at::Tensor cos, sin;
};

// Slower angles, for more positions than a model was first trained with.
struct RopeScaling {
  // Linear: every angle grows factor times slower. Llama3: only those that turn less than low_turns times
  // over original_positions; those that turn more than high_turns times stay; between them, some of both.
  enum class Kind { Linear, Llama3 };

  Kind kind = Kind::Linear;
  double factor = 1;
  double low_turns = 0, high_turns = 0;
  std::int64_t original_positions = 0;

  bool operator==(const RopeScaling&) const = default;
};

// Angles are computed in fp32 and then rounded to the dtype of options.
SNUG_API RopeTable make_rope_table(std::int64_t tokens, std::int64_t head_dim, double theta,
                                   const at::TensorOptions& options,
                                   const std::optional<RopeScaling>& scaling = {});

// x [batch, heads, tokens, head_dim], of the table's dtype. One allocation in each direction, none of it
// scratch if the last dimension is contiguous; nothing of x is kept for backward, which rotates the other
// way.
SNUG_API at::Tensor rope(const at::Tensor& x, const RopeTable& table);

// The operator itself; `inverse` rotates the other way.
SNUG_API at::Tensor rope_by(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool inverse);

}  // namespace snug::ops
