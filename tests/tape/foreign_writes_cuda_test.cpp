// As foreign_writes_test.cpp, with kernels of someone's own on a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "snug/tape/checkpoint.h"
#include "snug/tape/save_on_host.h"
#include "tests/support/random_suite.h"
#include "tests/tape/foreign_programs.h"
#include "tests/tape/fused_kernels.h"
#include "tests/tape/problems.h"
#include "tests/tape/raw_writes.h"

namespace snug::tape {
namespace {

namespace ag = torch::autograd;

class ForeignWritesOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "NO GPU";
    forget_proofs();
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  }
};

at::Tensor leaf_on_gpu(at::IntArrayRef sizes, std::uint64_t seed = 1) {
  at::manual_seed(seed);
  return at::randn(sizes).cuda().requires_grad_();
}

// SNUG_PROGRAMS=2000 tries more of them.
TEST_F(ForeignWritesOnCuda, RandomProgramsAreNeverSilentlyWrong) {
  const Tally tally = try_foreign_programs(0, random_suite::size("SNUG_PROGRAMS", 300), at::kCUDA);
  for (const std::string& wrong : tally.wrong) ADD_FAILURE() << "silently wrong: " << wrong;
  for (const std::string& error : tally.unnamed) ADD_FAILURE() << "an error that does not say why: " << error;
  EXPECT_GT(tally.equal, tally.runs / 4);
  std::printf("%d runs: %d equal, %d refused, of which plain autograd refuses %d\n", tally.runs, tally.equal,
              tally.refused, tally.plain_refused);
}

TEST_F(ForeignWritesOnCuda, AsFusedKernelsDo) {
  const at::Tensor x = leaf_on_gpu({256, 256}), w = leaf_on_gpu({256, 256}, 3),
                   v = leaf_on_gpu({256, 256}, 4);
  const auto loss = [&](at::Tensor x) {
    at::Tensor q = RotateInside::apply(at::mm(x, w));
    at::Tensor a = at::mm(q.tanh(), v), b = at::mm(q.tanh(), w);
    at::Tensor gated = GateOverSaved::apply(a.sin(), b.cos());
    return LossOverLogits::apply(at::mm(gated + at::sin(a), v) * 1e-3);
  };
  const auto plain = ag::grad({loss(x)}, {x, w, v});
  for (int pass = 0; pass < 3; ++pass) {
    EXPECT_TRUE(same_bits(plain, ag::grad({snug::checkpoint(loss, x)}, {x, w, v}))) << pass;
    EXPECT_TRUE(same_bits(plain, ag::grad({snug::save_on_host(loss, x)}, {x, w, v}))) << pass;
  }
}

// Made on one stream, read on another, in the right order: whose memory it is waits for the copy too.
TEST_F(ForeignWritesOnCuda, OffloadOnSeveralStreams) {
  const at::Tensor x = leaf_on_gpu({1024, 1024});
  const auto side = c10::cuda::getStreamFromPool();
  const auto run = [&](bool offloads) {
    const auto layer = [&](at::Tensor h) {
      at::Tensor made = h.sin();
      c10::cuda::CUDAEvent ready;
      ready.record();
      at::Tensor out;
      {
        const c10::cuda::CUDAStreamGuard guard(side);
        ready.block(side);
        out = made * made.cos();
        ready = c10::cuda::CUDAEvent();
        ready.record(side);
      }
      ready.block(c10::cuda::getCurrentCUDAStream());
      return out * 1.5;
    };
    at::Tensor h = x * 1;
    for (int i = 0; i < 6; ++i)
      h = offloads ? snug::save_on_host({.name = "part" + std::to_string(i)}, layer, h) : layer(h);
    return ag::grad({h.sum()}, {x})[0];
  };
  const at::Tensor plain = run(false);
  for (int pass = 0; pass < 20; ++pass) ASSERT_TRUE(same_bits(plain, run(true))) << pass;
}

// A kernel that is given to another stream and done only after the region's end.
TEST_F(ForeignWritesOnCuda, AWriteOutOfTurn) {
  const at::Tensor x = leaf_on_gpu({2048, 2048});
  const auto side = c10::cuda::getStreamFromPool();
  const auto run = [&](bool recomputes) {
    at::Tensor kept;
    const auto part = [&](at::Tensor x) {
      kept = at::sigmoid(x * 2);
      return kept * 3;
    };
    at::Tensor y = recomputes ? snug::checkpoint(part, x) : part(x);
    {
      const c10::cuda::CUDAStreamGuard guard(side);
      c10::cuda::device_synchronize();
      raw_scale(kept.detach(), 0.5f);
    }
    c10::cuda::device_synchronize();
    return ag::grad({y.sum()}, {x})[0];
  };
  const at::Tensor plain = run(false);
  for (int pass = 0; pass < 3; ++pass) EXPECT_TRUE(same_bits(plain, run(true))) << pass;
}

}  // namespace
}  // namespace snug::tape
