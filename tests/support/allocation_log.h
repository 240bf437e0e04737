// Writes down what a piece of code allocates and frees on the CPU or on Meta, to the byte and in order.
//
//   expect_same_allocations([](at::Device device) {
//     auto x = at::randn({4, 8}, device);
//     return [x] { x.exp(); };
//   });
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace snug::testing {

// "alloc 0: 64 bytes", "free 0: 64 bytes", ... Blocks are numbered by allocation; those from before the call
// are "old". Left out are blocks of at most 8 bytes: ATen turns a number into a tensor of one element on the
// CPU whatever the device is, and casts it there.
std::vector<std::string> allocations_during(at::DeviceType device, const std::function<void()>& body);

// Makes the inputs on a device, and returns what is to be run on them: repeatable, and holding on to nothing
// it allocates.
using Scenario = std::function<std::function<void()>(at::Device)>;

// Runs a scenario on one CPU thread and on Meta, after a warm-up each, and fails the test at the first
// difference.
void expect_same_allocations(const Scenario& scenario);

}  // namespace snug::testing
