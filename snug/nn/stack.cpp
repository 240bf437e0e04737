#include "snug/nn/stack.h"

#include <string>
#include <string_view>
#include <utility>

#include "snug/hooks/region.h"

namespace snug::nn {
namespace {

at::Tensor run_region(std::string_view name, const Stack::Part& part, at::Tensor input) {
  hooks::RegionScope region(name);
  at::Tensor output = part(input);
  input.reset();  // given up inside the region that read it
  return output;
}

}  // namespace

at::Tensor Stack::run(const at::Tensor& tokens) const {
  at::Tensor x = run_region("embed", embed, tokens);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    x = run_region("layers." + std::to_string(i), blocks[i], std::move(x));
  }
  return run_region("head", head, std::move(x));
}

void bind_to_region(std::string_view name, const torch::nn::Module& module) {
  hooks::bind_parameters(hooks::region_id(name), module.parameters());
}

}  // namespace snug::nn
