// What an operator has to do, whatever machine does it.
#pragma once

#include <string>

namespace snug::trace {

struct Work {
  std::string name;            // of the operator
  double flops = 0;            // of matrix products, convolutions and attention; 0 for what only moves memory
  double bytes = 0;            // read and written
  bool low_precision = false;  // bf16 or fp16
  bool is_attention = false;

  bool operator==(const Work&) const = default;
};

}  // namespace snug::trace
