// What every fate promises, one line per fate at the end: the bits of plain autograd, fewer bytes where it
// says so, nothing alive afterwards, also when something throws anywhere.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include "snug/base/bytes.h"
#include "snug/memory/resource.h"
#include "snug/memory/tracker.h"
#include "snug/tape/region.h"
#include "snug/tape/replayable.h"
#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

namespace ag = torch::autograd;

struct Contract {
  const char* name;
  Fates (*fates)();
  bool frees;    // something, between forward and backward
  bool replays;  // what an operator made, if that is cheap
};
void PrintTo(const Contract& contract, std::ostream* out) {
  *out << contract.name;
}

bool fragile_fails = false;
TORCH_LIBRARY(tape_contract, library) {
  library.def("fragile(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(tape_contract, CPU, library) {
  library.impl("fragile", [](const at::Tensor& x) {
    TORCH_CHECK(!fragile_fails, "fragile");
    return x.exp();
  });
}
at::Tensor fragile(const at::Tensor& x) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("tape_contract::fragile", "")
                       .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

// Memory that runs out once.
class RunsOut final : public memory::Resource {
 public:
  void after(int allocations) { left_ = allocations; }
  bool has_run_out() const { return left_ < 0; }
  void* allocate(std::size_t bytes) override {
    const bool fails = left_ == 0;
    if (left_ >= 0) --left_;
    TORCH_CHECK_WITH(OutOfMemoryError, !fails, "no memory is left");
    return upstream_->allocate(bytes);
  }
  void deallocate(void* address, std::size_t bytes) noexcept override {
    upstream_->deallocate(address, bytes);
  }

 private:
  const std::shared_ptr<memory::Resource> upstream_ = memory::default_resource(at::kCPU);
  int left_ = -1;  // allocations until it happens; below 0: it does not
};

// Each with a first call that is proven, and without.
class FateContract : public testing::TestWithParam<std::tuple<Contract, bool>> {
 protected:
  static constexpr int kLayers = 4;
  static constexpr std::int64_t kWidth = 16;

  void SetUp() override {
    forget_proofs();
    at::manual_seed(5);
    input_ = at::randn({kWidth, kWidth}).requires_grad_();
    for (int i = 0; i < kLayers; ++i) weights_.push_back(at::randn({kWidth, kWidth}).requires_grad_());
    plain_ = gradients(net());
  }
  void TearDown() override {
    EXPECT_EQ(live_values(), 0) << "values are left";
    EXPECT_EQ(store_->arena().used_bytes(), 0u) << "host memory is left";
    EXPECT_EQ(hooks::current_region(), 0u);
  }

  const Contract& contract() const { return std::get<0>(GetParam()); }
  RecordingOptions options() const {
    return {.verify = true, .host = store_, .prove = std::get<1>(GetParam())};
  }

  // Saves several values that nobody else holds.
  static at::Tensor layer(const at::Tensor& x, const at::Tensor& w) {
    return at::silu(at::matmul(x, w)) * at::sigmoid(x) + at::tanh(x * 0.5);
  }
  at::Tensor net(const std::function<void(int, at::Tensor&)>& inside = [](int, at::Tensor&) {}) {
    at::Tensor x = input_;
    for (int i = 0; i < kLayers; ++i)
      x = region("layers." + std::to_string(i), [&] {
        at::Tensor h = layer(x, weights_[static_cast<std::size_t>(i)]);
        inside(i, h);
        return layer(h, weights_[static_cast<std::size_t>(i)]);
      });
    return x.sum();
  }
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> leaves = weights_;
    leaves.push_back(input_);
    return leaves;
  }
  std::vector<at::Tensor> gradients(const at::Tensor& loss, bool retain_graph = false) const {
    return ag::grad({loss}, leaves(), {}, retain_graph);
  }
  void expect_a_good_step() { EXPECT_TRUE(same_bits(plain_, gradients(net()))) << contract().name; }

  at::Tensor input_;
  std::vector<at::Tensor> weights_, plain_;
  const std::shared_ptr<host::Store> store_ =
      std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 64_MiB});
};

TEST_P(FateContract, TheBitsOfPlainAutogradInEveryModel) {
  for (const Numbers numbers : {Numbers::Fp32, Numbers::Bf16, Numbers::Autocast})
    for (Problem& model : all_problems(numbers)) {
      if (!runs_here(model)) continue;
      const auto plain = step(model);
      Recording recording(contract().fates(), options());
      EXPECT_TRUE(same_bits(plain, step(model))) << model.name << " in " << name(numbers);
      for (const auto& [region, totals] : recording.totals()) EXPECT_EQ(totals.differing, 0u) << region;
    }
}

TEST_P(FateContract, BytesBetweenForwardAndBackward) {
  const auto left = [&](const Fates& fates) {
    memory::Tracker tracker;
    const std::uint64_t before = tracker.live_bytes();
    Recording recording(fates, {.host = store_, .prove = false});
    const at::Tensor loss = net();
    return tracker.live_bytes() - before;
  };
  const std::uint64_t kept = left(Fates::keep()), ours = left(contract().fates());
  if (contract().frees) {
    EXPECT_LT(ours, kept);
  } else {
    EXPECT_EQ(ours, kept);
  }
}

TEST_P(FateContract, NothingIsAliveAfterwards) {
  memory::Tracker tracker;
  const std::uint64_t before = tracker.live_bytes();
  Recording recording(contract().fates(), options());
  gradients(net());
  EXPECT_EQ(tracker.live_bytes(), before);
  net();  // nobody asks for its gradients
  EXPECT_EQ(tracker.live_bytes(), before);
}

TEST_P(FateContract, RegionsWithinRegions) {
  Recording recording(contract().fates(), options());
  const auto nested = gradients(region("outer", [&] { return region("inner", [&] { return net(); }) + 0; }));
  EXPECT_TRUE(same_bits(plain_, nested));
}

TEST_P(FateContract, TwiceThroughOneGraph) {
  Recording recording(contract().fates(), options());
  const at::Tensor loss = net();
  EXPECT_TRUE(same_bits(plain_, gradients(loss, /*retain_graph=*/true)));
  EXPECT_TRUE(same_bits(plain_, gradients(loss)));
  expect_a_good_step();
}

TEST_P(FateContract, APartialBackwardLeavesNothing) {
  Recording recording(contract().fates(), options());
  gradients(net());  // perhaps proven, and then not the rule
  const at::Tensor loss = net();
  memory::Tracker tracker;
  const std::uint64_t before = tracker.live_bytes();
  EXPECT_TRUE(same_bits(plain_[2], ag::grad({loss}, {weights_[2]}, {}, /*retain_graph=*/true)[0]));
  EXPECT_LE(tracker.live_bytes(), before) << "what was offloaded last never left before";
  EXPECT_TRUE(same_bits(plain_, gradients(loss)));
}

TEST_P(FateContract, AForwardThatThrows) {
  memory::Tracker tracker;
  const std::uint64_t before = tracker.live_bytes();
  Recording recording(contract().fates(), options());
  for (int where = 0; where < kLayers; ++where) {
    const auto fails = [&](int i, at::Tensor&) {
      if (i == where) throw std::runtime_error("in the forward");
    };
    EXPECT_THROW(net(fails), std::runtime_error);
    EXPECT_EQ(tracker.live_bytes(), before);
    expect_a_good_step();
  }
}

TEST_P(FateContract, ABackwardThatThrows) {
  Recording recording(contract().fates(), options());
  for (int where = 0; where < kLayers; ++where) {
    bool fails = true;
    const auto add_hook = [&](int i, at::Tensor& h) {
      if (i != where) return;
      h.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
        if (fails) throw std::runtime_error("in the backward");
        return gradient;
      });
    };
    const at::Tensor loss = net(add_hook);
    EXPECT_ANY_THROW(gradients(loss, /*retain_graph=*/true));
    fails = false;
    EXPECT_TRUE(same_bits(plain_, gradients(loss))) << "of the same graph";
    fails = true;
    EXPECT_ANY_THROW(gradients(net(add_hook)));
    expect_a_good_step();
  }
}

TEST_P(FateContract, AReplayThatThrows) {
  replayable("tape_contract::fragile");
  Recording recording(contract().fates(), options());
  const auto run = [&] {
    return region("r", [&] {
      const at::Tensor made = fragile(input_.detach()) * 2;
      return (made * input_).sum() + 0;
    });
  };
  ag::grad({run()}, {input_});
  const at::Tensor loss = run();
  const auto ask = [&] { return ag::grad({loss}, {input_}, {}, /*retain_graph=*/true)[0]; };
  const at::Tensor right = input_.detach().exp() * 2;
  fragile_fails = true;
  if (contract().replays) {
    EXPECT_THROW(ask(), c10::Error);
  } else {
    EXPECT_TRUE(same_bits(ask(), right));
  }
  fragile_fails = false;
  EXPECT_TRUE(same_bits(ask(), right));
}

// At every allocation of the backward: of a replay, of memory for what comes back, of a copy, of the
// gradients.
TEST_P(FateContract, OutOfMemoryInTheBackward) {
  const auto memory = std::make_shared<RunsOut>();
  const memory::ResourceScope scope(at::kCPU, memory);
  Recording recording(contract().fates(), options());
  int allocation = 0;
  for (bool has_run_out = true; has_run_out; ++allocation) {
    at::Tensor loss = net();
    memory->after(allocation);
    try {
      EXPECT_TRUE(same_bits(plain_, gradients(loss, /*retain_graph=*/true))) << allocation;
    } catch (const c10::OutOfMemoryError&) {
    }
    has_run_out = memory->has_run_out();
    memory->after(-1);
    ASSERT_TRUE(same_bits(plain_, gradients(loss))) << "of the same graph, after allocation " << allocation;
    loss.reset();
    ASSERT_EQ(live_values(), 0) << allocation;
  }
  EXPECT_GT(allocation, 10 * kLayers);
}

// A region's end may not throw: its backward does.
TEST_P(FateContract, OutOfMemoryInTheForward) {
  const auto memory = std::make_shared<RunsOut>();
  const memory::ResourceScope scope(at::kCPU, memory);
  Recording recording(contract().fates(), options());
  int allocation = 0;
  for (bool has_run_out = true; has_run_out; ++allocation) {
    memory->after(allocation);
    try {
      const at::Tensor loss = net();
      has_run_out = memory->has_run_out();
      memory->after(-1);
      EXPECT_TRUE(same_bits(plain_, gradients(loss))) << allocation;
    } catch (const c10::Error&) {
    }
    memory->after(-1);
    expect_a_good_step();
    ASSERT_EQ(live_values(), 0) << allocation;
  }
  EXPECT_GT(allocation, 10 * kLayers);
}

INSTANTIATE_TEST_SUITE_P(Fates, FateContract,
                         testing::Combine(testing::Values(Contract{"Keep", Fates::keep, false, false},
                                                          Contract{"Recompute", Fates::recompute, true, true},
                                                          Contract{"Cheap", Fates::cheap, true, true},
                                                          Contract{"Offload", Fates::offload, true, false}),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param).name) +
                                  (std::get<1>(info.param) ? "Proven" : "");
                         });

}  // namespace
}  // namespace snug::tape
