// What a run will need, from a step on Meta: seconds, and no memory to speak of, whatever the size of the
// model.
#pragma once

#include "snug/base/export.h"
#include "snug/capture/capture.h"
#include "snug/train/config.h"

namespace snug::train {

struct Prediction : capture::Captured {
  std::uint64_t host_bytes = 0;        // of what is offloaded
  std::uint64_t reserved_bytes = 0;    // on CUDA: by torch's allocator, with segments that grow
  std::uint64_t needed_cap_bytes = 0;  // on CUDA: with a lower cap torch's allocator would empty its cache
  std::uint64_t outside_bytes = 0;     // on CUDA: context and libraries, as planned with or usual

  std::uint64_t process_bytes() const { return outside_bytes + reserved_bytes; }
};

struct PredictOptions {
  std::int64_t steps = 2;
  std::uint64_t device_bytes = 0;  // the GPU's memory, by which torch's allocator takes addresses; 0: much
};

// Builds the model and its optimizer on Meta and runs steps there.
SNUG_API Prediction predict(const TrainConfig& config, const PredictOptions& options = {});

}  // namespace snug::train
