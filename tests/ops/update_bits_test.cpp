// The vectors of update_cpu.cpp, of every kind that this machine has, against numbers one by one.
#include <hwy/targets.h>

#include <cmath>

#include "snug/base/error.h"
#include "snug/ops/update_rules.h"
#include "tests/ops/update_layouts.h"
#include "tests/support/temporary_folder.h"

namespace snug::ops {
namespace {

using namespace snug::testing;

#include "snug/ops/update_arithmetic.h"

float read(const at::Tensor& tensor, std::int64_t i) {
  if (tensor.scalar_type() == at::kHalf) return tensor.const_data_ptr<c10::Half>()[i];
  if (tensor.scalar_type() == at::kBFloat16) return tensor.const_data_ptr<c10::BFloat16>()[i];
  return tensor.const_data_ptr<float>()[i];
}

float read_weight(const at::Tensor& weight, const at::Tensor& master, std::int64_t i) {
  if (master.scalar_type() != at::kShort) return read(master, i);
  return SplitFloat{weight.const_data_ptr<c10::BFloat16>()[i].x, master.const_data_ptr<std::int16_t>()[i]}
      .joined();
}

void write_weight(const at::Tensor& weight, const at::Tensor& master, std::int64_t i, float value) {
  if (master.scalar_type() == at::kShort) {
    const SplitFloat split = SplitFloat::of(value);
    weight.mutable_data_ptr<c10::BFloat16>()[i].x = split.nearest;
    master.mutable_data_ptr<std::int16_t>()[i] = split.remainder;
    return;
  }
  master.mutable_data_ptr<float>()[i] = value;
  if (weight.scalar_type() == at::kHalf) weight.mutable_data_ptr<c10::Half>()[i] = value;
  if (weight.scalar_type() == at::kBFloat16) weight.mutable_data_ptr<c10::BFloat16>()[i] = value;
}

template <class Rule, class Math>
void update_one_by_one(const Rule& rule, Math math, const AdamWTensors& tensors, float factor) {
  for (std::size_t which = 0; which < tensors.weights.size(); ++which)
    for (std::int64_t i = 0; i < tensors.weights[which].numel(); ++i) {
      const at::Tensor &weight = tensors.weights[which], &master = tensors.masters[which];
      float value = read_weight(weight, master, i), unused = 0;
      float* first = tensors.exp_avgs[which].mutable_data_ptr<float>() + i;
      float* second = tensors.exp_avg_sqs[which].mutable_data_ptr<float>() + i;
      update(rule, math, value, Rule::kStates > 0 ? *first : unused, Rule::kStates > 1 ? *second : unused,
             read(tensors.gradients[which], i) * factor);
      write_weight(weight, master, i, value);
    }
}

AdamWRule adamw_rule() {
  return {.lr = static_cast<float>(kNumbers.lr),
          .beta1 = static_cast<float>(kNumbers.beta1),
          .beta2 = static_cast<float>(kNumbers.beta2),
          .weight_decay = static_cast<float>(kNumbers.weight_decay),
          .eps = static_cast<float>(kNumbers.eps),
          .kept = static_cast<float>(1 - kNumbers.lr * kNumbers.weight_decay)};
}

// A NaN is a NaN: which of two an operation hands on is up to the compiler.
void drop_payloads(const AdamWTensors& tensors) {
  for (const AdamWList list : kAdamWLists)
    for (const at::Tensor& tensor : tensors.*list)
      if (tensor.is_floating_point()) tensor.masked_fill_(tensor.isnan(), std::nan(""));
}

// Calls test with the name of each kind of vectors that this machine has, and whether it fuses products and
// sums.
template <class Test>
void with_every_target(Test test) {
  const auto use = [](std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    use(target);
    test(hwy::TargetName(target), target <= HWY_AVX2 || target == HWY_NEON);
    use(0);
  }
}

// Both take step 1, 2, 3 of the same tensors.
template <class OneByOne, class InVectors>
void expect_same_steps(Arithmetic arithmetic, OneByOne one_by_one, InVectors in_vectors) {
  AdamWTensors start = every_layout({1, 3, 17, 63, 1021, 20011}, c10::kCPU);
  for (const bool special : {false, true}) {
    if (special) fill_with_random_bits(start);
    const AdamWTensors expected = copies_of(start, c10::kCPU);
    for (int step = 1; step <= 3; ++step) one_by_one(expected, step);
    drop_payloads(expected);
    with_every_target([&](const char* target, bool fuses) {
      const AdamWTensors ours = copies_of(start, c10::kCPU);
      if (arithmetic == Arithmetic::Cuda && !fuses) {
        EXPECT_EQ(message_of<Error>([&] { in_vectors(ours, 1); }),
                  "an optimizer's step in the arithmetic of CUDA needs a CPU that multiplies and adds in one "
                  "rounding (FMA), and this one does not; take the step on the GPU")
            << target;
        return;
      }
      for (int step = 1; step <= 3; ++step) in_vectors(ours, step);
      drop_payloads(ours);
      expect_same_bits(ours, expected, target);
    });
  }
}

template <class Math>
void expect_same_steps_of_adamw(Arithmetic arithmetic, Math math) {
  const at::Tensor factor = at::full({}, 0.37);
  const auto one_by_one = [&](const AdamWTensors& tensors, int step) {
    update_one_by_one(adamw_rule().at_step(static_cast<float>(step)), math, tensors, 0.37f);
  };
  const auto in_vectors = [&](AdamWTensors tensors, int step) {
    at::Tensor number = at::full({}, step, at::kFloat);
    if (arithmetic == Arithmetic::Cuda) number = adamw_corrections(number, kNumbers);
    tensors.steps.assign(tensors.steps.size(), number);
    adamw_(tensors, kNumbers, {.factor = factor, .arithmetic = arithmetic});
  };
  expect_same_steps(arithmetic, one_by_one, in_vectors);
}

template <bool kHasMomentum, class Math>
void expect_same_steps_of_sgd(Arithmetic arithmetic, Math math) {
  const SgdNumbers numbers{.lr = 0.1, .momentum = kHasMomentum ? 0.9 : 0, .weight_decay = 0.01};
  const SgdRule<kHasMomentum> rule{0.1f, 0.9f, 0.01f};
  const auto one_by_one = [&](const AdamWTensors& tensors, int) {
    update_one_by_one(rule, math, tensors, 1);
  };
  const auto in_vectors = [&](const AdamWTensors& tensors, int) {
    sgd_(sgd_of(tensors, kHasMomentum), numbers, {.arithmetic = arithmetic});
  };
  expect_same_steps(arithmetic, one_by_one, in_vectors);
}

TEST(UpdateBits, VectorsAreNumbersOneByOne) {
  expect_same_steps_of_adamw(Arithmetic::OfDevice, Scalars<false>());
  expect_same_steps_of_sgd<false>(Arithmetic::OfDevice, Scalars<false>());
  expect_same_steps_of_sgd<true>(Arithmetic::OfDevice, Scalars<false>());
}

TEST(UpdateBits, VectorsAreNumbersOneByOneInTheArithmeticOfCuda) {
  expect_same_steps_of_adamw(Arithmetic::Cuda, Scalars<true>());
  expect_same_steps_of_sgd<false>(Arithmetic::Cuda, Scalars<true>());
  expect_same_steps_of_sgd<true>(Arithmetic::Cuda, Scalars<true>());
}

// A step without a rate leaves a master as it is, and rounds it: c10's numbers, NaNs too.
TEST(UpdateBits, WeightsRoundAsTorchRoundsThem) {
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    at::manual_seed(13);
    const at::Tensor master =
        at::randint(-(1ll << 31), 1ll << 31, {300'001}, at::kLong).to(at::kInt).view(at::kFloat);
    master.narrow(0, 0, 100'000).copy_(at::randn({100'000}) * 1e-6);  // many tiny halves
    master.narrow(0, 100'000, 100'000).copy_(at::randn({100'000}));
    const at::Tensor rounded = at::empty({master.numel()}, dtype);
    for (std::int64_t i = 0; i < master.numel(); ++i) write_weight(rounded, master, i, read(master, i));
    with_every_target([&](const char* target, bool) {
      const at::Tensor weight = at::zeros({master.numel()}, dtype);
      sgd_({{{weight}, {at::zeros_like(weight)}, {master.clone()}}}, {.lr = 0});
      EXPECT_TRUE(at::equal(bits_of(weight), bits_of(rounded))) << target << " " << dtype;
    });
  }
}

// Every half there is, as a gradient; a NaN is not told from another.
TEST(UpdateBits, HalvesAreReadAsTorchReadsThem) {
  const at::Tensor halves = at::arange(-32768, 32768).to(at::kShort).view(at::kHalf);
  const at::Tensor floats = at::empty({65536});
  for (std::int64_t i = 0; i < 65536; ++i) floats.mutable_data_ptr<float>()[i] = read(halves, i);
  with_every_target([&](const char* target, bool) {
    const at::Tensor weight = at::zeros({65536}, at::kHalf), momentum = at::zeros({65536});
    sgd_({{{weight}, {halves}, {at::zeros({65536})}}, {momentum}}, {.lr = 0, .momentum = 0.9});
    EXPECT_TRUE(at::equal(bits_of(momentum), bits_of(floats + 0))) << target;
  });
}

}  // namespace
}  // namespace snug::ops
