// Copies that fail: the step ends with that error. What comes after it is as if it had not been tried, or, if
// an update had begun, is refused.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "snug/base/error.h"
#include "tests/optim/there_net.h"

namespace snug::optim {
namespace {

using testing::clipped_step;
using testing::expect_same_weights;
using testing::optimizer_of;
using testing::send_away;
using testing::ThereNet;

constexpr const char* kLost = "lost the device";

// The link of the CPU, but for one copy: asking for it throws, or waiting for it does.
class FailingLink final : public host::Link {
 public:
  enum class Fails { WhenAsked, WhenAwaited };

  FailingLink() : Link(at::kCPU), real_(host::Link::open(at::kCPU)) {}

  // From now on the copy after `count` others fails.
  void fail_after(int count, Fails how) {
    left_ = count;
    how_ = how;
  }
  bool has_failed() const { return left_ < 0; }
  void fail_no_more() { left_ = kNever; }

  host::CopyPtr copy_to_host(const void* from, void* to, std::uint64_t bytes, const host::CopyPtr& before,
                             const host::CopyPtr& since) override {
    return failing([&] { return real_->copy_to_host(from, to, bytes, real(before), since); });
  }
  host::CopyPtr copy_to_device(void* to, const void* from, std::uint64_t bytes, const host::CopyPtr& before,
                               const host::CopyPtr& since) override {
    return failing([&] { return real_->copy_to_device(to, from, bytes, real(before), since); });
  }

 private:
  struct Lost final : host::Copy {
    explicit Lost(host::CopyPtr real) : real(std::move(real)) {}
    void wait() override { lose(); }
    void finish() override { lose(); }
    std::uint64_t number() const override { return real->number(); }
    void lose() {
      real->finish();  // its memory may go now
      throw std::runtime_error(kLost);
    }
    host::CopyPtr real;
  };

  static host::CopyPtr real(const host::CopyPtr& copy) {
    const auto lost = std::dynamic_pointer_cast<Lost>(copy);
    return lost ? lost->real : copy;
  }

  host::CopyPtr failing(const std::function<host::CopyPtr()>& copy) {
    if (left_ == kNever || left_-- != 0) return copy();
    if (how_ == Fails::WhenAsked) throw std::runtime_error(kLost);
    return std::make_shared<Lost>(copy());
  }

  static constexpr int kNever = 1 << 30;
  const std::shared_ptr<host::Link> real_;
  int left_ = kNever;
  Fails how_ = Fails::WhenAsked;
};

struct Case {
  FailingLink::Fails how;
  UpdateTime update;
  double stepped_there;
  HostShares shares = {1, 1};
};

class FailingCopies : public ::testing::Test {
 protected:
  static constexpr int kLayers = 3;
  const std::shared_ptr<FailingLink> link_ = std::make_shared<FailingLink>();
  const std::shared_ptr<host::Store> store_ =
      std::make_shared<host::Store>(link_, host::StoreOptions{.budget_bytes = 64_MiB});
};

class EveryCopy : public FailingCopies, public ::testing::WithParamInterface<Case> {};

INSTANTIATE_TEST_SUITE_P(
    All, EveryCopy, ::testing::ValuesIn([] {
      std::vector<Case> cases;
      using enum FailingLink::Fails;
      for (const auto how : {WhenAsked, WhenAwaited})
        for (const auto update : {UpdateTime::InStep, UpdateTime::BeforeForward, UpdateTime::InBackward})
          for (const double stepped_there : {0.0, 0.5, 1.0})
            for (const HostShares shares : {HostShares{1, 1}, HostShares{}})
              cases.push_back({how, update, stepped_there, shares});
      return cases;
    }()));

bool is_whole(const Optimizer& optimizer) {
  try {
    optimizer.state();
    return true;
  } catch (const Error&) {
    return false;
  }
}

// Every copy of a step in turn. Those of a forward or backward that nothing was updated in leave the weights
// as they were: the step that follows has the bits of a run in which nothing failed. After those of an update
// nobody gets at weights or states any more.
TEST_P(EveryCopy, EndsTheStepWithItsError) {
  const auto [how, update, stepped_there, shares] = GetParam();
  ThereNet plain(kLayers);
  AdamW here(plain.parameters(), {.lr = 1e-2});
  plain.pass(0);
  clipped_step(here);
  plain.pass(1);
  clipped_step(here);
  bool all_were_tried = false;
  int failed_in_a_pass = 0;
  for (int count = 0; !all_were_tried; ++count) {
    SCOPED_TRACE(count);
    ThereNet net(kLayers);
    const auto optimizer = optimizer_of(net, store_, send_away(net, store_, shares), update, stepped_there);
    // The first step's update, if it waits, is done before anything fails.
    net.pass(0);
    clipped_step(*optimizer);
    optimizer->finish();
    link_->fail_after(count, how);
    std::string said;
    bool in_pass = false;
    try {
      if (update == UpdateTime::InBackward) optimizer->last_pass(1e-2);
      in_pass = true;
      net.pass(1);
      in_pass = false;
      update == UpdateTime::InBackward ? optimizer->step(1e-2) : clipped_step(*optimizer);
      optimizer->finish();
      optimizer->state();
    } catch (const std::exception& error) {
      said = error.what();
    }
    all_were_tried = !link_->has_failed();
    link_->fail_no_more();
    EXPECT_TRUE(all_were_tried || said.find(kLost) != std::string::npos) << '"' << said << '"';
    if (all_were_tried || update == UpdateTime::InBackward) continue;
    failed_in_a_pass += in_pass;
    if (!in_pass && !is_whole(*optimizer)) {
      EXPECT_THROW(optimizer->step(1e-2), Error);
      EXPECT_THROW(optimizer->weight(0), Error);
      continue;
    }
    optimizer->zero_grad();
    net.pass(1);
    clipped_step(*optimizer);
    expect_same_weights(*optimizer, plain);
  }
  EXPECT_TRUE(update == UpdateTime::InBackward || shares.weights == 0 || failed_in_a_pass > kLayers);
}

// What a weight holds is nowhere else until its copy is there.
TEST_F(FailingCopies, OfAWeightThatIsWrittenLeaveItWhereItIs) {
  ThereNet net(2);
  const auto there = send_away(net, store_);
  at::Tensor weight = net.layers[0]->weight;
  link_->fail_after(0, FailingLink::Fails::WhenAsked);
  EXPECT_ANY_THROW(there->write(weight, [&] {
    const at::NoGradGuard no_grad;
    weight.fill_(7);
  }));
  link_->fail_no_more();
  EXPECT_EQ(there->weight(weight).min().item<float>(), 7);
}

// The end of a forward is a destructor's: what fails there comes out at the next place that may throw.
TEST_F(FailingCopies, AtTheEndOfAForwardComeOutAfterIt) {
  ThereNet net(2);
  const auto there = send_away(net, store_);
  const auto run = [&] {
    const hooks::RegionScope scope(ThereNet::region(0));
    const at::NoGradGuard no_grad;
    net.layers[0]->weight.clamp_(-0.01, 0.01);
    link_->fail_after(0, FailingLink::Fails::WhenAsked);
  };
  run();
  EXPECT_TRUE(link_->has_failed());
  link_->fail_no_more();
  EXPECT_THROW(there->before_update(), std::runtime_error);
  EXPECT_LE(there->weight(net.layers[0]->weight).max().item<float>(), 0.011F);
}

}  // namespace
}  // namespace snug::optim
