// Trackers, sessions and recordings that begin and end in any order, on two threads at once.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "snug/base/bytes.h"
#include "snug/hooks/operators.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/resource.h"
#include "snug/memory/tracker.h"
#include "snug/session/session.h"
#include "snug/tape/recording.h"
#include "snug/tape/region.h"
#include "tests/support/random_suite.h"

namespace snug {
namespace {

constexpr std::uint64_t kLeastLimit = 4_MiB, kOfTheSteps = 2_MiB;  // all that the steps below hold at once

at::Tensor make(std::uint64_t bytes) {
  return at::empty({static_cast<std::int64_t>(bytes)}, at::kByte);  // not touched, so it costs nothing
}

bool is_refused(std::uint64_t bytes) try {
  make(bytes);
  return false;
} catch (const memory::OutOfBudget&) {
  return true;
}

// Runs what it is given on one thread of its own, one after the other.
class Worker {
 public:
  ~Worker() {
    start(nullptr);
    thread_.join();
  }
  void start(std::function<void()> work) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
    work_ = std::move(work);
    busy_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return busy_; });
      if (!work_) return;
      lock.unlock();
      work_();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool busy_ = false;
  std::thread thread_{[this] { run(); }};
};

// What one thread has begun and not ended.
class Actor {
 public:
  explicit Actor(unsigned seed) : random_(seed) {
    weight_ = at::randn({64, 64}).requires_grad_();
    expected_ = torch_gradient();
  }

  void act() {
    switch (pick(7)) {
      case 0: {
        const auto limit = pick(2) ? std::optional(some_limit()) : std::nullopt;
        alive_.push_back(
            {std::make_shared<memory::Tracker>(memory::TrackerOptions{.budget_bytes = limit}), limit});
        return;
      }
      case 1: {
        plan::Plan plan{.step = {{"threads", 1 + pick(3)}}, .budget_bytes = some_limit()};
        SessionOptions quiet{.budget_bytes = plan.budget_bytes, .say = [](const std::string&) {}};
        if (pick(2)) quiet.plan = plan;
        auto session = std::make_shared<Session>(at::TensorList{weight_}, quiet);
        alive_.push_back({session, plan.budget_bytes, session.get()});
        return;
      }
      case 2:
        alive_.push_back({std::make_shared<tape::Recording>(tape::Fates::recompute()), std::nullopt});
        return;
      case 3:
      case 4:
        return end_one();
      case 5:
        kept_ = at::randn({16, 16});
        pending_ = loss();
        return;
      default:
        return step();
    }
  }

  void end_one() {
    if (alive_.empty()) return;
    alive_.erase(alive_.begin() + static_cast<std::ptrdiff_t>(pick(alive_.size())));
  }
  void end_all() {
    while (!alive_.empty()) end_one();
    pending_.reset();
    kept_.reset();
  }

  std::optional<std::uint64_t> limit() const {
    std::optional<std::uint64_t> least;
    for (const Thing& thing : alive_)
      if (thing.limit) least = std::min(least.value_or(*thing.limit), *thing.limit);
    return least;
  }

  void check() {
    const auto own = limit();
    EXPECT_TRUE(!own || is_refused(*own + 1));
    EXPECT_EQ(c10::impl::tls_is_dispatch_key_included(hooks::kOperatorKey), !alive_.empty());
  }

 private:
  struct Thing {
    std::shared_ptr<void> thing;
    std::optional<std::uint64_t> limit;
    Session* session = nullptr;
  };

  std::size_t pick(std::size_t count) {
    return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_);
  }
  std::uint64_t some_limit() { return kLeastLimit << pick(4); }

  at::Tensor loss() {
    return region("layer", [&] { return at::tanh(input_ * weight_).pow(2).sum(); });
  }
  at::Tensor torch_gradient() {
    loss().backward();
    at::Tensor gradient = weight_.grad();
    weight_.mutable_grad().reset();
    return gradient;
  }
  void step() {
    EXPECT_TRUE(at::equal(torch_gradient(), expected_));
    if (pending_.defined()) {  // a graph whose recording may be gone
      pending_.backward();
      EXPECT_TRUE(at::equal(weight_.grad(), expected_));
      weight_.mutable_grad().reset();
      pending_.reset();
    }
    for (const Thing& thing : alive_)
      if (thing.session) thing.session->end_step();
  }

  std::mt19937 random_;
  at::Tensor input_ = at::randn({64, 64}), weight_, expected_, pending_, kept_;
  std::vector<Thing> alive_;
};

TEST(AnyOrder, NothingIsLeftBehindAndLimitsAreRightAtEveryMoment) {
  const auto rounds = static_cast<int>(random_suite::size("SNUG_ROUNDS", 100));
  const int threads = at::get_num_threads();
  memory::current_resource(
      c10::kCPU);  // torch's allocator slot has no lock: it is taken before there are threads
  Worker workers[2];
  Actor actors[2] = {Actor(1), Actor(2)};
  const auto both = [&](const std::function<void(Actor&)>& work) {
    for (int i = 0; i < 2; ++i) workers[i].start([&, i] { work(actors[i]); });
    for (Worker& worker : workers) worker.wait();
  };
  // A thread that begins to count while a session lives counts as the session does, in torch.
  both([&](Actor&) { EXPECT_EQ(at::get_num_threads(), threads); });
  for (int round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
    for (int turn = 0; turn < 4; ++turn) {
      both([](Actor& actor) {
        for (int i = 0; i < 4; ++i) {
          actor.act();
          actor.check();
        }
      });
      std::optional<std::uint64_t> limit = actors[0].limit();
      if (const auto other = actors[1].limit()) limit = std::min(limit.value_or(*other), *other);
      EXPECT_EQ(is_refused(limit.value_or(64_MiB) + 1), limit.has_value()) << "round " << round;
      EXPECT_FALSE(is_refused(limit.value_or(64_MiB) - kOfTheSteps)) << "round " << round;
    }
    both([](Actor& actor) {
      actor.end_all();
      actor.check();
    });
    EXPECT_EQ(memory::current_resource(c10::kCPU), memory::default_resource(c10::kCPU));
    EXPECT_EQ(tape::live_values(), 0);
    both([&](Actor&) { EXPECT_EQ(at::get_num_threads(), threads); });
  }
}

}  // namespace
}  // namespace snug
