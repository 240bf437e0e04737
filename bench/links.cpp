// How fast bytes move between GPU and host while the GPU computes, and what that costs the compute.
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "snug/models/language_model.h"
#include "snug/ops/rms_norm.h"
#include "snug/machine/cuda_probe.h"

int main() {
  using namespace snug;
  constexpr std::int64_t kTokens = 32'768, kHidden = 2'048, kIntermediate = 5'632, kHeads = 16;
  constexpr int kRounds = 5;
  constexpr std::uint64_t kPieceBytes = 128 << 20;
  const c10::Device device(c10::kCUDA, 0);
  const auto on = at::TensorOptions(device).dtype(at::kBFloat16);
  const at::Tensor x = at::randn({kTokens, kHidden}, on), weight = at::randn({kHidden, kIntermediate}, on),
                   scale = at::randn({kHidden}, on), many_rows = at::randn({8 * kTokens, kHidden}, on),
                   heads = x.view({8, -1, kHeads, kHidden / kHeads}).transpose(1, 2);
  models::ModelConfig config = models::load_config("llama-1.3b");
  config.num_layers = 4;
  const auto model = models::make_model(config, {.tensors = on});
  const at::Tensor tokens = at::randint(config.vocab_size, {8, kTokens / 8}, on.dtype(at::kLong));
  const std::pair<const char*, std::function<void()>> computes[] = {
      {"steps of four layers",
       [&] {
         for (int i = 0; i < 3; ++i) model->loss_sum(tokens, tokens).backward();
       }},
      {"matrix products", [&] { at::mm(x, weight); }},
      {"attention",
       [&] { at::scaled_dot_product_attention(heads, heads, heads, {}, 0, /*is_causal=*/true); }},
      {"norms, which memory limits", [&] { ops::rms_norm(many_rows, scale, 1e-5); }}};
  fmt::print("{:28} {:12} {:>12} {:>12} {:>22}\n", "compute", "copies", "alone", "beside it", "slower by");
  for (const auto& [name, compute] : computes) {
    std::vector<machine::LinkRates> rounds;
    for (int round = 0; round < kRounds; ++round)
      rounds.push_back(machine::measure_links(device, kPieceBytes, compute));
    const std::pair<const char*, machine::LinkRate machine::LinkRates::*> directions[] = {
        {"to the host", &machine::LinkRates::to_host},
        {"back", &machine::LinkRates::to_device},
        {"both ways", &machine::LinkRates::both_ways}};
    for (const auto& [copies, direction] : directions) {
      std::ranges::sort(rounds, {}, [&](const auto& rates) { return (rates.*direction).slowdown; });
      const machine::LinkRate rate = rounds[kRounds / 2].*direction;
      fmt::print("{:28} {:12} {:>7.1f} GB/s {:>7.1f} GB/s {:>4.1f} % ({:.1f} to {:.1f})\n", name, copies,
                 1e-9 * rate.alone, 1e-9 * rate.beside, 100 * rate.slowdown,
                 100 * (rounds.front().*direction).slowdown, 100 * (rounds.back().*direction).slowdown);
    }
  }
}
