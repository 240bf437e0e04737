// Weights that are there while their region runs, whatever their source: two regions' at a time.
//
//   const std::size_t place = weights.add_region();                 // in the order of the forward
//   weights.add(place, &moving);
//   weights.begin_forward(place);                // the region's are there, the next one's on their way
//   weights.end_forward(place);                  // all others go
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "snug/base/export.h"
#include "snug/host/moving_tensor.h"

namespace snug::host {

class SNUG_API RegionWeights {
 public:
  // Before a region's weights are fetched: whether their source has them. `wait`: the host waits until it
  // has.
  using BeforeFetch = std::function<bool(std::size_t place, bool wait)>;
  explicit RegionWeights(BeforeFetch before_fetch = nullptr) : before_fetch_(std::move(before_fetch)) {}

  std::size_t add_region();  // in the order of the forward
  // It outlives this. One that several regions read is added for each of them.
  void add(std::size_t place, MovingTensor* weight);

  void begin_forward(std::size_t place);
  void end_forward(std::size_t place);  // of the last region: its backward is next
  void end_backward(std::size_t place);

  void fetch(std::size_t place, bool wait = false);  // nothing for a place where no region is
  void use(std::size_t place);
  void drop_all();

 private:
  void drop_all_but(std::size_t place);

  const BeforeFetch before_fetch_;
  std::vector<std::vector<MovingTensor*>> regions_;
};

}  // namespace snug::host
