// States on the host against the same on the device: all combinations, bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/hooks/region.h"
#include "snug/host/store.h"
#include "snug/optim/adamw.h"
#include "snug/optim/sgd.h"
#include "tests/optim/trajectory.h"

namespace snug::testing {

struct PlacedCase {
  at::ScalarType dtype;
  optim::Master master;
  bool is_adamw;
  double on_host;
  optim::UpdateTime update = optim::UpdateTime::InStep;
  double stepped_there = 0;

  optim::Placement placement(std::shared_ptr<host::Store> store) const {
    return {.on_host = on_host, .store = std::move(store), .update = update, .stepped_there = stepped_there};
  }
};

inline std::vector<PlacedCase> placed_cases() {
  std::vector<PlacedCase> cases;
  for (const bool is_adamw : {true, false})
    for (const auto& [on_host, stepped] : {std::pair(0.5, 0.0), {1.0, 0.0}, {1.0, 0.5}, {1.0, 1.0}})
      for (const auto update : {optim::UpdateTime::InStep, optim::UpdateTime::BeforeForward}) {
        cases.push_back({at::kFloat, optim::Master::Split, is_adamw, on_host, update, stepped});
        cases.push_back({at::kBFloat16, optim::Master::Split, is_adamw, on_host, update, stepped});
        cases.push_back({at::kBFloat16, optim::Master::Fp32, is_adamw, on_host, update, stepped});
        cases.push_back({at::kHalf, optim::Master::Fp32, is_adamw, on_host, update, stepped});
      }
  return cases;
}

inline std::unique_ptr<optim::Optimizer> make_placed(const PlacedCase& some,
                                                     const std::vector<at::Tensor>& parameters,
                                                     const optim::Placement& placement) {
  if (some.is_adamw)
    return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 1e-2,
                                                                          .weight_decay = 0.1,
                                                                          .decay_matrices_only = true,
                                                                          .master = some.master,
                                                                          .placement = placement});
  return std::make_unique<optim::Sgd>(
      parameters,
      optim::SgdOptions{
          .lr = 1e-2, .momentum = 0.9, .weight_decay = 0.1, .master = some.master, .placement = placement});
}

inline std::string region_of_placed(std::size_t parameter) {
  return "placed." + std::to_string(parameter);
}

// The largest is several slices, the second and third one each; the vector is too small to leave. The last
// is bound to no region.
inline std::vector<at::Tensor> placed_parameters(at::Device device, at::ScalarType dtype) {
  at::manual_seed(3);
  std::vector<at::Tensor> parameters;
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{1200, 2900}, {129, 130}, {64}, {300, 211}})
    parameters.push_back(at::randn(shape).to(device, dtype).requires_grad_());
  for (std::size_t i = 0; i + 1 < parameters.size(); ++i)
    hooks::bind_parameters(hooks::region_id(region_of_placed(i)), parameters[i]);
  return parameters;
}

// Clipped in some steps, called off in one; one parameter is without a gradient for a while, one has it in
// another layout, one in fp32. In some steps the regions run from the last to the first, or not at all.
inline void take_steps(std::vector<at::Tensor>& parameters, optim::Optimizer& optimizer, int steps) {
  const auto scalar = [&](double value) {
    return at::full({}, value, at::TensorOptions(parameters[0].device()).dtype(at::kFloat));
  };
  at::manual_seed(17);
  const at::Tensor noise = at::randn({1200 * 2900 + 20}).to(parameters[0].device());
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < parameters.size() && step % 5 != 4; ++i)
      hooks::RegionScope(region_of_placed(step % 3 == 2 ? parameters.size() - 1 - i : i));
    if (step % 5 == 4) optimizer.finish();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient =
          noise.narrow(0, step, parameters[i].numel()).view(parameters[i].sizes()) * (0.1 + step % 3);
      parameters[i].mutable_grad() = gradient.to(parameters[i].scalar_type());
    }
    if (step % 5 == 1) parameters[1].mutable_grad().reset();
    parameters[3].mutable_grad() = parameters[3].grad().t().contiguous().t();
    ops::UpdateControl control;
    if (step % 2 == 0) control.factor = scalar(0.37);
    if (step % 4 == 3) control.skip = scalar(step == 7);
    optimizer.step(1e-2, control);
  }
}

inline void expect_same_bits_on_the_host(at::Device device, const PlacedCase& some, int steps = 20) {
  SCOPED_TRACE(::testing::Message() << (some.update == optim::UpdateTime::InStep ? "" : "deferred ")
                                    << some.dtype << (some.is_adamw ? " adamw " : " sgd ") << "master "
                                    << static_cast<int>(some.master) << ", on the host " << some.on_host
                                    << ", stepped there " << some.stepped_there);
  std::vector<at::Tensor> here = placed_parameters(device, some.dtype);
  std::vector<at::Tensor> there = placed_parameters(device, some.dtype);
  const auto store = std::make_shared<host::Store>(device, host::StoreOptions{.budget_bytes = 1_GiB});
  const auto on_device = make_placed(some, here, {});
  const auto on_host = make_placed(some, there, some.placement(store));
  EXPECT_GT(on_host->host_bytes(), 0u);
  EXPECT_EQ(on_host->state_bytes(), on_device->state_bytes());
  const double most = some.on_host * static_cast<double>(on_host->state_bytes()) + 4096;  // pieces of 512
  EXPECT_TRUE(some.stepped_there > 0 || static_cast<double>(on_host->host_bytes()) <= most);
  take_steps(here, *on_device, steps);
  take_steps(there, *on_host, steps);
  const auto states = on_device->state(), others = on_host->state();
  ASSERT_EQ(states.size(), others.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    EXPECT_EQ(states[i].name, others[i].name);
    EXPECT_TRUE(at::equal(states[i].tensor.cpu(), others[i].tensor.cpu()))
        << states[i].name << " of parameter " << states[i].parameter;
  }
  for (std::size_t i = 0; i < here.size(); ++i) {
    EXPECT_TRUE(at::equal(here[i], there[i])) << "parameter " << i;
    EXPECT_TRUE(at::equal(on_device->exact(i), on_host->exact(i))) << "parameter " << i;
  }
}

}  // namespace snug::testing
