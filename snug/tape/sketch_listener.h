// Lays a tape beside the memory of the step it is from: hears of each value and operation as it is described,
// and of each unpack. Tapes are numbered in the order in which they begin, saves as in RegionTape::saves.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "snug/trace/region_tape.h"

namespace snug::tape {

class SketchListener {
 public:
  virtual ~SketchListener() = default;
  virtual void on_begin(std::uint64_t tape) = 0;
  virtual void on_end(std::uint64_t tape) = 0;  // of the forward
  virtual void on_value(std::uint64_t tape, trace::ValueIndex value, const at::Tensor& tensor) = 0;
  virtual void on_operation(std::uint64_t tape, std::uint32_t operation) = 0;  // it has just run
  virtual void on_save(std::uint64_t tape) = 0;                                // the next of its saves
  // What is allocated between the two stands for what is kept or recomputed.
  virtual void before_unpack(std::uint64_t tape, std::size_t save) = 0;
  virtual void after_unpack() = 0;
  virtual void on_release(std::uint64_t tape, std::size_t save) = 0;  // autograd let go
};

}  // namespace snug::tape
