// Code that writes into tensors past the dispatcher: the gradients are those of plain autograd, or an error
// says what happened.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <thread>

#include "snug/base/bytes.h"
#include "snug/tape/checkpoint.h"
#include "snug/tape/pure.h"
#include "snug/tape/save_on_host.h"
#include "tests/support/random_suite.h"
#include "tests/tape/foreign_programs.h"
#include "tests/tape/fused_kernels.h"
#include "tests/tape/problems.h"
#include "tests/tape/raw_writes.h"

namespace snug::tape {
namespace {

namespace ag = torch::autograd;

class ForeignWrites : public testing::Test {
 protected:
  ForeignWrites() { forget_proofs(); }

  // Three passes: the first is proven, the others know.
  template <class Loss>
  static void expect_same(const Loss& loss, const at::Tensor& x) {
    const at::Tensor plain = ag::grad({loss(x)}, {x})[0];
    for (int pass = 0; pass < 3; ++pass) {
      EXPECT_TRUE(same_bits(plain, ag::grad({snug::checkpoint(loss, x)}, {x})[0]))
          << "checkpoint, pass " << pass;
      EXPECT_TRUE(same_bits(plain, ag::grad({snug::save_on_host({.least_bytes = 1}, loss, x)}, {x})[0]))
          << "save_on_host, pass " << pass;
    }
    EXPECT_EQ(live_values(), 0);
  }

  static std::string refusals(const trace::Totals& totals) {
    std::string all;
    for (const auto& [region, some] : totals)
      for (const auto& [why, what] : some.refused) all += why.first + ": " + why.second + "\n";
    return all;
  }
};

TEST_F(ForeignWrites, AMaskFilledThroughAnAccessor) {
  const auto with_mask = [](auto make) {
    return [make](at::Tensor x) {
      at::Tensor mask = make();
      auto m = mask.template accessor<float, 2>();
      for (int i = 0; i < 4; ++i)
        for (int j = i + 1; j < 4; ++j) m[i][j] = -INFINITY;
      return at::softmax(x + mask, -1).pow(2).sum();
    };
  };
  const at::Tensor x = leaf({4, 4});
  expect_same(with_mask([] { return at::zeros({4, 4}); }), x);
  expect_same(with_mask([] { return at::ones({4, 4}); }), x);
  expect_same(with_mask([] { return at::full({4, 4}, 0.5); }), x);
  expect_same(with_mask([] { return at::zeros({4, 4}).clone(); }), x);
  expect_same(with_mask([] { return at::zeros({4, 4}, at::kDouble).to(at::kFloat); }), x);
  expect_same(with_mask([] { return at::empty({4, 4}).fill_(1); }), x);
}

struct ExpInPlace : ag::Function<ExpInPlace> {
  static at::Tensor forward(ag::AutogradContext* context, at::Tensor x) {
    float* p = x.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) p[i] = std::exp(p[i]);
    context->mark_dirty({x});
    context->save_for_backward({x});
    return x;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list grads) {
    return {grads[0] * context->get_saved_variables()[0]};
  }
};

TEST_F(ForeignWrites, AKernelInPlaceThatIsAnnounced) {
  expect_same([](at::Tensor x) { return ExpInPlace::apply(x * 2).sum(); }, leaf({16}));
}

TEST_F(ForeignWrites, AnOperatorOnAnotherThread) {
  expect_same(
      [](at::Tensor x) {
        at::Tensor z = x.detach() * 2;
        std::thread([&] { z.mul_(10); }).join();
        return (z * x).sum();
      },
      leaf({16}));
}

// y is of the sum before the write, the product after it reads the new contents.
TEST_F(ForeignWrites, BetweenTwoReads) {
  expect_same(
      [](at::Tensor x) {
        at::Tensor h = x * 3;
        at::Tensor y = h.sin();
        raw_scale(h.detach(), 2);
        return (y * h.cos() * h).sum();
      },
      leaf({16}));
}

TEST_F(ForeignWrites, AfterASaveWithoutAnotherRead) {
  expect_same(
      [](at::Tensor x) {
        at::Tensor y = at::sigmoid(x);  // saves its result, an alias
        raw_scale(y.detach(), 2);
        return at::ones({1}) * x.detach().sum() + (y.detach().sum() + y.select(0, 0));
      },
      leaf({16}));
}

TEST_F(ForeignWrites, IntoWhatCameIn) {
  const at::Tensor x = leaf({16});
  const auto loss = [](at::Tensor x, at::Tensor given) {
    at::Tensor wide = given * 2;  // an operator that has to run again reads it
    at::Tensor y = (x * wide).sin();
    raw_scale(given, 3);
    return (y * given).sum();
  };
  const auto given = [] { return at::arange(16, at::kFloat); };
  const at::Tensor plain = ag::grad({loss(x, given())}, {x})[0];
  for (int pass = 0; pass < 3; ++pass)
    EXPECT_TRUE(same_bits(plain, ag::grad({snug::checkpoint(loss, x, given())}, {x})[0])) << pass;
}

TEST_F(ForeignWrites, AfterTheRegion) {
  const at::Tensor x = leaf({16});
  const auto run = [&](auto call) {
    at::Tensor y = call([](at::Tensor x) { return at::sigmoid(x * 2); }, x);
    raw_scale(y.detach(), 0.5f);
    return ag::grad({y.sum()}, {x})[0];
  };
  const auto plainly = [](auto function, const at::Tensor& x) { return function(x); };
  const auto recomputed = [](auto function, const at::Tensor& x) { return snug::checkpoint(function, x); };
  const auto moved = [](auto function, const at::Tensor& x) {
    return snug::save_on_host({.least_bytes = 1}, function, x);
  };
  const at::Tensor plain = run(plainly);
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_TRUE(same_bits(plain, run(recomputed))) << pass;
    EXPECT_TRUE(same_bits(plain, run(moved))) << pass;
  }
}

// What a region read and will read again may only be refused: its results are gone.
TEST_F(ForeignWrites, IntoWhatCameInAfterTheRegionIsRefusedOnceAndKeptThen) {
  const at::Tensor x = leaf({16});
  const auto run = [&](auto call) {
    at::Tensor given = at::arange(16, at::kFloat);
    at::Tensor y =
        call([](at::Tensor x, at::Tensor given) { return (x * (given * 2).sin()).sum(); }, x, given);
    raw_scale(given, 2);
    return ag::grad({y}, {x})[0];
  };
  const at::Tensor plain = run([](auto function, auto... inputs) { return function(inputs...); });
  const auto recomputed = [](auto function, auto... inputs) { return snug::checkpoint(function, inputs...); };
  try {
    EXPECT_TRUE(same_bits(plain, run(recomputed)));
    ADD_FAILURE() << "an error was expected";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("changed by a write that no operator made, and aten::"),
              std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(same_bits(plain, run(recomputed)));
}

TEST_F(ForeignWrites, WhatAFunctionThrewInTheMiddleOf) {
  struct Throws : ag::Function<Throws> {
    static at::Tensor forward(ag::AutogradContext*, at::Tensor x) {
      raw_scale(x.detach(), 2);
      throw std::runtime_error("half-way");
    }
    static ag::variable_list backward(ag::AutogradContext*, ag::variable_list grads) { return grads; }
  };
  expect_same(
      [](at::Tensor x) {
        at::Tensor h = x * 2;
        try {
          Throws::apply(h);
        } catch (const std::runtime_error&) {
        }
        return (h * h).sum();
      },
      leaf({16}));
}

TEST_F(ForeignWrites, AsFusedKernelsDo) {
  const at::Tensor w = leaf({8, 8}, 3), v = leaf({8, 8}, 4);
  const auto loss = [&](at::Tensor x) {
    at::Tensor q = RotateInside::apply(at::mm(x, w));
    at::Tensor a = at::mm(q.tanh(), v), b = at::mm(q.exp(), w);
    at::Tensor gated = GateOverSaved::apply(a.sin(), b.cos());
    return LossOverLogits::apply(at::mm(gated + at::sin(a), v));
  };
  const at::Tensor x = leaf({8, 8});
  expect_same(loss, x);
  for (int pass = 0; pass < 3; ++pass) {
    const auto plain = ag::grad({loss(x)}, {x, w, v});
    const auto ours = ag::grad({snug::checkpoint(loss, x)}, {x, w, v});
    EXPECT_TRUE(same_bits(plain, ours)) << pass;
  }
}

TEST_F(ForeignWrites, TheReportNamesTheOperator) {
  const at::Tensor x = leaf({16});
  for (int pass = 0; pass < 2; ++pass) {
    Recording recording(Fates::recompute());
    region("r", [&] {
      at::Tensor z = x * 2;
      raw_scale(z.detach(), 3);
      return (z * z).sum();
    }).backward();
    EXPECT_EQ(refusals(recording.totals()), "aten::mul.Scalar: changed by a write that no operator made\n");
  }
}

TEST_F(ForeignWrites, OtherWaysThroughOneRegion) {
  const at::Tensor x = leaf({16});
  const auto loss = [&](int way) {
    at::Tensor h = x * 2, base = h.detach().clone();
    at::Tensor y = h.sin();
    if (way == 1) {
      raw_scale(base, 3);
      return (y * base * x).sum();
    }
    if (way == 2) return (y + base.exp() * x).sum();
    return (y * base.cos() * x).sum();
  };
  for (const int way : {0, 1, 2, 1, 0, 2, 1, 1, 2}) {
    const at::Tensor plain = ag::grad({loss(way)}, {x})[0];
    Recording recording(Fates::recompute());
    const at::Tensor ours = ag::grad({region("ways", [&] { return loss(way); })}, {x})[0];
    EXPECT_TRUE(same_bits(plain, ours)) << way;
  }
}

TEST_F(ForeignWrites, WhatOnlyLaterStepsDoIsFoundByBits) {
  const at::Tensor x = leaf({16});
  const auto run = [&](bool writes, const RecordingOptions& options) {
    Recording recording(Fates::recompute(), options);
    at::Tensor y = region("r", [&] {
      at::Tensor z = x * 2;
      if (writes) raw_scale(z.detach(), 3);
      return (z * z).sum();
    });
    ag::grad({y}, {x});
    y.reset();
    return recording.totals().at("r").differing;
  };
  EXPECT_EQ(run(false, {.verify = true}), 0u);
  EXPECT_GT(run(true, {.verify = true}), 0u) << "compared when it is first read, too";
  forget_proofs();
  run(false, {});
  try {
    run(true, {.determinism_check = DeterminismCheck::Bits});
    ADD_FAILURE() << "an error was expected";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("aten::mul"), std::string::npos) << error.what();
  }
  EXPECT_EQ(run(true, {.verify = true}), 0u) << "known from then on";
}

// A way that is new begins with its first operator: what is written before it, into what an operator of the
// known part has read, is a write that only later steps make.
TEST_F(ForeignWrites, WhatIsWrittenJustBeforeANewWayIsFoundByBits) {
  const at::Tensor x = leaf({16});
  const Fates fates = Fates::recompute().of_operation("aten::clone", Fate::Keep);
  const auto run = [&](bool other_way, const RecordingOptions& options) {
    Recording recording(fates, options);
    at::Tensor y = region("r", [&] {
      const at::Tensor base = x.detach().clone();
      at::Tensor z = (base * 2) * x;
      if (other_way) raw_scale(base, 3);
      return ((other_way ? z.sin() : z.cos()) * base).sum();
    });
    ag::grad({y}, {x});
  };
  run(false, {});
  EXPECT_THROW(run(true, {.determinism_check = DeterminismCheck::Bits}), c10::Error);
}

// Flags that kernels read are not part of an operation.
TEST_F(ForeignWrites, AFlagChangedBetweenForwardAndBackwardIsFoundByBits) {
  const at::Tensor x = at::full({16}, 1e-30f).requires_grad_();
  Recording recording(Fates::recompute(), {.determinism_check = DeterminismCheck::Bits});
  at::Tensor y = region("r", [&] { return (x * 1e-10f).square().sum(); });
  ASSERT_TRUE(at::globalContext().setFlushDenormal(true));
  EXPECT_THROW(ag::grad({y}, {x}), c10::Error);
  at::globalContext().setFlushDenormal(false);
}

// As Python's Functions announce themselves.
at::Tensor as_python_does(const char* name, const at::Tensor& x, bool writes) {
  const std::vector<c10::IValue> inputs{x};
  RECORD_FUNCTION(name, inputs);
  at::Tensor made = x.detach() * 2;
  if (writes) raw_scale(made, 3);
  return made * x;
}

TEST_F(ForeignWrites, WhatAFunctionOfPythonHadIsKept) {
  const at::Tensor x = leaf({16});
  const auto run = [&](const char* name, bool writes) {
    Recording recording(Fates::recompute(), {.watch_functions = true});
    const auto part = [&] { return as_python_does(name, x * 1, writes).sin().sum(); };
    const at::Tensor ours = ag::grad({region("r", part)}, {x})[0];
    EXPECT_TRUE(same_bits(ag::grad({part()}, {x})[0], ours)) << name;
    return refusals(recording.totals());
  };
  EXPECT_EQ(run("Quiet", false),
            "aten::mul.Scalar: given to or made in Quiet, which may write past the dispatcher\n"
            "aten::mul.Tensor: given to or made in Quiet, which may write past the dispatcher\n");
  run("Quiet", true);  // from the second step on
  pure("Pure");
  forget_proofs();
  EXPECT_EQ(run("Pure", false), "");
}

TEST_F(ForeignWrites, AFunctionOfPythonsWritesIntoWhatIsKeptAndWasRead) {
  const at::Tensor x = leaf({16});
  const auto part = [&] {
    at::Tensor h = (x * 1).sin();
    const at::Tensor before = (h.detach() * 3).exp() * x;  // recomputed of h
    {
      const std::vector<c10::IValue> inputs{h};
      RECORD_FUNCTION("Rotate", inputs);
      raw_scale(h.detach(), -1);
    }
    return (before * h.detach()).sum();
  };
  for (int step = 0; step < 3; ++step) {
    Recording recording(Fates::recompute().of_operation("aten::sin", Fate::Keep), {.watch_functions = true});
    EXPECT_TRUE(same_bits(ag::grad({part()}, {x})[0], ag::grad({region("r", part)}, {x})[0])) << step;
  }
}

// Else a plan made from a step that keeps nothing is taken for one of another model.
TEST_F(ForeignWrites, TheStructureIsTheSameForAllFatesWithAFunctionOfPythonsInIt) {
  const at::Tensor x = leaf({16});
  const auto structure = [&](Fates fates) {
    Recording recording(std::move(fates), {.describe = true, .prove = false, .watch_functions = true});
    const auto part = [&] { return as_python_does("Quiet", (x * 1).exp() * 2, false).sin().sum(); };
    const at::Tensor ours = ag::grad({region("r", part)}, {x})[0];
    EXPECT_TRUE(same_bits(ag::grad({part()}, {x})[0], ours));
    return recording.take_tapes().at(0).structure_hash();
  };
  const std::uint64_t lean = structure(Fates::recompute());
  EXPECT_EQ(structure(Fates::keep()), lean);
  EXPECT_EQ(structure(Fates::offload()), lean);
  EXPECT_EQ(structure(dice(3)), lean);
}

TEST_F(ForeignWrites, FrozenWeightsStayWhereTheyAre) {
  const at::Tensor w = at::randn({256, 256});
  const at::Tensor x = leaf({8, 256});
  auto store = std::make_shared<host::Store>(at::kCPU, host::StoreOptions{.budget_bytes = 64_MiB});
  at::Tensor y;
  for (int pass = 0; pass < 2; ++pass)  // in the first, what others hold stays
    y = snug::save_on_host(
        {.host = store, .least_bytes = 1}, [&](at::Tensor x) { return at::mm(x, w).tanh() * 1; }, x * 1);
  EXPECT_LT(store->arena().used_bytes(), 64_KiB);
  EXPECT_GT(store->arena().used_bytes(), 0u);
}

TEST_F(ForeignWrites, InputsAreNumberedByWhoReadsThem) {
  const auto numbers = [](bool describe) {
    const at::Tensor a = leaf({4}) * 1, b = leaf({4}, 2) * 1, c = leaf({4}, 3) * 1;
    std::vector<std::uint32_t> asked;
    Recording recording(Fates([&](const ValueInfo& value) {
                          if (value.ordinal == ValueInfo::kInput) asked.push_back(value.output);
                          return Fate::Keep;
                        }),
                        {.describe = describe});
    region("r", [&] {
      at::Tensor h = a + b;
      return (h * c).sum();
    }).backward();
    return asked;
  };
  EXPECT_EQ(numbers(false), (std::vector<std::uint32_t>{0, 1, 2}));
  EXPECT_EQ(numbers(true), numbers(false));
}

TEST_F(ForeignWrites, EachTensorOfAWrittenListHasANameOfItsOwn) {
  const at::Tensor x = leaf({4});
  std::vector<std::pair<std::uint32_t, std::uint32_t>> names;
  Recording recording(Fates([&](const ValueInfo& value) {
    if (value.operation.starts_with("aten::_foreach_mul_")) names.emplace_back(value.ordinal, value.output);
    return Fate::Recompute;
  }));
  const at::Tensor grad = ag::grad({region("r",
                                           [&] {
                                             std::vector<at::Tensor> list{x.detach() * 1, x.detach() * 2};
                                             at::_foreach_mul_(list, 3);
                                             return (list[0] * x + list[1] * x).sum();
                                           })},
                                   {x})[0];
  EXPECT_TRUE(at::allclose(grad, x.detach() * 9));
  ASSERT_EQ(names.size(), 2u);
  EXPECT_LT(names[0], names[1]);
}

// SNUG_PROGRAMS=2000 tries more of them, and SNUG_FIRST_PROGRAM=2000 others.
TEST_F(ForeignWrites, RandomProgramsAreNeverSilentlyWrong) {
  const Tally tally = try_foreign_programs(random_suite::size("SNUG_FIRST_PROGRAM", 0),
                                           random_suite::size("SNUG_PROGRAMS", 200), at::kCPU);
  for (const std::string& wrong : tally.wrong) ADD_FAILURE() << "silently wrong: " << wrong;
  for (const std::string& error : tally.unnamed) ADD_FAILURE() << "an error that does not say why: " << error;
  EXPECT_GT(tally.equal, tally.runs / 4);
  RecordProperty("equal", tally.equal);
  std::printf("%d runs: %d equal, %d refused, of which plain autograd refuses %d\n", tally.runs, tally.equal,
              tally.refused, tally.plain_refused);
  const at::Tensor x = leaf({1});
  ag::grad({x * 2}, {x});  // the engine holds what a backward that threw left over, until the next one
  EXPECT_EQ(live_values(), 0);
}

}  // namespace
}  // namespace snug::tape
