#include "snug/hooks/saved_tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include <thread>

namespace snug::hooks {
namespace {

namespace ag = torch::autograd;

struct Counts {
  int made = 0, packed = 0, unpacked = 0, alive = 0;
};

class CountingHooks final : public KeepSavedTensor {
 public:
  explicit CountingHooks(Counts& counts) : counts_(counts) { ++counts_.alive; }
  ~CountingHooks() override { --counts_.alive; }
  void call_pack_hook(const at::Tensor& tensor) override {
    ++counts_.packed;
    KeepSavedTensor::call_pack_hook(tensor);
  }
  at::Tensor call_unpack_hook() override {
    ++counts_.unpacked;
    return KeepSavedTensor::call_unpack_hook();
  }

 private:
  Counts& counts_;
};

struct CountingPolicy : SavedTensorPolicy {
  std::unique_ptr<ag::SavedVariableHooks> hooks() override {
    ++counts.made;
    return std::make_unique<CountingHooks>(counts);
  }
  Counts counts;
};

at::Tensor model(const at::Tensor& x, const at::Tensor& w) {
  return at::tanh(x.mm(w)).pow(2).sum();
}

struct Problem {
  at::Tensor x = at::randn({4, 3});
  at::Tensor w = at::randn({3, 5}).requires_grad_();
  at::Tensor plain_gradient() { return ag::grad({model(x, w)}, {w})[0]; }
};

TEST(SavedTensors, KeepingGivesTheGradientsOfPlainAutograd) {
  Problem problem;
  const at::Tensor expected = problem.plain_gradient();
  CountingPolicy policy;
  SavedTensorGuard guard(policy);
  model(problem.x, problem.w).backward();
  EXPECT_TRUE(at::equal(problem.w.grad(), expected));
  EXPECT_GT(policy.counts.packed, 0);
  EXPECT_EQ(policy.counts.packed, policy.counts.unpacked);
  EXPECT_EQ(policy.counts.alive, 0) << "the graph let go of every hook";
}

TEST(SavedTensors, GraphsMadeBeforeTheGuardAreLeftAlone) {
  Problem problem;
  at::Tensor loss = model(problem.x, problem.w);
  CountingPolicy policy;
  SavedTensorGuard guard(policy);
  loss.backward();
  EXPECT_EQ(policy.counts.made, 0);
}

TEST(SavedTensors, ARetainedGraphUnpacksAgain) {
  Problem problem;
  CountingPolicy policy;
  SavedTensorGuard guard(policy);
  at::Tensor loss = model(problem.x, problem.w);
  const int packed = policy.counts.packed;
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(policy.counts.unpacked, packed);
  EXPECT_EQ(policy.counts.alive, packed);
  loss.backward();
  EXPECT_EQ(policy.counts.unpacked, 2 * packed);
  EXPECT_EQ(policy.counts.alive, 0);
}

TEST(SavedTensors, AutogradGradAndDoubleBackwardAgreeWithPlainAutograd) {
  Problem problem;
  auto second_order = [&] {
    at::Tensor first =
        ag::grad({model(problem.x, problem.w)}, {problem.w}, {}, true, /*create_graph=*/true)[0];
    return ag::grad({first.pow(2).sum()}, {problem.w})[0];
  };
  const at::Tensor expected = second_order();
  CountingPolicy policy;
  SavedTensorGuard guard(policy);
  EXPECT_TRUE(at::equal(second_order(), expected));
  EXPECT_EQ(policy.counts.alive, 0);
}

TEST(SavedTensors, TheInnermostPolicyThatAnswersWins) {
  struct Silent : SavedTensorPolicy {
    std::unique_ptr<ag::SavedVariableHooks> hooks() override {
      ++asked;
      return nullptr;
    }
    int asked = 0;
  } silent;
  Problem problem;
  CountingPolicy outer, inner;
  SavedTensorGuard outer_guard(outer);
  {
    SavedTensorGuard silent_guard(silent);
    model(problem.x, problem.w);
  }
  EXPECT_GT(silent.asked, 0);
  EXPECT_EQ(outer.counts.made, silent.asked);
  {
    SavedTensorGuard inner_guard(inner);
    model(problem.x, problem.w);
  }
  EXPECT_EQ(inner.counts.made, silent.asked);
  EXPECT_EQ(outer.counts.made, silent.asked);
}

TEST(SavedTensors, AListenerDecidesNothingWhereverItStands) {
  struct Count : SavedTensorListener {
    void on_save(const at::Tensor&) override { ++saved; }
    void on_unpack(const at::Tensor&) override { ++unpacked; }
    int saved = 0, unpacked = 0;
  } inside, alone;
  Problem problem;
  {
    CountingPolicy policy;
    SavedTensorGuard guard(policy);
    SavedTensorListenerGuard listener_guard(inside);
    model(problem.x, problem.w).backward();
    EXPECT_GT(policy.counts.packed, 0);
    EXPECT_EQ(inside.saved, policy.counts.packed);
    EXPECT_EQ(inside.unpacked, policy.counts.packed);
  }
  SavedTensorListenerGuard listener_guard(alone);
  model(problem.x, problem.w).backward();
  EXPECT_EQ(alone.saved, inside.saved);
  EXPECT_EQ(alone.unpacked, inside.saved);
}

TEST(SavedTensors, AWriteAfterTheSaveIsRefusedAsInPlainAutograd) {
  CountingPolicy policy;
  SavedTensorGuard guard(policy);
  at::Tensor x = at::ones({3}).requires_grad_();
  at::Tensor y = x * 2;
  at::Tensor loss = (y * y).sum();
  y.add_(1);
  try {
    loss.backward();
    FAIL() << "a stale tensor gave a gradient";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("modified by an inplace operation"), std::string::npos);
  }
}

TEST(SavedTensors, AnExceptionInPackOrUnpackArrivesAsItself) {
  struct Stop : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  struct Throwing final : KeepSavedTensor {
    explicit Throwing(bool pack) : pack(pack) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      if (pack) throw Stop("pack");
      KeepSavedTensor::call_pack_hook(tensor);
    }
    at::Tensor call_unpack_hook() override { throw Stop("unpack"); }
    bool pack;
  };
  struct Policy : SavedTensorPolicy {
    std::unique_ptr<ag::SavedVariableHooks> hooks() override { return std::make_unique<Throwing>(pack); }
    bool pack = true;
  } policy;
  Problem problem;
  SavedTensorGuard guard(policy);
  EXPECT_THROW(model(problem.x, problem.w), Stop);
  policy.pack = false;
  at::Tensor loss = model(problem.x, problem.w);
  EXPECT_THROW(loss.backward(), Stop);
}

TEST(SavedTensors, TwoThreadsHaveTheirOwnPolicies) {
  std::vector<std::thread> threads;
  std::vector<CountingPolicy> policies(2);
  for (auto& policy : policies)
    threads.emplace_back([&policy] {
      SavedTensorGuard guard(policy);
      for (int i = 0; i < 50; ++i) {
        Problem problem;
        model(problem.x, problem.w).backward();
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_GT(policies[0].counts.packed, 0);
  EXPECT_EQ(policies[0].counts.packed, policies[1].counts.packed);
  EXPECT_EQ(policies[0].counts.alive + policies[1].counts.alive, 0);
}

TEST(SavedTensors, TheEngineIsInstalledOnce) {
  CountingPolicy policy;
  SavedTensorGuard first(policy);
  const ag::Engine* engine = &ag::Engine::get_default_engine();
  SavedTensorGuard second(policy);
  EXPECT_EQ(engine, &ag::Engine::get_default_engine());
}

}  // namespace
}  // namespace snug::hooks
