#include "tests/tape/problems.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/nn/modules.h>
#include <torch/nn/functional/activation.h>

#include <cstring>

#include "snug/models/llama.h"
#include "snug/tape/region.h"

namespace snug::tape {

namespace {

namespace nn = torch::nn;

constexpr std::int64_t kBatch = 2, kLength = 12, kWidth = 32, kWords = 64;

struct Autocast {
  explicit Autocast(c10::DeviceType device) : device(device) {
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device, false);
  }
  c10::DeviceType device;
};

at::ScalarType dtype(Numbers numbers) {
  return numbers == Numbers::Bf16 ? at::kBFloat16 : at::kFloat;
}

template <class Module>
Problem problem_of(std::string name, std::shared_ptr<Module> module, std::function<at::Tensor()> loss,
                   Numbers numbers, c10::Device device) {
  module->train();
  Problem problem{.name = std::move(name) + " " + tape::name(numbers),
                  .loss = std::move(loss),
                  .parameters = module->parameters(),
                  .buffers = module->buffers(),
                  .numbers = numbers,
                  .device = device};
  for (const at::Tensor& buffer : problem.buffers) problem.buffers_at_first.push_back(buffer.clone());
  return problem;
}

struct Tokens {
  explicit Tokens(c10::Device device)
      : tokens(at::randint(kWords, {kBatch, kLength}, at::kLong).to(device)),
        targets(at::randint(kWords, {kBatch, kLength}, at::kLong).to(device)) {}
  at::Tensor tokens, targets;
};

template <class Net>
Problem of_tokens(std::string name, Numbers numbers, c10::Device device) {
  at::manual_seed(7);
  auto model = std::make_shared<Net>();
  model->to(device, dtype(numbers));
  const Tokens data(device);
  return problem_of(
      std::move(name), model, [model, data] { return model->loss(data); }, numbers, device);
}

struct GptBlock : nn::Module {
  GptBlock()
      : norm1(register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        norm2(register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({kWidth})))),
        qkv(register_module("qkv", nn::Linear(kWidth, 3 * kWidth))),
        projection(register_module("projection", nn::Linear(kWidth, kWidth))),
        up(register_module("up", nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", nn::Linear(4 * kWidth, kWidth))) {}

  at::Tensor forward(at::Tensor x) {
    const auto heads = [](const at::Tensor& t) {
      return t.view({kBatch, kLength, 4, kWidth / 4}).transpose(1, 2);
    };
    const auto parts = qkv(norm1(x)).chunk(3, -1);
    at::Tensor attended =
        at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.1, true);
    x = x + at::dropout(projection(attended.transpose(1, 2).reshape({kBatch, kLength, kWidth})), 0.1, true);
    return x + at::dropout(down(at::gelu(up(norm2(x)))), 0.1, true);
  }

  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, projection, up, down;
};

struct Gpt : nn::Module {
  Gpt()
      : words(register_module("words", nn::Embedding(kWords, kWidth))),
        places(register_module("places", nn::Embedding(kLength, kWidth))),
        first(register_module("first", std::make_shared<GptBlock>())),
        second(register_module("second", std::make_shared<GptBlock>())),
        head(register_module("head", nn::Linear(kWidth, kWords))) {}

  at::Tensor loss(const Tokens& data) {
    at::Tensor x = region("embed", [&] {
      return at::dropout(words(data.tokens) + places(at::arange(kLength, data.tokens.options())), 0.1, true);
    });
    x = region("layers.0", [&] { return first->forward(x); });
    x = region("layers.1", [&] { return second->forward(x); });
    return region("head", [&] {
      return at::cross_entropy_loss(head(x).view({-1, kWords}).to(at::kFloat), data.targets.view(-1));
    });
  }

  nn::Embedding words, places;
  std::shared_ptr<GptBlock> first, second;
  nn::Linear head;
};

// snug's own Llama takes no autocast: the same out of torch's operators.
struct PlainLlamaBlock : nn::Module {
  PlainLlamaBlock() {
    for (auto* weight : {&q, &k, &v, &o}) *weight = weight_of({kWidth, kWidth});
    gate = weight_of({80, kWidth});
    up = weight_of({80, kWidth});
    down = weight_of({kWidth, 80});
    norm = register_parameter("norm", at::ones({kWidth}));
  }
  at::Tensor weight_of(at::IntArrayRef sizes) {
    return register_parameter("weight" + std::to_string(parameters().size()), at::randn(sizes) * 0.2);
  }
  at::Tensor forward(at::Tensor x) {
    const auto heads = [](const at::Tensor& t) {
      return t.view({kBatch, kLength, 4, kWidth / 4}).transpose(1, 2);
    };
    const auto turn = [](const at::Tensor& t) {
      const auto halves = t.chunk(2, -1);
      return t * 0.8 + at::cat({-halves[1], halves[0]}, -1) * 0.6;
    };
    const auto normed = [&](const at::Tensor& t) {
      return t * at::rsqrt(t.to(at::kFloat).pow(2).mean(-1, true) + 1e-5) * norm;
    };
    at::Tensor n = normed(x);
    at::Tensor attended = at::scaled_dot_product_attention(
        turn(heads(at::linear(n, q))), turn(heads(at::linear(n, k))), heads(at::linear(n, v)), {}, 0.0, true);
    x = x + at::linear(attended.transpose(1, 2).reshape({kBatch, kLength, kWidth}), o);
    n = normed(x);
    return x + at::linear(at::silu(at::linear(n, gate)) * at::linear(n, up), down);
  }
  at::Tensor q, k, v, o, gate, up, down, norm;
};

struct PlainLlama : nn::Module {
  PlainLlama()
      : words(register_parameter("words", at::randn({kWords, kWidth}))),
        first(register_module("first", std::make_shared<PlainLlamaBlock>())),
        second(register_module("second", std::make_shared<PlainLlamaBlock>())) {}
  at::Tensor loss(const Tokens& data) {
    at::Tensor x = region("embed", [&] { return at::embedding(words, data.tokens); });
    x = region("layers.0", [&] { return first->forward(x); });
    x = region("layers.1", [&] { return second->forward(x); });
    return region("head", [&] {
      return at::cross_entropy_loss(at::linear(x, words).view({-1, kWords}).to(at::kFloat),
                                    data.targets.view(-1));
    });
  }
  at::Tensor words;
  std::shared_ptr<PlainLlamaBlock> first, second;
};

struct ConvNet : nn::Module {
  ConvNet()
      : conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)))),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1)))),
        norm1(register_module("norm1", nn::BatchNorm2d(8))),
        norm2(register_module("norm2", nn::BatchNorm2d(8))),
        head(register_module("head", nn::Linear(8, 10))) {}

  at::Tensor loss(const at::Tensor& image, const at::Tensor& target) {
    at::Tensor x = region("first", [&] { return norm1(conv1(image)).relu_(); });
    x = region("second", [&] {
      at::Tensor pooled = at::max_pool2d(x, 2);
      at::Tensor halves = at::empty_like(pooled);
      halves.slice(0, 0, 2).copy_(pooled.slice(0, 0, 2) * 0.5);
      halves.slice(0, 2, 4).copy_(at::tanh(pooled.slice(0, 2, 4)));
      at::Tensor y = norm2(conv2(halves)).relu_();
      y = y + pooled;
      y.mul_(0.5);
      y += 1;
      return at::dropout(y.sigmoid() * y, 0.3, true);
    });
    return region("head", [&] {
      const auto parts = at::stack({x, at::cumsum(x, 2), at::gelu(x)}, 0).unbind(0);
      at::Tensor y = parts[0] + parts[1] * parts[2];
      return at::cross_entropy_loss(head(y.mean({2, 3})).to(at::kFloat), target);
    });
  }

  nn::Conv2d conv1, conv2;
  nn::BatchNorm2d norm1, norm2;
  nn::Linear head;
};

struct LstmNet : nn::Module {
  LstmNet()
      : cells(register_module("cells", nn::LSTM(nn::LSTMOptions(kWidth, kWidth).num_layers(2).dropout(0.2)))),
        head(register_module("head", nn::Linear(kWidth, 8))) {}
  at::Tensor loss(const at::Tensor& sequence) {
    at::Tensor x = region("cells", [&] { return std::get<0>(cells->forward(sequence)); });
    return region("head", [&] { return at::tanh(head(x)).pow(2).to(at::kFloat).mean(); });
  }
  nn::LSTM cells;
  nn::Linear head;
};

// One block used three times, its embedding tied to its head, much of it through views.
struct SharedNet : nn::Module {
  SharedNet()
      : words(register_parameter("words", at::randn({kWords, kWidth}) * 0.2)),
        mix(register_parameter("mix", at::randn({kWidth, kWidth}) * 0.2)),
        scale(register_parameter("scale", at::ones({2, kWidth / 2}))) {}

  at::Tensor block(const at::Tensor& x) {
    const auto halves = x.chunk(2, -1);
    at::Tensor turned = at::cat({-halves[1], halves[0]}, -1);
    at::Tensor y = at::matmul(turned, mix.t()) + at::matmul(x, mix);
    y = y.view({kBatch, kLength, 2, kWidth / 2}) * scale;
    y = y.transpose(1, 2).contiguous().transpose(1, 2).flatten(2);
    at::Tensor gate = at::sigmoid(y.narrow(-1, 0, kWidth / 2));
    return x + at::cat({gate * y.narrow(-1, kWidth / 2, kWidth / 2), y.narrow(-1, 0, kWidth / 2).tanh()}, -1);
  }

  at::Tensor loss(const Tokens& data) {
    at::Tensor x = region("embed", [&] { return at::embedding(words, data.tokens); });
    for (int i = 0; i < 3; ++i) x = region("block", [&] { return block(x); });
    return region("head", [&] {
      at::Tensor logits = at::matmul(x, words.t()).to(at::kFloat);
      return at::cross_entropy_loss(logits.view({-1, kWords}), data.targets.view(-1)) +
             at::logsumexp(logits, -1).mean();
    });
  }

  at::Tensor words, mix, scale;
};

}  // namespace

std::string name(Numbers numbers) {
  return numbers == Numbers::Fp32 ? "fp32" : numbers == Numbers::Bf16 ? "bf16" : "autocast";
}

Problem llama(Numbers numbers, c10::Device device) {
  at::manual_seed(7);
  if (numbers == Numbers::Autocast) return of_tokens<PlainLlama>("llama", numbers, device);
  models::ModelConfig config{.vocab_size = kWords,
                             .hidden_size = kWidth,
                             .intermediate_size = 80,
                             .num_layers = 3,
                             .num_heads = 4,
                             .num_kv_heads = 2,
                             .head_dim = 8,
                             .max_positions = 64};
  models::Llama model(config, at::TensorOptions(device).dtype(dtype(numbers)));
  const Tokens data(device);
  return problem_of(
      "llama", model.ptr(), [model, data]() mutable { return model->loss_sum(data.tokens, data.targets); },
      numbers, device);
}

Problem gpt_with_dropout(Numbers numbers, c10::Device device) {
  return of_tokens<Gpt>("gpt", numbers, device);
}

Problem convolutions(Numbers numbers, c10::Device device) {
  at::manual_seed(7);
  auto model = std::make_shared<ConvNet>();
  model->to(device, dtype(numbers));
  const at::Tensor image = at::randn({4, 3, 8, 8}).to(device, dtype(numbers));
  const at::Tensor target = at::randint(10, {4}, at::kLong).to(device);
  return problem_of(
      "convolutions", model, [=] { return model->loss(image, target); }, numbers, device);
}

Problem lstm(Numbers numbers, c10::Device device) {
  at::manual_seed(7);
  auto model = std::make_shared<LstmNet>();
  model->to(device, dtype(numbers));
  const at::Tensor sequence = at::randn({6, 3, kWidth}).to(device, dtype(numbers));
  return problem_of(
      "lstm", model, [=] { return model->loss(sequence); }, numbers, device);
}

Problem shared_weights(Numbers numbers, c10::Device device) {
  return of_tokens<SharedNet>("shared weights", numbers, device);
}

std::vector<Problem> all_problems(Numbers numbers, c10::Device device) {
  std::vector<Problem> problems;
  for (auto make : {llama, gpt_with_dropout, convolutions, lstm, shared_weights})
    problems.push_back(make(numbers, device));
  return problems;
}

bool runs_here(Problem& problem) try {
  if (problem.name == "lstm" && problem.numbers != Numbers::Fp32) step(problem);
  return true;
} catch (const std::exception& error) {
  if (std::string(error.what()).find("could not create a primitive") == std::string::npos) throw;
  return false;
}

std::vector<at::Tensor> step(Problem& problem, int backwards) {
  {
    at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < problem.buffers.size(); ++i)
      problem.buffers[i].copy_(problem.buffers_at_first[i]);
  }
  for (at::Tensor& parameter : problem.parameters) parameter.mutable_grad().reset();
  at::manual_seed(3);
  at::Tensor loss;
  {
    std::optional<Autocast> autocast;
    if (problem.numbers == Numbers::Autocast) autocast.emplace(problem.device.type());
    loss = problem.loss();
  }
  for (; backwards > 0; --backwards) loss.backward({}, /*retain_graph=*/backwards > 1);
  std::vector<at::Tensor> result{loss.detach().clone()};
  for (const at::Tensor& parameter : problem.parameters)
    result.push_back(parameter.grad().defined() ? parameter.grad().clone() : at::Tensor());
  for (const at::Tensor& buffer : problem.buffers) result.push_back(buffer.clone());
  result.push_back(at::globalContext().defaultGenerator(problem.device).get_state());
  for (at::Tensor& parameter : problem.parameters) parameter.mutable_grad().reset();
  return result;
}

at::Tensor leaf(at::IntArrayRef sizes, std::uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(sizes).requires_grad_();
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  const at::Tensor x = a.detach().cpu().contiguous(), y = b.detach().cpu().contiguous();
  return x.sizes() == y.sizes() && x.dtype() == y.dtype() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!same_bits(a[i], b[i])) return false;
  return true;
}

Names names(const std::vector<trace::RegionTape>& tapes) {
  Names names;
  for (const trace::RegionTape& tape : tapes) names.push_back(tape.region);
  return names;
}

Fates dice(std::uint64_t seed) {
  auto count = std::make_shared<std::uint64_t>(0);
  return Fates([seed, count](const ValueInfo&) {
    const std::uint64_t number = (*count)++;
    std::uint64_t bits = (seed * 1000003 + number / 2 + 1) * 0x9E3779B97F4A7C15ull;
    bits ^= bits >> 29;
    bits *= 0xBF58476D1CE4E5B9ull;
    return static_cast<Fate>(((bits >> 33) + number) % 3);
  });
}

}  // namespace snug::tape
