#include "tests/tape/foreign_programs.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <functional>
#include <random>
#include <thread>

#include "snug/tape/region.h"
#include "tests/tape/problems.h"
#include "tests/tape/raw_writes.h"

namespace snug::tape {

namespace ag = torch::autograd;

namespace {

constexpr std::int64_t kRows = 6, kColumns = 8;

// A kernel in place, announced.
struct ScaleInPlace : ag::Function<ScaleInPlace> {
  static at::Tensor forward(ag::AutogradContext* context, at::Tensor x) {
    raw_scale(x, 1.5f);
    context->mark_dirty({x});
    context->save_for_backward({x});
    return x;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list grads) {
    return {grads[0] * 1.5 + context->get_saved_variables()[0] * 1e-3};
  }
};

// A kernel that writes into what it is given and says nothing, as a rotation inside a projection's output.
struct ScaleInSilence : ag::Function<ScaleInSilence> {
  static at::Tensor forward(ag::AutogradContext* context, at::Tensor x) {
    raw_scale(x.detach(), 1.25f);
    context->save_for_backward({x});
    return x * 1;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list grads) {
    return {grads[0] * 1.25 * context->get_saved_variables()[0].cos()};
  }
};

// A kernel that fills what it allocates.
struct FillOwn : ag::Function<FillOwn> {
  static at::Tensor forward(ag::AutogradContext* context, at::Tensor x) {
    at::Tensor y = at::zeros_like(x), z = x.clone();
    raw_scale(z, 3.0f, 0, z.numel() / 2);
    y.copy_(z);
    raw_scale(y, 0.5f, y.numel() / 3, y.numel());
    context->save_for_backward({x, z, y});
    return y;
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * saved[1].tanh() + saved[2].sin() * saved[0].cos()};
  }
};

// A kernel that writes its gradient over what was saved, to spare memory.
struct OverwriteSaved : ag::Function<OverwriteSaved> {
  static at::Tensor forward(ag::AutogradContext* context, at::Tensor x) {
    context->save_for_backward({x});
    return x.sigmoid();
  }
  static ag::variable_list backward(ag::AutogradContext* context, ag::variable_list grads) {
    const at::Tensor saved = context->get_saved_variables()[0];
    if (saved.is_contiguous()) raw_scale(saved.detach(), 0.75f);
    return {grads[0] * saved};
  }
};

class Program {
 public:
  Program(std::uint64_t seed, c10::Device device, int turn) : random_(seed), turn_(turn) {
    at::manual_seed(seed);
    const auto leaf = [&](at::IntArrayRef sizes) {
      return (at::randn(sizes) * 0.5).to(device).requires_grad_();
    };
    for (int i = 0; i < 2; ++i) leaves_.push_back(leaf({kRows, kColumns}));
    for (int i = 0; i < 2; ++i) weights_.push_back(leaf({kColumns, kColumns}));
  }

  // Each region begins with what the one before left in the pool.
  at::Tensor loss(const std::function<void(int, const std::function<void()>&)>& region) {
    pool_ = {leaves_[0] * 1, leaves_[1] * 1};
    const int regions = 1 + pick(3);
    const bool has_branches = pick(4) == 0;
    const bool forgets = pick(2) == 0;
    for (int r = 0; r < regions; ++r) {
      region(r, [&] {
        const int steps = 4 + pick(8);
        for (int i = 0; i < steps; ++i) step(has_branches);
      });
      if (pick(3) == 0) foreign_write(chosen());  // between regions
      if (forgets) pool_.erase(pool_.begin(), pool_.end() - 2);
    }
    at::Tensor sum = pool_[0].sum();
    for (std::size_t i = 1; i < pool_.size(); ++i) sum = sum + (pool_[i] * pool_[i]).mean();
    if (pick(4) == 0) foreign_write(chosen());  // after the last region
    return sum;
  }

  std::vector<at::Tensor> wanted() const {
    std::vector<at::Tensor> all = leaves_;
    all.insert(all.end(), weights_.begin(), weights_.end());
    return all;
  }

 private:
  int pick(int count) { return static_cast<int>(random_() % static_cast<std::uint64_t>(count)); }
  at::Tensor chosen() {
    return pool_[pool_.size() - 1 -
                 static_cast<std::size_t>(pick(std::min<int>(4, static_cast<int>(pool_.size()))))];
  }
  void push(at::Tensor tensor) { pool_.push_back(std::move(tensor)); }

  void step(bool has_branches) {
    const int kind = pick(has_branches ? 17 : 16);
    switch (kind) {
      case 0:
        return push(chosen().tanh());
      case 1:
        return push(chosen().sigmoid() * chosen());
      case 2:
        return push(chosen() + chosen());
      case 3:
        return push(at::mm(chosen(), weights_[static_cast<std::size_t>(pick(2))]));
      case 4:
        return push(chosen().clone());
      case 5:
        return push(chosen() * 0.5);
      case 6:
        return push(at::softmax(chosen() + mask(), -1));
      case 7:
        return push(ScaleInPlace::apply(chosen() * 1.1));
      case 8:
        return push(ScaleInSilence::apply(chosen() * 0.9));
      case 9:
        return push(FillOwn::apply(chosen()));
      case 10:
        return push(OverwriteSaved::apply(chosen().exp().clamp(0, 3)));
      case 11:
        return push(at::dropout(chosen(), 0.25, true));
      case 12: {
        at::Tensor x = chosen() * 1.5;
        x.narrow(1, 0, 3).mul_(0.5);  // seen: an operator on a view
        return push(x);
      }
      case 16: {
        const int way = turn_ % 3;
        // Just before the first operator that is another: into what no operator of the known part has read.
        if (way == 1) foreign_write(pool_.back());
        const at::Tensor x = chosen();
        push((way == 0 ? x.cos() : way == 1 ? x.sin() : x.atan()) * chosen());
        if (way == 2) foreign_write(chosen());
        return;
      }
      default:
        return foreign_write(chosen());
    }
  }

  at::Tensor mask() {
    const auto options = at::TensorOptions(at::kFloat).device(leaves_[0].device());
    at::Tensor mask;
    switch (pick(5)) {
      case 0:
        mask = at::zeros({kRows, kColumns}, options);
        break;
      case 1:
        mask = at::full({kRows, kColumns}, 0.25, options);
        break;
      case 2:
        mask = at::arange(kRows * kColumns, options).view({kRows, kColumns});
        break;
      case 3:
        mask = at::ones({kRows, kColumns}, options).clone();
        break;
      default:
        mask = chosen().detach() * 1;
    }
    raw_scale(mask, 1.75f, pick(20), 30 + pick(18));
    if (pick(3) == 0) mask.add_(1);
    if (mask.sizes() == at::IntArrayRef{kRows, kColumns} && pick(2) == 0) raw_scale(mask, 0.5f, 0, 5);
    return mask;
  }

  // All that a caller can do to memory without an operator on this thread, or with one that hides.
  void foreign_write(const at::Tensor& target) {
    const at::Tensor raw = target.detach();
    const float factor = 0.5f + 0.125f * static_cast<float>(pick(8));
    const int first = pick(10), last = first + pick(static_cast<int>(kRows * kColumns) - first);
    switch (pick(9)) {
      case 0:
        return raw_scale(raw, factor, first, last);
      case 1:
        return raw_scale(raw, factor);
      case 2:
        raw_scale(raw, factor, first, last);
        return raw.unsafeGetTensorImpl()->bump_version();
      case 3: {
        std::thread([&] { raw.mul_(factor); }).join();
        return;
      }
      case 4: {
        at::Tensor alias = at::from_blob(
            raw.data_ptr(), raw.sizes(), raw.strides(), [](void*) {}, raw.options(), raw.device());
        alias.mul_(factor);
        return;
      }
      case 5: {
        at::Tensor data = target.variable_data();
        data.mul_(factor);
        return;
      }
      case 6: {
        at::Tensor other = at::zeros({1}, raw.options());
        other.set_(raw.storage(), raw.storage_offset(), raw.sizes(), raw.strides());
        if (pick(2) == 0) other.mul_(factor);
        raw_scale(other, factor, first, last);
        return;
      }
      case 7:
        return raw_scale(target.variable_data().narrow(0, 1, 2), factor, 0, 7);
      default:
        raw.narrow(1, 1, 4).mul_(factor);
    }
  }

  std::mt19937_64 random_;
  int turn_;
  std::vector<at::Tensor> leaves_, weights_, pool_;
};

bool is_named(const std::string& error) {
  for (const char* words : {"modified by an inplace operation", "changed by a write that no operator made",
                            "wrote into a tensor that it was given"})
    if (error.find(words) != std::string::npos) return true;
  return false;
}

}  // namespace

Outcome run_foreign_program(std::uint64_t seed, c10::Device device, const Fates* fates, int turn) try {
  Program program(seed, device, turn);
  std::unique_ptr<Recording> recording;
  if (fates) recording = std::make_unique<Recording>(*fates, RecordingOptions{.place = seed});
  const at::Tensor loss = program.loss([&](int number, const std::function<void()>& part) {
    if (!fates) return part();
    snug::region("part" + std::to_string(number), part);
  });
  auto grads = ag::grad({loss}, program.wanted(), {}, /*retain_graph=*/std::nullopt, /*create_graph=*/false,
                        /*allow_unused=*/true);
  std::vector<at::Tensor> results{loss.detach()};
  for (const at::Tensor& grad : grads) results.push_back(grad.defined() ? grad : at::zeros({1}));
  return {std::move(results), ""};
} catch (const std::exception& error) {
  return {{}, error.what()};
}

Tally try_foreign_programs(std::uint64_t first, std::uint64_t count, c10::Device device) {
  constexpr int kTurns = 4;
  Tally tally;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    std::vector<Outcome> plain;
    for (int turn = 0; turn < kTurns; ++turn)
      plain.push_back(run_foreign_program(seed, device, nullptr, turn));
    const std::pair<std::string, Fates> kinds[] = {{"recompute", Fates::recompute()},
                                                   {"cheap", Fates::cheap()},
                                                   {"offload", Fates::offload()},
                                                   {"dice", dice(seed)}};
    for (const auto& [name, fates] : kinds) {
      forget_proofs();
      for (int turn = 0; turn < kTurns; ++turn) {
        const Outcome& right = plain[static_cast<std::size_t>(turn)];
        const Outcome ours = run_foreign_program(seed, device, &fates, turn);
        const std::string who =
            "seed " + std::to_string(seed) + ", " + name + ", turn " + std::to_string(turn);
        ++tally.runs;
        if (!right.error.empty()) ++tally.plain_refused;
        if (!ours.error.empty()) {
          ++tally.refused;
          if (!is_named(ours.error)) tally.unnamed.push_back(who + ": " + ours.error);
        } else if (right.error.empty() && same_bits(right.results, ours.results)) {
          ++tally.equal;
        } else {
          tally.wrong.push_back(who + (right.error.empty() ? "" : ": plain autograd refuses it"));
        }
      }
    }
  }
  return tally;
}

}  // namespace snug::tape
