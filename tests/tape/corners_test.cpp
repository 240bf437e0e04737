// Where a tape could go wrong in silence: shared use, partial and repeated backwards, writes, threads,
// exceptions.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <thread>

#include "snug/base/error.h"
#include "snug/memory/tracker.h"
#include "snug/tape/region.h"
#include "snug/tape/replayable.h"
#include "snug/trace/closure.h"
#include "tests/tape/problems.h"

namespace snug::tape {
namespace {

namespace ag = torch::autograd;

int flips = 0;
bool bump_fails = false;
TORCH_LIBRARY(tape_test, library) {
  library.def("flip(Tensor x) -> Tensor");
  library.def("bump_(Tensor(a!) x) -> ()");
  library.def("bump_or_fail_(Tensor(a!) x) -> ()");
  library.def("nest(Tensor x) -> Tensor");
  library.def("project(Tensor x, Tensor w) -> Tensor");
}
TORCH_LIBRARY_IMPL(tape_test, CPU, library) {
  library.impl("flip", [](const at::Tensor& x) {
    ++flips;
    return x.flip(0);
  });
  library.impl("bump_", [](at::Tensor& x) { x.add_(1); });
  library.impl("bump_or_fail_", [](at::Tensor& x) {
    x.add_(1);
    if (bump_fails) throw std::runtime_error("after the write");
  });
  library.impl("nest", [](const at::Tensor& x) {
    hooks::RegionScope inner("inner"), innermost("innermost");
    return x * 2;
  });
  library.impl("project", [](const at::Tensor& x, const at::Tensor& w) { return at::mm(x, w); });
}
at::Tensor flip(const at::Tensor& x) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("tape_test::flip", "")
                       .typed<at::Tensor(const at::Tensor&)>();
  return op.call(x);
}

class Corners : public testing::Test {
 protected:
  // Most of them call a region "r" here: what a tape learnt of one test's is not for the next.
  Corners() { forget_proofs(); }
  void TearDown() override {
    EXPECT_EQ(live_values(), 0) << "values are left";
    EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(hooks::kOperatorKey)) << "a guard is left";
    EXPECT_EQ(hooks::current_region(), 0u);
  }
};

// A function of x that saves several of its values.
at::Tensor layer(const at::Tensor& x, const at::Tensor& w) {
  return at::silu(at::matmul(x, w)) * at::sigmoid(x) + at::tanh(x * 0.5);
}

TEST_F(Corners, GradientsOfSomeParametersOnly) {
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  const auto of_w = [&](Fates fates) {
    at::Tensor y = region("r", std::move(fates), [&] { return layer(layer(x, w), w); });
    return ag::grad({y.sum()}, {w});
  };
  const auto plain = of_w(Fates::keep());
  for (std::uint64_t seed = 0; seed < 20; ++seed) EXPECT_TRUE(same_bits(plain, of_w(dice(seed))));
}

TEST_F(Corners, ARegionUsedSeveralTimes) {
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  const auto twice = [&](auto fates) {
    const auto f = [&](const at::Tensor& t) { return region("r", fates(), [&] { return layer(t, w); }); };
    return ag::grad({(f(f(x)) * f(x)).sum()}, {x, w});
  };
  const auto plain = twice([] { return Fates::keep(); });
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_TRUE(same_bits(plain, twice([&] { return dice(seed); })));
}

TEST_F(Corners, RegionsWithinRegionsEachWithFatesOfTheirOwn) {
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  const auto nested = [&](Fates outer, Fates inner) {
    at::Tensor y = region("outer", std::move(outer), [&] {
      at::Tensor h = layer(x, w);
      h = region("inner", std::move(inner), [&] { return layer(h, w); });
      return layer(h, w);
    });
    return ag::grad({y.sum()}, {x, w});
  };
  const auto plain = nested(Fates::keep(), Fates::keep());
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    EXPECT_TRUE(same_bits(plain, nested(dice(seed), dice(seed + 100))));
}

TEST_F(Corners, DoubleBackward) {
  at::Tensor x = leaf({4, 4});
  const auto hessian = [&](Fates fates) {
    at::Tensor y = region("r", std::move(fates), [&] { return (at::tanh(x * x) * at::silu(x)).sum(); });
    const auto first = ag::grad({y}, {x}, {}, true, /*create_graph=*/true);
    return ag::grad({(first[0] * first[0]).sum()}, {x});
  };
  const auto plain = hessian(Fates::keep());
  for (std::uint64_t seed = 0; seed < 20; ++seed) EXPECT_TRUE(same_bits(plain, hessian(dice(seed))));
}

TEST_F(Corners, EveryOperationRunsAgainAtMostOnce) {
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  Recording recording(Fates::recompute());
  region("whole", [&] {
    at::Tensor h = x;
    for (int i = 0; i < 10; ++i) h = layer(h, w);
    return h.sum();
  }).backward();
  const auto totals = recording.totals().at("whole");
  EXPECT_GT(totals.replays, 40u);
  EXPECT_LE(totals.replays, totals.operations);
}

TEST_F(Corners, WritesViewsListsAndOtherShapesOfOperators) {
  struct Cube : ag::Function<Cube> {
    static at::Tensor forward(ag::AutogradContext* context, const at::Tensor& x) {
      at::Tensor square = x * x;
      context->save_for_backward({x, square});
      return square * x;
    }
    static ag::variable_list backward(ag::AutogradContext* context, const ag::variable_list& gradients) {
      const auto saved = context->get_saved_variables();
      return {gradients[0] * saved[1] * 3 + saved[0] * 0};
    }
  };
  const auto run = [&](Fates fates) {
    at::manual_seed(3);
    at::Tensor input = at::randn({6, 6}), p = at::randn({6, 6}).requires_grad_();
    at::Tensor q = at::randn({6, 6}, at::kComplexFloat).requires_grad_();
    at::Tensor y = region("r", std::move(fates), [&] {
      at::Tensor a = at::exp(input + p);
      input.mul_(3);  // the region's own input, after it was read
      at::Tensor b = at::sin(a * input);
      at::Tensor c = at::real(at::matmul(q.conj() * b, q.transpose(0, 1).conj()));
      at::Tensor z = at::zeros({6, 6});
      z.index_put_({at::arange(3)}, c.slice(0, 0, 3));
      z.masked_fill_(c > 1, 0.5);
      z = z.tanh() * z;
      at::Tensor d = at::mm(at::eye(6).to_sparse(), z).sigmoid();
      if (d.sum().item<float>() > 1e9) d = d * 2;
      const auto parts = at::split(d, 2, 0);
      d = at::cat({parts[2], parts[0], parts[1].exp()}, 0);
      at::Tensor inner = ag::grad({(d * d).sum()}, {p}, {}, true)[0];
      at::Tensor out = at::empty({0});
      {
        at::NoGradGuard no_grad;
        at::mul_out(out, d.detach(), inner);
      }
      at::Tensor noise = at::randn({6, 6}).clamp_min_(0);
      at::Tensor variance = std::get<0>(at::var_mean(d * noise, at::OptionalIntArrayRef({1}), 1, true));
      at::Tensor rrelu = at::rrelu(d - 0.5, 0.1, 0.3, true);
      return Cube::apply(d * out + variance + rrelu) + at::logsumexp(d, 1, true);
    });
    y.pow(2).sum().backward();
    return std::vector<at::Tensor>{p.grad(), q.grad(), input};
  };
  const auto plain = run(Fates::keep());
  for (std::uint64_t seed = 0; seed < 100; ++seed) ASSERT_TRUE(same_bits(plain, run(dice(seed)))) << seed;
  EXPECT_TRUE(same_bits(plain, run(Fates::recompute())));
}

TEST_F(Corners, AForeignOperatorRunsAgainOnlyIfItOptedIn) {
  const auto run = [&](std::string& reason) {
    at::Tensor p = leaf({5});
    flips = 0;
    Recording recording(Fates::recompute());
    region("r", [&] { return (flip(p.detach() * 2) * p).sin().sum(); }).backward();
    const auto totals = recording.totals().at("r");
    reason = totals.refused.empty()
                 ? ""
                 : totals.refused.begin()->first.first + ": " + totals.refused.begin()->first.second;
    return p.grad().clone();
  };
  std::string reason;
  const at::Tensor kept = run(reason);
  EXPECT_EQ(flips, 1);
  EXPECT_EQ(reason, "tape_test::flip: a foreign operator that did not opt in");
  replayable("tape_test::flip");
  const at::Tensor recomputed = run(reason);
  EXPECT_EQ(flips, 2);
  EXPECT_EQ(reason, "");
  EXPECT_TRUE(same_bits(kept, recomputed));
}

TEST_F(Corners, AWriteByAForeignOperatorIsSeen) {
  const auto run = [&](Fates fates) {
    at::Tensor p = leaf({5});
    static auto bump =
        c10::Dispatcher::singleton().findSchemaOrThrow("tape_test::bump_", "").typed<void(at::Tensor&)>();
    region("r", std::move(fates), [&] {
      at::Tensor z = p.detach() * 2;
      at::Tensor before = (z * p).sin();
      bump.call(z);
      return (before * (z * p).exp()).sum();
    }).backward();
    return std::vector<at::Tensor>{p.grad()};
  };
  EXPECT_ANY_THROW(run(Fates::keep())) << "as plain autograd: the first product saved z";
}

TEST_F(Corners, LongChainsNeedNoDeepStack) {
  at::Tensor p = leaf({4});
  const auto run = [&](Fates fates) {
    at::Tensor y = region("r", std::move(fates), [&] {
      at::Tensor x = p.detach();
      for (int i = 0; i < 50000; ++i) x = x * 1.0001;
      return (x * p).sum();
    });
    return ag::grad({y}, {p});
  };
  EXPECT_TRUE(same_bits(run(Fates::keep()), run(Fates::recompute())));
}

TEST_F(Corners, ABackwardOnAnotherThread) {
  Problem model = shared_weights(Numbers::Fp32);
  const auto plain = step(model);
  at::manual_seed(3);
  at::Tensor loss;
  {
    Recording recording(dice(11));
    loss = model.loss();
  }
  std::thread([&] { loss.backward(); }).join();
  loss.reset();
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    EXPECT_TRUE(same_bits(model.parameters[i].grad(), plain[i + 1]));
}

TEST_F(Corners, ThreadsHaveTapesOfTheirOwn) {
  std::atomic<int> right = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      at::Tensor x = at::full({4, 4}, 0.1 * (t + 1)).requires_grad_(),
                 w = at::full({4, 4}, 0.3).requires_grad_();
      const auto run = [&](Fates fates) {
        return ag::grad({region("r", std::move(fates), [&] { return layer(layer(x, w), w); }).sum()}, {x, w});
      };
      const auto plain = run(Fates::keep());
      for (std::uint64_t seed = 0; seed < 30; ++seed) right += same_bits(plain, run(dice(seed)));
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, 90);
}

TEST_F(Corners, ChangesBeforeTheBackwardAreRefused) {
  at::Tensor x = leaf({4}), w = leaf({4}, 2);
  at::Tensor y = region("r", Fates::recompute(), [&] { return at::sigmoid(at::exp(x * w)); });
  {
    at::NoGradGuard no_grad;
    w.add_(1);
  }
  EXPECT_THROW(y.sum().backward(), c10::Error);
  for (const Fates& fates : {Fates::keep(), Fates::recompute()}) {
    at::Tensor z = region("r", fates, [&] { return at::sigmoid(x * 2); });
    z.detach().mul_(2);
    EXPECT_THROW(z.sum().backward(), c10::Error) << "a saved result";
  }
}

TEST_F(Corners, ARegionNeedNotReturnATensor) {
  at::Tensor x = leaf({4, 4}), y;
  region("r", Fates::recompute(), [&] { y = at::exp(x * 2).sum(); });
  EXPECT_TRUE(at::equal(ag::grad({y}, {x})[0], at::exp(x.detach() * 2) * 2));
  EXPECT_EQ(region("r", [] { return 7; }), 7);
}

TEST_F(Corners, UnderNoGradNothingIsKept) {
  at::Tensor x = leaf({64, 64}), w = leaf({64, 64}, 2);
  memory::Tracker tracker;
  at::NoGradGuard no_grad;
  Recording recording(Fates::recompute());
  const std::uint64_t before = tracker.live_bytes();
  at::Tensor y = region("r", [&] { return layer(x, w); });
  EXPECT_EQ(tracker.live_bytes(), before + y.nbytes());
  EXPECT_EQ(live_values(), 0);
}

TEST_F(Corners, InferenceModeIsLeftAlone) {
  c10::InferenceMode inference;
  at::Tensor x = at::ones({4, 4});
  Recording recording(Fates::recompute());
  EXPECT_TRUE(at::equal(region("r", [&] { return layer(x, x); }), layer(x, x)));
}

TEST_F(Corners, ARegionEnteredFromItsOwnBackward) {
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  const auto run = [&](Fates outer, Fates inner) {
    at::Tensor extra;
    at::Tensor y = region("r", std::move(outer), [&] { return layer(x, w); });
    y.register_hook([&](const at::Tensor& gradient) {
      at::AutoGradMode on(true);
      at::Tensor z = region("r", std::move(inner), [&] { return layer(x, w); });
      extra = ag::grad({z.sum()}, {x})[0];
      return gradient + extra;
    });
    return ag::grad({y.sum()}, {x, w});
  };
  const auto plain = run(Fates::keep(), Fates::keep());
  EXPECT_TRUE(same_bits(plain, run(Fates::recompute(), Fates::recompute())));
}

TEST_F(Corners, AThousandExceptionsLeaveNothing) {
  struct RefuseToSave : hooks::SavedTensorListener {
    void on_save(const at::Tensor&) override {
      if (--calls_left == 0) throw std::runtime_error("in pack");
    }
    void on_unpack(const at::Tensor&) override {}
    int calls_left = 0;
  } refuse;
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    EXPECT_ANY_THROW(region("r", dice(i), [&] {
      at::Tensor h = layer(x, w);
      return region("inner", dice(i + 1), [&] { return layer(h, w).view({3}); });
    })) << "forward";
    at::Tensor y = region("r", dice(i), [&] { return layer(layer(x, w), w); });
    y.register_hook([](const at::Tensor& gradient) -> at::Tensor {
      if (gradient.defined()) throw std::runtime_error("in the backward");
      return gradient;
    });
    EXPECT_ANY_THROW(y.sum().backward());
    at::Tensor z = region("r", Fates::recompute(), [&] { return at::sigmoid(layer(x, w)); });
    z.detach().add_(1);
    EXPECT_ANY_THROW(z.sum().backward()) << "unpack";
    hooks::SavedTensorListenerGuard guard(refuse);
    refuse.calls_left = 1 + static_cast<int>(i % 3);
    EXPECT_ANY_THROW(region("r", Fates::keep(), [&] { return layer(layer(x, w), w); })) << "pack";
  }
}

TEST_F(Corners, AReplayThatThrowsHalfWayIsBegunAnew) {
  replayable("tape_test::bump_or_fail_");
  static auto bump = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("tape_test::bump_or_fail_", "")
                         .typed<void(at::Tensor&)>();
  at::Tensor p = leaf({4});
  bump_fails = false;
  at::Tensor y = region("r", Fates::recompute(), [&] {
    at::Tensor z = at::exp(p.detach());
    bump.call(z);
    return (z * p).sum();
  });
  bump_fails = true;
  EXPECT_ANY_THROW(y.backward({}, /*retain_graph=*/true));
  bump_fails = false;
  EXPECT_TRUE(at::equal(ag::grad({y}, {p})[0], p.detach().exp() + 1));
}

TEST_F(Corners, AWriteThatThrowsHalfWayInTheForwardIsNotForgotten) {
  replayable("tape_test::bump_or_fail_");
  static auto bump = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("tape_test::bump_or_fail_", "")
                         .typed<void(at::Tensor&)>();
  at::Tensor p = leaf({4});
  at::Tensor y = region("r", Fates::recompute(), [&] {
    at::Tensor z = at::exp(p.detach());
    bump_fails = true;
    EXPECT_ANY_THROW(bump.call(z));
    bump_fails = false;
    return (z * p).sum();
  });
  EXPECT_TRUE(at::equal(ag::grad({y}, {p})[0], p.detach().exp() + 1));
}

TEST_F(Corners, AKernelMayOpenARegion) {
  static auto nest = c10::Dispatcher::singleton()
                         .findSchemaOrThrow("tape_test::nest", "")
                         .typed<at::Tensor(const at::Tensor&)>();
  at::Tensor p = leaf({4});
  at::Tensor y = region("r", Fates::recompute(), [&] { return (nest.call(p.detach()) * p).sum(); });
  EXPECT_TRUE(at::equal(ag::grad({y}, {p})[0], p.detach() * 2));
}

TEST_F(Corners, AChangeOfShapeInPlaceIsNoWrite) {
  const auto run = [](Fates fates) {
    at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
    at::Tensor y = region("r", std::move(fates), [&] {
      at::Tensor h = at::mm(x, w);
      at::Tensor s = at::exp(h).sin();
      h.unsqueeze_(0);
      h.transpose_(0, 1);
      return (s.unsqueeze(1) * h).tanh().sum();
    });
    return ag::grad({y}, {x, w});
  };
  const auto plain = run(Fates::keep());
  EXPECT_TRUE(same_bits(plain, run(Fates::cheap())));
  EXPECT_TRUE(same_bits(plain, run(Fates::recompute())));
  for (std::uint64_t seed = 0; seed < 20; ++seed) EXPECT_TRUE(same_bits(plain, run(dice(seed)))) << seed;
}

TEST_F(Corners, TheDescriptionIsOfTheFirstBackward) {
  at::Tensor x = leaf({8});
  Recording recording(Fates::recompute(), {.describe = true});
  at::Tensor y = region("r", [&] { return at::sigmoid(x).sum(); });
  y.backward({}, /*retain_graph=*/true);
  y.backward();
  y.reset();
  const auto tape = recording.take_tapes().at(0);
  EXPECT_EQ(tape.unpacks.size(), 1u);
  EXPECT_EQ(trace::closure(tape, std::vector(tape.values.size(), Fate::Recompute)).peak_bytes, 32u);
}

TEST_F(Corners, OneStorageMayHaveSeveralVersions) {
  const auto parts = at::randn({8}).unsafe_chunk(2);  // a counter each
  at::Tensor x = leaf({4});
  const auto run = [&] {
    return region("r", Fates::recompute(), [&] { return (x * parts[0] * at::exp(parts[1])).sum(); });
  };
  at::Tensor y = run();
  parts[1].mul_(2);
  EXPECT_THROW(ag::grad({y}, {x}), c10::Error) << "exp cannot be run again";
  y = region("r", Fates::keep(), [&] { return (x * parts[0]).sum(); });
  parts[1].mul_(2);
  EXPECT_TRUE(at::equal(ag::grad({y}, {x})[0], parts[0])) << "the other part is another's";
}

TEST_F(Corners, AChangeIsSeenByTheSecondDerivativeToo) {
  for (const Fates& fates : {Fates::keep(), Fates::recompute()}) {
    at::Tensor w = leaf({4});
    at::Tensor y = region("r", fates, [&] { return w.pow(3).sum(); });
    at::Tensor gradient = ag::grad({y}, {w}, {}, true, /*create_graph=*/true)[0];
    {
      at::NoGradGuard no_grad;
      w.add_(1);
    }
    EXPECT_THROW(gradient.sum().backward(), c10::Error);
  }
}

TEST_F(Corners, BatchNormInEvaluationReadsItsStatistics) {
  const auto run = [](Fates fates) {
    at::Tensor x = leaf({2, 3, 4, 4}), p = leaf({2, 3, 4, 4}, 2);
    region("r", std::move(fates), [&] {
      at::Tensor y = at::batch_norm(x, {}, {}, at::zeros({3}), at::ones({3}) * 2, false, 0.1, 1e-5, false);
      return (ag::grad({y.pow(2).sum()}, {x}, {}, true)[0] * p).sum();
    }).backward();
    return std::vector<at::Tensor>{p.grad()};
  };
  EXPECT_TRUE(same_bits(run(Fates::keep()), run(Fates::recompute())));
}

TEST_F(Corners, AListenerThatRefusesARegionLeavesNoneOpen) {
  struct Refuse : hooks::RegionListener {
    void before_forward(hooks::RegionId) override { throw std::runtime_error("no"); }
  } refuse;
  at::Tensor x = leaf({4});
  {
    hooks::RegionListenerGuard outer(refuse);
    Recording recording(Fates::recompute());
    EXPECT_ANY_THROW(hooks::RegionScope("r"));
  }
  Recording again(Fates::keep());
  at::exp(x);
  EXPECT_EQ(live_values(), 0) << "outside every region nothing is recorded";
}

TEST_F(Corners, RandomOperatorsOnMetaDrawNothing) {
  Recording recording(Fates::recompute());
  at::Tensor x = at::empty({4}, at::kMeta).requires_grad_();
  region("r", [&] { return (at::dropout(x * 2, 0.5, true) * x).sum(); }).backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST_F(Corners, ValuesThatNobodyNeedsAreLetGoOnTheWay) {
  at::NoGradGuard no_grad;
  at::Tensor h = at::randn({64, 64}), w = at::randn({64, 64});
  memory::Tracker tracker;
  Recording recording(Fates::cheap());
  region("r", [&] {
    for (int i = 0; i < 200; ++i) h = at::silu(at::mm(h, w));
    return h;
  });
  EXPECT_LT(tracker.peak_bytes(), 40u * 64 * 64 * 4);
}

TEST_F(Corners, FatesAreAskedByTheInnermostRegion) {
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  std::vector<std::string> asked;
  Recording recording(Fates([&](const ValueInfo& value) {
    asked.push_back(std::string(value.region) + " " + std::to_string(value.ordinal));
    return value.region == "inner" ? Fate::Recompute : Fate::Keep;
  }));
  region("outer", [&] {
    at::Tensor h = x * 2;
    return region("inner", [&] { return at::exp(at::matmul(h, w)); }).sum();
  }).backward();
  EXPECT_EQ(asked, (std::vector<std::string>{"outer 0", "inner 1", "inner 2", "outer 3"}));
  EXPECT_GT(recording.totals().at("outer").replays, 0u);
}

TEST_F(Corners, AutocastsTypeIsThatOfTheForward) {
  replayable("tape_test::project");
  static auto project = c10::Dispatcher::singleton()
                            .findSchemaOrThrow("tape_test::project", "")
                            .typed<at::Tensor(const at::Tensor&, const at::Tensor&)>();
  const auto run = [](Fates fates) {
    at::Tensor x = leaf({8, 8}), w = leaf({8, 8}, 2), p = leaf({8, 8}, 3);
    const auto before = at::autocast::get_autocast_dtype(at::kCPU);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    at::Tensor y = region("r", std::move(fates),
                          [&] { return (project.call(x.detach(), w.detach()).to(at::kFloat) * p).sum(); });
    at::autocast::set_autocast_dtype(at::kCPU, before);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return ag::grad({y}, {p});
  };
  EXPECT_TRUE(same_bits(run(Fates::keep()), run(Fates::recompute())));
}

TEST_F(Corners, ADescribedTapeCanBeWalkedWhateverWasSaved) {
  at::Tensor x = leaf({8});
  Recording recording(Fates::recompute(), {.describe = true});
  region("r", [&] {
    const auto parts = (x * 2).unsafe_chunk(2);
    parts[0].sigmoid_();
    parts[1].sigmoid_();
    return (parts[0] * parts[1]).sum();
  }).backward();
  const auto tapes = recording.take_tapes();
  ASSERT_EQ(tapes.size(), 1u);
  const auto walked = trace::closure(tapes[0], std::vector(tapes[0].values.size(), Fate::Recompute));
  EXPECT_GT(walked.operations.size(), 1u);
  EXPECT_LT(walked.peak_bytes, 10000u);
}

TEST_F(Corners, WhetherAnOperationCanRunAgainDoesNotDependOnTheFates) {
  const auto describe = [](Fates fates) {
    at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
    Recording recording(std::move(fates), {.describe = true});
    region("r", [&] { return at::mm(x, w).relu_().sum(); }).backward();
    const auto tapes = recording.take_tapes();
    std::vector<bool> replayable;
    for (const auto& operation : tapes.at(0).operations) replayable.push_back(operation.replayable);
    return replayable;
  };
  EXPECT_EQ(describe(Fates::keep()), describe(Fates::recompute()));
}

// Out of memory, say. An exception cannot leave a scope's end.
TEST_F(Corners, WhatFailsAtARegionsEndIsSaidByItsBackward) {
  struct Failing : SketchListener {
    void on_begin(std::uint64_t) override {}
    void on_end(std::uint64_t) override { throw std::runtime_error("no room at the end"); }
    void on_value(std::uint64_t, trace::ValueIndex, const at::Tensor&) override {}
    void on_operation(std::uint64_t, std::uint32_t) override {}
    void on_save(std::uint64_t) override {}
    void before_unpack(std::uint64_t, std::size_t) override {}
    void after_unpack() override {}
    void on_release(std::uint64_t, std::size_t) override {}
  } failing;
  const at::Tensor x = leaf({4, 4});
  {
    Recording recording(Fates::recompute(), {.sketch = &failing});
    at::Tensor y = region("r", [&] { return x.sin().exp().sum(); });
    try {
      y.backward();
      ADD_FAILURE() << "an error was expected";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("no room at the end"), std::string::npos) << error.what();
    }
  }
  region("r", Fates::recompute(), [&] { return x.sin().exp().sum(); }).backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST_F(Corners, AListenerThatFailsInTheBackwardFailsItOnce) {
  struct Refuse : hooks::RegionListener {
    void before_replay(hooks::RegionId, at::TensorList) override { fail_in("replay"); }
    void before_backward(hooks::RegionId) override { fail_in("backward"); }
    void gradient_ready(const at::Tensor&) override { fail_in("accumulation"); }
    void fail_in(const std::string& here) {
      if (here != place) return;
      place.clear();
      throw std::runtime_error("no");
    }
    std::string place;
  } refuse;
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  const auto run = [&] {
    for (at::Tensor* const grad : {&x.mutable_grad(), &w.mutable_grad()}) grad->reset();
    region("r", [&] { return layer(layer(x, w), w).sum(); }).backward();
    return std::vector<at::Tensor>{x.grad().clone(), w.grad().clone()};
  };
  const auto plain = run();
  hooks::RegionListenerGuard guard(refuse);
  Recording recording(Fates::recompute(), {.prove = false});
  for (const char* const place : {"replay", "backward", "accumulation"}) {
    refuse.place = place;
    EXPECT_THROW(run(), std::runtime_error) << place;
    EXPECT_TRUE(same_bits(run(), plain)) << place;
  }
}

TEST_F(Corners, ParametersAreAnnouncedBeforeTheyAreRead) {
  struct Announced : hooks::RegionListener {
    void before_replay(hooks::RegionId region, at::TensorList parameters) override {
      regions.push_back(hooks::region_name(region));
      count += parameters.size();
    }
    std::vector<std::string> regions;
    std::size_t count = 0;
  } announced;
  at::Tensor x = leaf({4, 4}), w = leaf({4, 4}, 2);
  hooks::RegionListenerGuard guard(announced);
  region("r", Fates::recompute(), [&] { return layer(x, w).sum(); }).backward();
  EXPECT_EQ(announced.regions, std::vector<std::string>{"r"});
  EXPECT_GE(announced.count, 1u);
}

}  // namespace
}  // namespace snug::tape
