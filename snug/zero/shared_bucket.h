// What Sharding knows of one bucket. Internal to zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "snug/host/moving_tensor.h"
#include "snug/zero/sharding.h"

namespace snug::zero {

struct Sharding::Shared {
  std::string name;
  Pieces pieces;
  std::int64_t elements = 0;
  std::vector<Member> members;
  std::size_t place = 0;                  // of its region
  std::vector<std::size_t> other_places;  // of regions that read it too, if it comes and goes
  bool has_gradients = false;
  at::Tensor whole;                            // all weights; undefined where they come and go
  at::Tensor piece;                            // this rank's weights, [n]; undefined where they are `there`
  at::Tensor trained;                          // the same as the optimizer sees them
  std::unique_ptr<host::MovingTensor> moving;  // null: they stay
  bool has_changed = false;                    // and was not gathered since
  CollectivePtr gathered;                      // weights that changed

  std::size_t ready = 0;  // gradients of members, in this backward
  at::Tensor gradient;    // all of it, [elements]: being summed, or (stages 0 and 1) summed
  CollectivePtr summed;   // null: nothing to wait for
  bool is_under_way = false, is_summed = false;
};

}  // namespace snug::zero
