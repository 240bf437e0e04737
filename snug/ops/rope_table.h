// What operators that rotate ask of a table. Internal to ops.
#pragma once

#include "snug/base/error.h"
#include "snug/ops/rope.h"

namespace snug::ops {

// `dimensions` says what the caller expects x to be; in it, how many tokens of which head_dim are here.
inline void check_rope_table(const char* name, const char* dimensions, const at::Tensor& x,
                             std::int64_t tokens, std::int64_t head_dim, const RopeTable& table) {
  check(tokens == table.cos.size(0) && head_dim == 2 * table.cos.size(1), name, ": a table for ",
        table.cos.size(0), " tokens and head_dim ", 2 * table.cos.size(1), " needs x ", dimensions,
        " of those sizes, got ", x.sizes());
  check(x.scalar_type() == table.cos.scalar_type(), name, ": x is ", x.scalar_type(), ", the table is ",
        table.cos.scalar_type(), "; make the table with x.options()");
  check(table.cos.device() == x.device() && table.sin.device() == x.device() &&
            table.sin.sizes() == table.cos.sizes() && table.sin.scalar_type() == table.cos.scalar_type(),
        name, ": the table must be of one kind and on ", x.device(), " as x is, got ", table.cos.sizes(),
        " on ", table.cos.device(), " and ", table.sin.sizes(), " on ", table.sin.device());
  check(x.numel() > 0, name, ": empty input ", x.sizes());
}

}  // namespace snug::ops
