// What do recomputation and offload cost, and what do they save? One Llama-like model out of torch's own
// operators, forward and backward without an optimizer: plain autograd, then the tape keeping all,
// recomputing cheap values, recomputing whole blocks (and the same with the proof in every step, or in none),
// moving all to the host, recomputing cheap values and moving the rest, in turns in one process.
// bench/recompute_twin.py does the same operations under torch.utils.checkpoint.
//
//   build/bin/recompute cpu        hidden 256, 8 layers, fp32
//   build/bin/recompute cuda       1.26B parameters, 8 x 4096 tokens, bf16
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "snug/host/store.h"
#include "snug/memory/tracker.h"
#include "snug/tape/region.h"

namespace {

using Clock = std::chrono::steady_clock;
using snug::tape::Fates;
using snug::trace::Fate;

struct Shape {
  std::int64_t layers, hidden, ffn, heads, vocabulary, batch, tokens;
};

class Model {
 public:
  Model(const Shape& shape, at::TensorOptions options) : shape_(shape) {
    at::manual_seed(7);
    const double scale = 1 / std::sqrt(static_cast<double>(shape.hidden));
    const auto weight = [&](at::IntArrayRef sizes) {
      parameters.push_back((at::randn(sizes, options) * scale).requires_grad_());
      return parameters.back();
    };
    const auto ones = [&] {
      parameters.push_back(at::ones({shape.hidden}, options).requires_grad_());
      return parameters.back();
    };
    words_ = weight({shape.vocabulary, shape.hidden});
    for (std::int64_t i = 0; i < shape.layers; ++i)
      blocks_.push_back({weight({shape.hidden, shape.hidden}), weight({shape.hidden, shape.hidden}),
                         weight({shape.hidden, shape.hidden}), weight({shape.hidden, shape.hidden}),
                         weight({shape.ffn, shape.hidden}), weight({shape.ffn, shape.hidden}),
                         weight({shape.hidden, shape.ffn}), ones(), ones()});
    norm_ = ones();
    head_ = weight({shape.vocabulary, shape.hidden});
    const auto exact = options.dtype(at::kFloat);
    const std::int64_t half = shape.hidden / shape.heads / 2;
    at::Tensor angles = at::outer(at::arange(shape.tokens, exact),
                                  at::pow(10000.0, at::arange(half, exact) / -static_cast<double>(half)));
    angles = at::cat({angles, angles}, -1);
    cos_ = angles.cos().to(options.dtype());
    sin_ = angles.sin().to(options.dtype());
    input_ = at::randint(shape.vocabulary, {shape.batch, shape.tokens}, options.dtype(at::kLong));
    target_ = at::randint(shape.vocabulary, {shape.batch * shape.tokens}, options.dtype(at::kLong));
  }

  at::Tensor loss() const {
    at::Tensor x = snug::region("embed", [&] { return at::embedding(words_, input_); });
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      x = snug::region("layers." + std::to_string(i), [&] { return block(std::move(x), blocks_[i]); });
    return snug::region("head", [&] {
      const at::Tensor logits = at::linear(at::rms_norm(x, {shape_.hidden}, norm_, 1e-5), head_);
      return at::cross_entropy_loss(logits.view({-1, shape_.vocabulary}), target_);
    });
  }

  std::vector<at::Tensor> parameters;

 private:
  struct Block {
    at::Tensor q, k, v, o, gate, up, down, norm1, norm2;
  };

  at::Tensor rope(const at::Tensor& x) const {
    const auto halves = x.chunk(2, -1);
    return x * cos_ + at::cat({-halves[1], halves[0]}, -1) * sin_;
  }

  at::Tensor block(at::Tensor x, const Block& b) const {
    const auto heads = [&](const at::Tensor& t) {
      return t.view({shape_.batch, shape_.tokens, shape_.heads, -1}).transpose(1, 2);
    };
    at::Tensor n = at::rms_norm(x, {shape_.hidden}, b.norm1, 1e-5);
    const at::Tensor attended =
        at::scaled_dot_product_attention(rope(heads(at::linear(n, b.q))), rope(heads(at::linear(n, b.k))),
                                         heads(at::linear(n, b.v)), {}, 0.0, /*is_causal=*/true);
    x = x + at::linear(attended.transpose(1, 2).reshape({shape_.batch, shape_.tokens, shape_.hidden}), b.o);
    n = at::rms_norm(x, {shape_.hidden}, b.norm2, 1e-5);
    return x + at::linear(at::silu(at::linear(n, b.gate)) * at::linear(n, b.up), b.down);
  }

  Shape shape_;
  std::vector<Block> blocks_;
  at::Tensor words_, norm_, head_, cos_, sin_, input_, target_;
};

// What is tiny stays.
Fates in_layers(const Fates::Function& fate) {
  return Fates([fate](const snug::tape::ValueInfo& value) {
           return value.region.starts_with("layers.") ? fate(value) : Fate::Keep;
         })
      .smaller_than(64 << 10, Fate::Keep);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

struct Way {
  const char* name;
  std::function<std::unique_ptr<snug::tape::Recording>()> record;
  std::vector<double> seconds;
  std::uint64_t peak = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const bool cuda = argc > 1 && std::string(argv[1]) == "cuda";
  const Shape shape = cuda ? Shape{22, 2048, 5632, 16, 32768, 8, 4096} : Shape{8, 256, 704, 4, 256, 2, 256};
  const c10::Device device = cuda ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
  Model model(shape, at::TensorOptions(device).dtype(cuda ? at::kBFloat16 : at::kFloat));

  const auto with = [](auto fates) {
    return [fates] { return std::make_unique<snug::tape::Recording>(fates()); };
  };
  std::vector<Way> ways = {
      {"plain autograd", [] { return nullptr; }, {}, 0},
      {"tape, all kept", with([] { return Fates::keep(); }), {}, 0},
      {"tape, cheap values recomputed",
       with([] { return Fates::cheap().in_region("embed", Fate::Keep).in_region("head", Fate::Keep); }),
       {},
       0},
      {"tape, blocks recomputed",
       with([] { return Fates::keep().in_region("layers.", Fate::Recompute); }),
       {},
       0},
      {"the same, each step proven",
       [place = std::uint64_t{0}]() mutable {
         return std::make_unique<snug::tape::Recording>(
             Fates::keep().in_region("layers.", Fate::Recompute),
             snug::tape::RecordingOptions{.place = ++place});  // every step is a first one
       },
       {},
       0},
      {"the same, nothing proven",
       [] {
         return std::make_unique<snug::tape::Recording>(Fates::keep().in_region("layers.", Fate::Recompute),
                                                        snug::tape::RecordingOptions{.prove = false});
       },
       {},
       0},
      {"tape, all offloaded",
       with([] { return in_layers([](const auto&) { return Fate::Offload; }); }),
       {},
       0},
      {"tape, cheap recomputed, rest off",
       with([] {
         return in_layers([](const snug::tape::ValueInfo& value) {
           const bool is_input = value.operation.empty();
           return is_input || snug::tape::is_expensive(value.operation) ? Fate::Offload : Fate::Recompute;
         });
       }),
       {},
       0}};
  const auto step = [&](Way& way) {
    for (at::Tensor& parameter : model.parameters) parameter.mutable_grad().reset();
    const auto recording = way.record();
    if (cuda) torch::cuda::synchronize();
    const auto start = Clock::now();
    const at::Tensor loss = model.loss();
    loss.backward();
    if (cuda) torch::cuda::synchronize();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  for (Way& way : ways) {
    step(way);
    for (at::Tensor& parameter : model.parameters) parameter.mutable_grad().reset();
    snug::memory::Tracker tracker({.device = device});  // bytes in one step, seconds in others
    tracker.reset_peak();
    step(way);
    way.peak = tracker.peak_bytes();
  }
  // After a step that waits for the link a GPU is cool, and the next one faster: such steps are not among the
  // others.
  const auto is_bound_by_link = [](const Way& way) {
    return std::string(way.name).find("off") != std::string::npos;
  };
  for (const bool link : {false, true})
    for (int round = 0; round < (cuda ? 9 : 25); ++round)
      for (Way& way : ways)
        if (is_bound_by_link(way) == link) way.seconds.push_back(step(way));

  const double plain = median(ways[0].seconds);
  std::printf("%s, %ld layers, hidden %ld, %ld x %ld tokens, forward + backward\n", device.str().c_str(),
              shape.layers, shape.hidden, shape.batch, shape.tokens);
  for (const Way& way : ways) {
    std::vector<double> ratio;
    for (std::size_t i = 0; i < way.seconds.size(); ++i) ratio.push_back(way.seconds[i] / ways[0].seconds[i]);
    std::printf("%-32s %9.2f ms, median ratio %.4f, ratio of medians %.4f, peak %.3f GiB\n", way.name,
                1e3 * median(way.seconds), median(ratio), median(way.seconds) / plain,
                static_cast<double>(way.peak) / 0x1p30);
  }
  std::printf("on the host at most %.3f GiB\n",
              static_cast<double>(snug::host::Store::shared(device)->arena().peak_bytes()) / 0x1p30);
}
