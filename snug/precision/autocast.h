// Mixed precision for modules with fp32 weights: operators cast as torch's autocast does.
//
//   {
//     Autocast autocast(at::kCUDA);        // bf16
//     loss = net->forward(batch);
//   }
//   loss.backward();                        // outside
//
// LibTorch has the switch but no scope. Autocast also keeps a cast copy of every fp32 weight that it meets,
// in one cache for the whole process: 2 bytes per parameter that stay until the scope ends, are stale once a
// weight is written in place, and keep alive what was meant to be freed. So the cache is off here unless it
// is asked for; without it a weight is cast once for every use.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "snug/base/export.h"

namespace snug {

class SNUG_API Autocast {
 public:
  // Throws Error for a device without autocast (Meta among them) and for types other than bf16 and fp16.
  explicit Autocast(c10::DeviceType device, c10::ScalarType dtype = c10::kBFloat16,
                    bool keep_cast_weights = false);
  ~Autocast();
  Autocast(const Autocast&) = delete;  // it is a scope
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool enabled_before_, cache_before_;
  c10::ScalarType dtype_before_;
};

}  // namespace snug
