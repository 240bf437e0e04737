// Does one number hold in anybody's loop? Models of torch's own operators under a Session that is given a
// budget and nothing else: random budgets between the least that fits and the plain step, then batches of
// many lengths.
//
//   any_budget [budgets per model] [steps of many lengths]
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

#include "bench/any_model.h"
#include "snug/base/bytes.h"
#include "snug/machine/prepare.h"
#include "snug/memory/process_memory.h"
#include "snug/session/session.h"

namespace snug::bench {

const c10::Device kDevice(c10::kCUDA, 0);

namespace {

struct Case {
  const char* name;
  std::function<std::shared_ptr<AnyModel>()> make;
  std::int64_t rows, length;
  at::ScalarType dtype;
};

void forget() {
  at::cuda::clearCublasWorkspaces();
  memory::empty_cuda_cache();
}

// The highest since the allocator's peak was reset.
std::uint64_t highest_process() {
  const memory::ProcessMemory now = memory::process_memory(kDevice);
  return now.outside_bytes() + now.peak_reserved_bytes;
}

struct Ran {
  std::uint64_t predicted = 0, process = 0, planned_process = 0, lean = 0;
  double reserved_share = 0;  // reserved / allocated
  std::int64_t retries = 0;
  int plans = 0;
  bool as_planned = false, out_of_memory = false;
};

double reserved_share(const Measured& measured) {
  return static_cast<double>(measured.memory.reserved_bytes) / static_cast<double>(measured.peak.total);
}

// Own loop, own optimizer. Without a budget all is kept and only measured.
Ran run(const Case& what, std::optional<std::uint64_t> budget, int steps) {
  forget();
  const auto retries = memory::process_memory(kDevice).retries;
  Ran ran;
  {
    at::manual_seed(1);
    const auto model = what.make();
    model->to(kDevice, what.dtype);
    torch::optim::AdamW optimizer(model->parameters());
    std::vector<at::Tensor> all = model->parameters();
    for (const at::Tensor& buffer : model->buffers()) all.push_back(buffer);
    Session session(all, {.device = kDevice, .budget_bytes = budget, .say = [](const std::string& text) {
                            if (std::getenv("SNUG_SAY")) fmt::print("    {}\n", text);
                          }});
    try {
      for (int step = 0; step < steps; ++step) {
        session.run([&] {
          model->loss(model->batch(what.rows, what.length)).backward();
          optimizer.step();
          optimizer.zero_grad();
        });
        session.end_step();
        if (step == 1) ran.lean = session.last_peak_bytes();
        if (step == 3) c10::cuda::CUDACachingAllocator::resetPeakStats(0);  // from here on it is planned
      }
    } catch (const c10::OutOfMemoryError& error) {
      fmt::print("    {}\n", std::string(error.what()).substr(0, 400));
      ran.out_of_memory = true;
    }
    ran.predicted = session.predicted_bytes();
    const Measured measured = session.measured();
    ran.process = measured.memory.process_bytes;
    ran.reserved_share = reserved_share(measured);
    ran.planned_process = highest_process();
    ran.plans = session.plans_made();
    ran.as_planned = session.is_as_planned();
  }
  ran.retries = memory::process_memory(kDevice).retries - retries;
  return ran;
}

void budgets(int count) {
  const Case cases[] = {
      {"llama", [] { return std::make_shared<Llama>(); }, 8, 2048, at::kBFloat16},
      {"vit", [] { return std::make_shared<Transformer>(false); }, 64, 197, at::kFloat},
      {"conv net", [] { return std::make_shared<ConvNet>(); }, 32, 128, at::kFloat},
      {"gpt2, dropout", [] { return std::make_shared<Transformer>(true); }, 8, 1024, at::kBFloat16}};
  std::mt19937 random(7);
  fmt::print("model          budget     predicted  process    off      plans retries\n");
  for (const Case& what : cases) {
    run(what, std::nullopt, 3);  // loads what a step loads
    const Ran plain = run(what, std::nullopt, 3);
    const std::uint64_t outside = memory::process_memory(kDevice).outside_bytes();
    const Ran lean = run(what, plain.process + 2_GiB, 5);
    const auto least = static_cast<double>(outside + lean.lean), most = static_cast<double>(plain.process);
    fmt::print("{:<14} plain {}, lean {}\n", what.name, format_bytes(plain.process),
               format_bytes(outside + lean.lean));
    for (int i = 0; i < count; ++i) {
      const auto budget =
          static_cast<std::uint64_t>(std::uniform_real_distribution(1.03 * least, most)(random));
      const Ran ran = run(what, budget, 9);
      const double off = static_cast<double>(ran.planned_process) / static_cast<double>(ran.predicted) - 1;
      fmt::print("{:<14} {:>10} {:>10} {:>10} {:>+7.2f}% {:>4} {:>4}{}{}{}\n", what.name,
                 format_bytes(budget), format_bytes(ran.predicted), format_bytes(ran.planned_process),
                 100 * off, ran.plans, ran.retries, ran.out_of_memory ? " OUT OF MEMORY" : "",
                 ran.process > budget ? " ABOVE THE BUDGET" : "", ran.as_planned ? "" : " not as planned");
      std::fflush(stdout);
    }
  }
}

// As a padding collator gives them: every batch as long as its longest sequence.
void lengths(int steps) {
  const Case one{"llama", [] { return std::make_shared<Llama>(); }, 1, 8192, at::kBFloat16};
  fmt::print("1 x 8192, all kept, nothing planned: reserved / allocated {:.3f}\n",
             run(one, std::nullopt, 3).reserved_share);
  forget();
  const auto model = std::make_shared<Llama>();
  model->to(kDevice, at::kBFloat16);
  torch::optim::AdamW optimizer(model->parameters());
  const std::uint64_t budget = 14_GiB;
  const auto retries = memory::process_memory(kDevice).retries;
  Session session(model->parameters(),
                  {.device = kDevice, .budget_bytes = budget, .say = [](const std::string& text) {
                     if (std::getenv("SNUG_SAY")) fmt::print("  {}\n", text);
                   }});
  std::mt19937 random(11);
  int as_planned = 0;
  double ratio = 0;  // the highest of planned steps
  std::int64_t tokens = 0;
  const auto start = std::chrono::steady_clock::now();
  for (int step = 0; step < steps; ++step) {
    const std::int64_t length = 64 * std::uniform_int_distribution<std::int64_t>(8, 128)(random);
    const at::Tensor batch = model->batch(8, length);
    tokens += batch.numel();
    c10::cuda::CUDACachingAllocator::resetPeakStats(0);
    session.run([&] {
      for (const Pass& pass : session.passes(batch)) (model->loss(pass.of(batch)) * pass.share).backward();
      optimizer.step();
      optimizer.zero_grad();
    });
    session.end_step();
    as_planned += session.is_as_planned();
    const auto reserved = static_cast<double>(memory::process_memory(kDevice).peak_reserved_bytes);
    if (session.is_as_planned())
      ratio = std::max(ratio, reserved / static_cast<double>(session.last_peak_bytes()));
    if (std::getenv("SNUG_SAY"))
      fmt::print("  {:>5} tokens, {} of tensors, {} reserved{}\n", length,
                 format_bytes(session.last_peak_bytes()), format_bytes(static_cast<std::uint64_t>(reserved)),
                 session.is_as_planned() ? "" : ", not as planned");
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const Measured measured = session.measured();
  fmt::print(
      "lengths 512 to 8192, 8 rows, {} steps, budget {}: process {}, reserved / allocated {:.3f} (of one "
      "step as planned at most {:.3f}), {} plans, {} steps as planned, {} retries, {:.1f}k tokens/s{}\n",
      steps, format_bytes(budget), format_bytes(measured.memory.process_bytes), reserved_share(measured),
      ratio, session.plans_made(), as_planned, measured.memory.retries - retries,
      1e-3 * static_cast<double>(tokens) / seconds,
      measured.memory.process_bytes > budget ? " ABOVE THE BUDGET" : "");
}

}  // namespace
}  // namespace snug::bench

int main(int count, char** arguments) {
  snug::machine::prepare(snug::bench::kDevice);
  snug::bench::budgets(count > 1 ? std::atoi(arguments[1]) : 10);
  snug::bench::lengths(count > 2 ? std::atoi(arguments[2]) : 200);
}
