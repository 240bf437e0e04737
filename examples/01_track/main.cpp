// Where does the memory of a training step go? A few lines answer it in anyone's LibTorch program.
//
//   build/bin/01_track          on the CPU
//   build/bin/01_track cuda     on the first GPU
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "snug/base/bytes.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/tracker.h"
#include "snug/report/text.h"

using snug::trace::Category;

int main(int argc, char** argv) {
  const torch::Device device(argc > 1 ? argv[1] : "cpu");
  snug::memory::Tracker tracker({.device = device});

  torch::nn::Sequential model(torch::nn::Linear(512, 2048), torch::nn::GELU(), torch::nn::Linear(2048, 512));
  model->to(device);
  tracker.adopt(model->parameters(), Category::Parameter);
  torch::optim::AdamW optimizer(model->parameters());

  for (int step = 0; step < 2; ++step) {
    torch::Tensor x;
    {
      auto claim = tracker.claim(Category::Input);
      x = torch::randn({1024, 512}, device);
    }
    optimizer.zero_grad();
    torch::mse_loss(model->forward(x), x).backward();
    auto claim = tracker.claim(Category::Optimizer);
    optimizer.step();
  }

  const auto memory = snug::memory::process_memory(device, tracker.live_bytes());
  std::cout << "at the peak:\n" << snug::report::table(tracker.peak());
  std::cout << "\nnow: allocated " << snug::format_bytes(memory.allocated_bytes) << ", reserved "
            << snug::format_bytes(memory.reserved_bytes) << ", outside the allocator "
            << snug::format_bytes(memory.outside_bytes()) << " (" << memory.source << ")\n";
}
