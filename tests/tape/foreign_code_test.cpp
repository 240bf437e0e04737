// What other people's code does around regions and in the backward: nodes that write, optimizers between two
// backwards, swapped weights, operators that fail. Plain autograd's bits, or in the first step an error that
// says why.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <functional>

#include "snug/tape/checkpoint.h"
#include "snug/tape/region.h"
#include "tests/tape/problems.h"
#include "tests/tape/raw_writes.h"

namespace snug::tape {
namespace {

namespace ag = torch::autograd;
using Tensors = std::vector<at::Tensor>;
using Region = std::function<at::Tensor(const std::string&, const std::function<at::Tensor()>&)>;
// Makes all that it needs itself, so that every run begins alike; gives the gradients of one step.
using Step = std::function<Tensors(const Region&)>;

class ForeignCode : public testing::Test {
 protected:
  // `refused`: in so many steps at most, the first ones.
  static void expect_same(const Step& step, int refused = 0) {
    const Tensors plain = step([](const std::string&, const auto& part) { return part(); });
    const std::pair<const char*, std::function<Fates()>> all[] = {{"recompute", Fates::recompute},
                                                                  {"cheap", Fates::cheap},
                                                                  {"offload", Fates::offload},
                                                                  {"dice", [] { return dice(5); }}};
    for (const auto& [name, fates] : all) {
      forget_proofs();
      for (int turn = 0; turn < 6; ++turn) try {
          Recording recording(fates());
          const Tensors ours =
              step([](const std::string& name, const auto& part) { return region(name, part); });
          EXPECT_TRUE(same_bits(plain, ours)) << name << ", step " << turn;
        } catch (const c10::Error& error) {
          const std::string text = error.what();
          EXPECT_NE(text.find("changed by a write that no operator made"), std::string::npos) << text;
          EXPECT_LT(turn, refused) << name << ", step " << turn << ": " << text;
        }
    }
    const at::Tensor x = leaf({1});
    ag::grad({x * 2}, {x});  // the engine holds what a backward that threw left over, until the next one
    EXPECT_EQ(live_values(), 0);
  }
};

void swap_memory(const at::Tensor& a, const at::Tensor& b) {
  float *from = a.mutable_data_ptr<float>(), *to = b.mutable_data_ptr<float>();
  std::swap_ranges(from, from + a.numel(), to);
}

TEST_F(ForeignCode, ASliceWrittenThroughDataOfWhatWasSaved) {
  expect_same([](const Region& region) {
    const at::Tensor x = leaf({8, 8}), w = leaf({8, 8}, 2);
    at::Tensor l = x;
    for (const char* name : {"one", "two", "three"})
      l = region(name, [&] {
        const at::Tensor h = at::mm(l, w), y = h.tanh() * h;
        h.variable_data()[0].zero_();
        return y;
      });
    return ag::grad({l.sum()}, {x, w});
  });
}

// As a proven call may offload it: whoever still has it may write it.
TEST_F(ForeignCode, WhatCameIntoARegionWrittenAfterTheRegionEnded) {
  for (const bool is_held : {true, false})
    for (const std::size_t writes_after : {0u, 1u, 2u, 3u})
      expect_same(
          [&](const Region& region) {
            const at::Tensor x = leaf({8, 8});
            Tensors held;
            at::Tensor l = x * 2;
            const char* const names[] = {"one", "two", "three", "four"};
            for (std::size_t i = 0; i < 4; ++i) {
              const at::Tensor in = l;
              l = region(names[i], [&] { return in + (in * in).sin(); });
              if (is_held) held.push_back(in);
              if (i == writes_after) raw_scale(in.detach(), 2);
            }
            return ag::grad({l.sum()}, {x});
          },
          1);
}

TEST_F(ForeignCode, WhatCameIntoARegionWrittenBetweenTwoBackwards) {
  expect_same(
      [](const Region& region) {
        const at::Tensor x = leaf({8, 8}), in = x * 2;
        at::Tensor l = region("one", [&] { return in * in; });
        for (const char* name : {"two", "three"}) l = region(name, [&] { return l + l.sin(); });
        const Tensors first = ag::grad({l.sum()}, {x}, {}, /*retain_graph=*/true);
        raw_scale(in.detach(), 2);
        return Tensors{first[0], ag::grad({l.sum()}, {x})[0]};
      },
      1);
}

TEST_F(ForeignCode, WhatCameIntoARegionWrittenByAHookOfTheBackward) {
  expect_same(
      [](const Region& region) {
        const at::Tensor x = leaf({8, 8}), in = x * 2;
        at::Tensor l = region("one", [&] { return in + (in * in).sin().exp(); });
        l.register_hook([&](const at::Tensor& gradient) {
          raw_scale(in.detach(), 2);
          return gradient;
        });
        for (const char* name : {"two", "three"}) l = region(name, [&] { return l + l.sin(); });
        return ag::grad({l.sum()}, {x});
      },
      1);
}

TEST_F(ForeignCode, WeightsSwappedThereAndBack) {
  expect_same([](const Region& region) {
    const at::Tensor x = leaf({8, 8}), w = leaf({8, 8}, 2), average = leaf({8, 8}, 3).detach();
    const at::Tensor l = region("r", [&] {
      const at::Tensor student = at::mm(x, w).tanh();
      swap_memory(w, average);
      const at::Tensor teacher = at::mm(x, w).detach().tanh();
      swap_memory(w, average);
      return (student * teacher).sum();
    });
    return ag::grad({l}, {x, w});
  });
}

TEST_F(ForeignCode, AnOptimizerBetweenTwoBackwards) {
  expect_same(
      [](const Region& region) {
        const at::Tensor x = leaf({16}), w = leaf({16}, 2);
        const at::Tensor y = region("r", [&] { return (x * w).sin().exp() * x; });
        const Tensors first = ag::grad({y.sum()}, {x, w}, {}, /*retain_graph=*/true);
        w.variable_data().add_(first[1], -0.1);  // as torch::optim does
        const Tensors second = ag::grad({(y * y).sum()}, {x, w});
        return Tensors{first[0], first[1], second[0], second[1]};
      },
      1);
}

TEST_F(ForeignCode, AnActivationWrittenBetweenTwoBackwards) {
  for (const auto& fates : {Fates::recompute(), Fates::cheap()}) {
    forget_proofs();
    const at::Tensor x = leaf({16});
    int refused = 0;
    const auto step = [&](const Region& region) {
      at::Tensor h;
      const at::Tensor l = region("r", [&] {
        h = x * 3;
        return (h.detach().exp() * x * h).sum();
      });
      ag::grad({l}, {x}, {}, /*retain_graph=*/true);
      raw_scale(h.detach(), 2);
      h.reset();
      return ag::grad({l}, {x})[0];
    };
    const at::Tensor plain = step([](const std::string&, const auto& part) { return part(); });
    for (int turn = 0; turn < 4; ++turn) try {
        Recording recording(fates);
        EXPECT_TRUE(
            same_bits(plain, step([](const auto& name, const auto& part) { return region(name, part); })))
            << turn;
      } catch (const c10::Error&) {
        ++refused;
      }
    EXPECT_LE(refused, 2);
  }
}

TEST_F(ForeignCode, AnOptimizerInAHook) {
  expect_same(
      [](const Region& region) {
        const at::Tensor x = leaf({16}), w = leaf({16}, 2);
        const at::Tensor y = region("r", [&] {
          const at::Tensor b = x.sin() * (w * 2).detach().cos();
          return (b + x * w).sum();
        });
        w.register_hook([data = w.variable_data()](at::Tensor grad) {  // the hook must not hold w
          data.add_(grad, -0.1);
          return grad;
        });
        return ag::grad({y}, {x, w});
      },
      1);
}

TEST_F(ForeignCode, OneBufferForEveryBatch) {
  expect_same(
      [](const Region& region) {
        const at::Tensor w = leaf({8, 8});
        float buffer[64];
        at::Tensor sum;
        for (int batch = 0; batch < 3; ++batch) {
          for (int i = 0; i < 64; ++i) buffer[i] = static_cast<float>((i * 7 + batch * 3) % 11);
          at::Tensor in = at::from_blob(buffer, {8, 8});
          const at::Tensor l = region("r", [&, in = std::move(in)]() mutable {
            const at::Tensor normed = at::layer_norm(in, {8});
            in.reset();
            return at::mm(normed, w).tanh().sum();
          });
          sum = sum.defined() ? sum + l : l;
        }
        return ag::grad({sum}, {w});
      },
      3);
}

struct Over : ag::Function<Over> {
  static at::Tensor forward(ag::AutogradContext* context, at::Tensor x) {
    context->save_for_backward({x});
    return x.sin();
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list grads) {
    const at::Tensor x = context->get_saved_variables()[0], grad = grads[0] * x.cos();
    raw_scale(x.detach(), 0.5f);
    return {grad};
  }
};

TEST_F(ForeignCode, AFunctionWritesOverWhatAnotherSavedToo) {
  expect_same([](const Region& region) {
    const at::Tensor x = leaf({16}), v = leaf({16}, 2);
    const at::Tensor l = region("r", [&] {
      const at::Tensor h = x * 3, m = h * v, g = h.exp() * v, f = Over::apply(h);
      return (m * 1).sum() + (g * 1).sum() + f.sum();
    });
    return ag::grad({l}, {x, v});
  });
}

TEST_F(ForeignCode, AFunctionWritesOverWhatOnlyLaterStepsReadAgain) {
  at::Tensor held;
  expect_same([&held](const Region& region) {
    const at::Tensor x = leaf({16}), v = leaf({16}, 2);
    const at::Tensor l = region("r", [&] {
      const at::Tensor h = x * 3;
      held = h.exp();
      const at::Tensor k = (held * v).sum();
      return k + Over::apply(h).sum();
    });
    return ag::grad({l}, {x, v});
  });
  forget_proofs();
  const at::Tensor x = leaf({16}), v = leaf({16}, 2);
  const auto part = [&] {
    const at::Tensor h = x * 3, g = (h.exp() * v).sum();
    return g + Over::apply(h).sum();
  };
  const Tensors plain = ag::grad({part()}, {x, v});
  for (int turn = 0; turn < 4; ++turn) {
    Recording recording(turn < 2 ? Fates::keep() : Fates::recompute());
    EXPECT_TRUE(same_bits(plain, ag::grad({region("other fates", part)}, {x, v}))) << turn;
  }
}

struct Handmade : ag::Node {
  ag::SavedVariable saved;
  ag::variable_list apply(ag::variable_list&& grads) override {
    const at::Tensor x = saved.unpack(), grad = grads[0] * x.cos();
    raw_scale(x.detach(), 0.5f);
    return {grad};
  }
};

at::Tensor handmade(const at::Tensor& x) {
  auto node = std::make_shared<Handmade>();
  node->set_next_edges(ag::collect_next_edges(x));
  node->saved = ag::SavedVariable(x, false);
  at::Tensor y;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    y = x.detach().sin();
  }
  ag::set_history(y, node);
  return y;
}

TEST_F(ForeignCode, ANodeByHandWritesOverWhatItSaved) {
  expect_same([](const Region& region) {
    const at::Tensor x = leaf({16});
    const at::Tensor l = region("r", [&] {
      const at::Tensor h = x * 3, g = h.exp() * x, f = handmade(h);
      return (g * 1).sum() + f.sum();
    });
    return ag::grad({l}, {x});
  });
}

TEST_F(ForeignCode, AFirstCallThatThrewProvesNothing) {
  const at::Tensor x = leaf({16}), given = leaf({16}, 2).detach();
  for (const bool throws : {true, false}) {
    Recording recording(Fates::recompute());
    const auto part = [&] {
      const at::Tensor a = x * (given * 2).sin();
      if (throws) throw std::runtime_error("half way");
      raw_scale(given, 2);
      return a.sum();
    };
    if (throws) {
      EXPECT_THROW(region("r", part), std::runtime_error);
      continue;
    }
    const at::Tensor before = given.clone();
    const at::Tensor ours = ag::grad({region("r", part)}, {x})[0];
    given.copy_(before);
    EXPECT_TRUE(same_bits(ag::grad({part()}, {x})[0], ours));
  }
}

TEST_F(ForeignCode, AnOperatorThatWroteAndFailed) {
  expect_same([](const Region& region) {
    const at::Tensor x = leaf({4});
    const at::Tensor l = region("r", [&] {
      const at::Tensor h = x * 3, y = h * x;
      EXPECT_THROW(h.detach().index_add_(0, at::tensor({0, 1, 2, 99}), at::ones({4})), std::exception);
      return y.sum();
    });
    return ag::grad({l}, {x});
  });
}

TEST_F(ForeignCode, AnOverlappingWriteCoversNotAll) {
  expect_same([](const Region& region) {
    const at::Tensor x = leaf({16});
    const at::Tensor l = region("r", [&] {
      const at::Tensor m = at::empty({16});
      for (int i = 0; i < 16; ++i) m.mutable_data_ptr<float>()[i] = static_cast<float>(i);
      m.as_strided({4, 4}, {2, 1}).zero_();
      return (m * x).sum();
    });
    return ag::grad({l}, {x});
  });
}

TEST_F(ForeignCode, ZerosWithoutMemory) {
  expect_same([](const Region& region) {
    const at::Tensor x = leaf({16});
    const at::Tensor l = region("r", [&] {
      const at::Tensor zeros = at::_efficientzerotensor({16}, at::kFloat);
      return ((x.sin() + zeros) * x).sum();
    });
    return ag::grad({l}, {x});
  });
}

TEST_F(ForeignCode, ARecordingThatEndsInsideARegion) {
  const at::Tensor x = leaf({16});
  {
    auto recording = std::make_unique<Recording>(Fates::recompute());
    at::Tensor l;
    {
      hooks::RegionScope scope("cut");
      l = x.sin();
      recording.reset();
      l = l * x;
    }
    Recording next(Fates::recompute());
    l = region("next", [&] { return l.sin(); }).exp() * x;
    const at::Tensor plain = ag::grad({(x.sin() * x).sin().exp().mul(x).sum()}, {x})[0];
    EXPECT_TRUE(same_bits(plain, ag::grad({l.sum()}, {x})[0]));
  }
  EXPECT_EQ(live_values(), 0);
}

TEST_F(ForeignCode, BitsOfAMovedSliceThatIsKeptAfterAll) {
  const at::Tensor x = leaf({16});
  Recording recording(Fates::offload(), {.determinism_check = DeterminismCheck::Bits});
  at::Tensor l = region("a", [&] {
    const at::Tensor h = x * 3;
    return h.narrow(0, 0, 8).sin() * 1;
  });
  l = region("b", [&] { return l.exp().sum(); });
  EXPECT_NO_THROW(ag::grad({l}, {x}));
}

}  // namespace
}  // namespace snug::tape
