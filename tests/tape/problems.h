// Models that between them use what a tape must get right: attention, dropout, batch norm, writes in place,
// recurrent nets, shared weights and views. Each has one or more regions.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/tape/recording.h"

namespace snug::tape {

enum class Numbers { Fp32, Bf16, Autocast };
std::string name(Numbers numbers);

struct Problem {
  std::string name;
  std::function<at::Tensor()> loss;
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> buffers_at_first;
  Numbers numbers = Numbers::Fp32;
  c10::Device device = c10::kCPU;
};

Problem llama(Numbers numbers, c10::Device device = c10::kCPU);
Problem gpt_with_dropout(Numbers numbers, c10::Device device = c10::kCPU);
Problem convolutions(Numbers numbers, c10::Device device = c10::kCPU);
Problem lstm(Numbers numbers, c10::Device device = c10::kCPU);
Problem shared_weights(Numbers numbers, c10::Device device = c10::kCPU);
std::vector<Problem> all_problems(Numbers numbers, c10::Device device = c10::kCPU);

bool runs_here(Problem& problem);  // oneDNN has no recurrent nets in 16 bits for some CPUs

// Loss, gradients, buffers and the generator's state after a step from the same start.
std::vector<at::Tensor> step(Problem& problem, int backwards = 1);

at::Tensor leaf(at::IntArrayRef sizes, std::uint64_t seed = 1);  // random

bool same_bits(const at::Tensor& a, const at::Tensor& b);
bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

using Names = std::vector<std::string>;
Names names(const std::vector<trace::RegionTape>& tapes);  // of their regions

// A third of the values in each fate.
Fates dice(std::uint64_t seed);

}  // namespace snug::tape
