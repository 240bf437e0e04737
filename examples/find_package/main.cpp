// The smallest program outside this repository that watches its own memory.
#include <torch/torch.h>

#include <iostream>

#include "snug/snug.h"

int main() {
  snug::memory::Tracker tracker;
  torch::nn::Linear layer(256, 256);
  tracker.adopt(layer->parameters(), snug::trace::Category::Parameter);
  layer->forward(torch::randn({64, 256})).sum().backward();
  std::cout << snug::report::table(tracker.peak());
  return tracker.peak()[snug::trace::Category::Parameter] == (256 * 256 + 256) * sizeof(float) ? 0 : 1;
}
