#include "snug/session/session_setup.h"

#include <torch/version.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/hooks/device.h"
#include "snug/machine/hardware_of.h"
#include "snug/machine/prepare.h"
#include "snug/machine/products.h"
#include "snug/zero/sharding.h"

namespace snug::session {

namespace {

// What it does not say is not checked: it was written by hand.
void check_is_for(const plan::Plan& plan, c10::Device device) {
  const auto expect = [&](const char* key, const std::string& here) {
    const auto planned = plan.step.find(key);
    check(planned == plan.step.end() || *planned == here, "the plan is for ", key, " ",
          planned == plan.step.end() ? "" : planned->dump(), ", this is ", here);
  };
  expect("device", device.is_cuda() ? "cuda" : "cpu");
  expect("torch", TORCH_VERSION);
}

void say_on_stderr(const std::string& text) {
  std::fprintf(stderr, "snug: %s\n", text.c_str());
}

// A budget of another device would limit nothing.
c10::Device device_of(at::TensorList parameters, const std::optional<c10::Device>& given) {
  const c10::Device device =
      hooks::with_index(given.value_or(parameters.empty() ? at::kCPU : parameters[0].device()));
  const auto is_elsewhere = [&](const at::Tensor& parameter) { return parameter.device() != device; };
  const auto elsewhere = std::ranges::count_if(parameters, is_elsewhere);
  const auto all = static_cast<std::ptrdiff_t>(parameters.size());
  if (given)
    check(all == 0 || elsewhere < all, "`device` is ", device.str(), ", and all parameters are on ",
          all == 0 ? "" : parameters[0].device().str());
  else
    check(elsewhere == 0, "the parameters are not all on ", device.str(),
          ": say by `device` which one the budget is of");
  return device;
}

}  // namespace

int threads_of(const std::optional<plan::Plan>& plan) {
  if (!plan) return 0;
  const auto planned = plan->step.find("threads");
  return planned != plan->step.end() && planned->is_number_integer() ? planned->get<int>() : 0;
}

SessionOptions completed(SessionOptions options, at::TensorList parameters) {
  const std::optional<plan::Plan>& plan = options.plan;
  const c10::Device device = device_of(parameters, options.device);
  options.device = device;
  if (plan) check_is_for(*plan, device);
  check(!plan || !options.by_hand, "a session follows a plan or what is chosen by hand, not both");
  const bool has_other_budget = plan && options.budget_bytes && *options.budget_bytes != plan->budget_bytes;
  if (has_other_budget && plan->predicted.peak_bytes > *options.budget_bytes)
    fail("the plan needs ", format_bytes(plan->predicted.peak_bytes), ", `budget` is ",
         format_bytes(*options.budget_bytes), ": plan for that budget, or give a larger one");
  if (plan && plan->budget_bytes > 0 && !options.budget_bytes) options.budget_bytes = plan->budget_bytes;
  if (!options.say) options.say = say_on_stderr;
  const bool may_plan = plan || (options.budget_bytes && !options.by_hand);
  if (!may_plan) options.hardware.reset();
  if (may_plan && !options.hardware) options.hardware = machine::hardware_here(device).hardware;
  machine::prepare(device);
  if (device.is_cuda()) {
    machine::race_products(!options.sharding);  // each rank has a clock of its own
    machine::take_products(plan ? plan->products : plan::Plan().products);  // nor those of a session before
  }
  return options;
}

std::shared_ptr<host::Store> make_store(const SessionOptions& options) {
  const std::uint64_t bytes = options.predicted ? options.predicted->host_bytes
                              : options.plan    ? options.plan->predicted.host_bytes
                                                : 0;
  // Beside a plan that was given: see open_store().
  const bool may_offload = !options.plan && options.hardware && options.hardware->to_host_rate > 0;
  if (bytes == 0 && (!may_offload || options.host_budget_bytes == 0)) return nullptr;
  if (options.host_budget_bytes == 0)
    throw RunError(concat("this step keeps ", format_bytes(bytes), " on the host, `host_budget` is 0"));
  try {
    return std::make_shared<host::Store>(
        *options.device,
        host::StoreOptions{.budget_bytes = options.host_budget_bytes.value_or(0), .reserve_bytes = bytes});
  } catch (const Error& error) {  // good input, but this machine cannot do it
    throw RunError(error.what());
  }
}

}  // namespace snug::session
