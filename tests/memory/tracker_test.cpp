#include "snug/memory/tracker.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>

#include "snug/hooks/operators.h"
#include "snug/hooks/region.h"
#include "snug/memory/out_of_budget.h"
#include "snug/memory/process_memory.h"
#include "snug/memory/resource.h"
#include "snug/tape/recording.h"
#include "snug/tape/region.h"
#include "tests/support/mlp.h"

namespace snug::memory {
namespace {

using trace::Category;

// Notes its own live bytes after every allocation and free: the allocator's word against the ledger's.
class Recorder final : public Resource {
 public:
  void* allocate(std::size_t bytes) override {
    void* address = upstream_->allocate(bytes);
    live.push_back((live.empty() ? 0 : live.back()) + bytes);
    return address;
  }
  void deallocate(void* address, std::size_t bytes) noexcept override {
    upstream_->deallocate(address, bytes);
    live.push_back(live.back() - bytes);
  }
  std::vector<std::uint64_t> live;

 private:
  std::shared_ptr<Resource> upstream_ = default_resource(c10::kCPU);
};

struct Collect : trace::EventSink {
  void write(const trace::Event& event, const trace::NameTable& table) override {
    events.push_back(event);
    names = table;
  }
  std::vector<trace::Event> events;
  trace::NameTable names;
};

constexpr std::uint64_t kParameterBytes = (64 * 128 + 128 + 128 * 16 + 16) * sizeof(float);

TEST(Tracker, LedgerEqualsTheAllocatorAfterEveryEventOfATrainingStep) {
  auto recorder = std::make_shared<Recorder>();
  ResourceScope scope(c10::kCPU, recorder);
  Collect collect;
  {
    Tracker tracker({.sink = &collect});
    auto model = std::make_shared<Mlp>();
    torch::optim::AdamW optimizer(model->parameters());
    for (int step = 0; step < 3; ++step) {
      model->loss(at::randn({32, 64})).backward();
      optimizer.step();
      optimizer.zero_grad();
      EXPECT_EQ(tracker.live_bytes(), tracker.allocator_bytes());
    }
    at::ones({10}).neg();  // after the last question
  }
  trace::Ledger ledger;
  std::size_t i = 0;
  for (const auto& event : collect.events) {
    ledger.apply(event);
    if (event.kind != trace::EventKind::Alloc && event.kind != trace::EventKind::Free) continue;
    ASSERT_LT(i, recorder->live.size());
    ASSERT_EQ(ledger.live_bytes(), recorder->live[i]) << "after event " << i;
    ++i;
  }
  EXPECT_EQ(i, recorder->live.size()) << "the sink got every event";
  EXPECT_GT(i, 200u);
}

TEST(Tracker, EveryByteOfATrainingStepHasAName) {
  Tracker tracker;
  auto model = std::make_shared<Mlp>();
  tracker.adopt(model->parameters(), Category::Parameter);
  torch::optim::AdamW optimizer(model->parameters());
  at::Tensor x;
  {
    auto claim = tracker.claim(Category::Input);
    x = at::randn({32, 64});
  }
  at::Tensor loss = model->loss(x);
  trace::Snapshot forward = tracker.live();
  EXPECT_EQ(forward[Category::Parameter], kParameterBytes);
  EXPECT_EQ(forward[Category::Input], 32u * 64 * 4);
  EXPECT_GE(forward[Category::Activation], 32u * (128 + 128) * 4)
      << "the input and the output of gelu are saved";
  loss.backward();
  loss.reset();
  trace::Snapshot backward = tracker.live();
  EXPECT_EQ(backward[Category::Gradient], kParameterBytes);
  EXPECT_EQ(backward[Category::Activation], 0u);
  {
    auto claim = tracker.claim(Category::Optimizer);
    optimizer.step();
  }
  trace::Snapshot stepped = tracker.live();
  EXPECT_EQ(stepped[Category::Optimizer], 2 * kParameterBytes);
  EXPECT_EQ(stepped[Category::Other], 0u);
  EXPECT_EQ(stepped.total, 4 * kParameterBytes + 32 * 64 * 4);
  EXPECT_EQ(tracker.peak()[Category::Other], 0u);
}

TEST(Tracker, ActivationsAndGradientsCarryTheirRegion) {
  Tracker tracker;
  auto model = std::make_shared<Mlp>();
  at::Tensor loss = model->loss(at::randn({32, 64}));
  const auto forward = tracker.live();
  auto bytes = [](const trace::Snapshot& snapshot, const std::string& name,
                  Category category) -> std::uint64_t {
    for (const auto& region : snapshot.regions)
      if (region.name == name) return region.bytes[static_cast<std::size_t>(category)];
    return 0;
  };
  EXPECT_EQ(bytes(forward, "first", Category::Activation), 32u * (64 + 128 + 128) * 4)
      << "what is saved there, the input that was made outside included";
  EXPECT_GE(bytes(forward, "second", Category::Activation), 32u * 16 * 4);
  loss.backward();
  EXPECT_EQ(bytes(tracker.live(), "first", Category::Gradient), (64 * 128 + 128) * 4u);
}

TEST(Tracker, ParametersAreRecognisedWithoutBeingAdopted) {
  Tracker tracker;
  auto model = std::make_shared<Mlp>();
  model->loss(at::randn({32, 64})).backward();
  EXPECT_EQ(tracker.live()[Category::Parameter], kParameterBytes);
  EXPECT_EQ(tracker.live()[Category::Gradient], kParameterBytes);
}

TEST(Tracker, TensorsOlderThanTheTrackerJoinTheAccountAndLeaveIt) {
  auto model = std::make_shared<Mlp>();
  Tracker tracker;
  EXPECT_EQ(tracker.live_bytes(), 0u);
  EXPECT_EQ(tracker.adopt(model->parameters(), Category::Parameter), 0u);
  EXPECT_EQ(tracker.live()[Category::Parameter], kParameterBytes);
  EXPECT_EQ(tracker.adopt(model->parameters(), Category::Parameter), 0u);
  EXPECT_EQ(tracker.live_bytes(), kParameterBytes) << "adopted once";
  EXPECT_EQ(tracker.allocator_bytes(), kParameterBytes);
  model.reset();
  EXPECT_EQ(tracker.live_bytes(), 0u);
  EXPECT_EQ(tracker.allocator_bytes(), 0u);
}

TEST(Tracker, TensorsThatSurvivedAnEarlierTrackerCanBeAdopted) {
  std::shared_ptr<Mlp> model;
  {
    Tracker earlier;
    model = std::make_shared<Mlp>();
  }
  Tracker tracker;
  EXPECT_EQ(tracker.adopt(model->parameters(), Category::Parameter), 0u);
  EXPECT_EQ(tracker.live_bytes(), kParameterBytes);
}

TEST(Tracker, AFailingSinkInsideAClaimIsToldByTheNextQuestion) {
  struct Full : trace::EventSink {
    void write(const trace::Event&, const trace::NameTable&) override { throw RunError("disk full"); }
  } full;
  Tracker tracker({.sink = &full});
  at::Tensor x;
  {
    auto claim = tracker.claim(Category::Input);
    x = at::ones({4});
  }
  EXPECT_THROW(tracker.live_bytes(), RunError);
  EXPECT_EQ(tracker.live()[Category::Input], 16u);
}

TEST(Tracker, ForeignMemoryIsToldApart) {
  std::vector<float> mine(100);
  void* mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  Tracker tracker;
  {
    std::vector<at::Tensor> foreign = {
        at::from_blob(mine.data(), {100}),
        at::from_blob(mapped, {1024}, [](void* address) { munmap(address, 4096); })};
    EXPECT_EQ(tracker.adopt(foreign, Category::Parameter), 400u + 4096u);
    (foreign[0] + 1).sum();
  }
  EXPECT_EQ(tracker.live_bytes(), 0u);
}

TEST(Tracker, FreesByAnotherThreadAreSeen) {
  Tracker tracker;
  at::Tensor x = at::ones({1000});
  EXPECT_EQ(tracker.live_bytes(), 4000u);
  std::thread([moved = std::move(x)]() mutable { moved.reset(); }).join();
  EXPECT_EQ(tracker.live_bytes(), 0u);
}

TEST(Tracker, AllocationsByAnotherThreadAreSeenAndNobodyClaimsThem) {
  Tracker tracker;
  at::Tensor x;
  std::thread([&] { x = at::ones({1000}); }).join();
  EXPECT_EQ(tracker.live()[Category::Other], 4000u);
}

TEST(Tracker, TensorsThatOutliveItAreFreedQuietly) {
  at::Tensor x, loss;
  {
    Tracker tracker;
    x = at::ones({10}).requires_grad_();
    loss = (x * x).sum();
  }
  loss.backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({10}, 2.0)));
}

TEST(Tracker, TwoInARowStartFromNothing) {
  at::Tensor survivor;
  {
    Tracker tracker;
    survivor = at::ones({10});
    EXPECT_EQ(tracker.peak_bytes(), 40u);
  }
  Tracker tracker;
  survivor.reset();
  EXPECT_EQ(tracker.peak_bytes(), 0u);
  at::Tensor x = at::ones({20});
  EXPECT_EQ(tracker.peak_bytes(), 80u);
}

TEST(Tracker, ResetPeakStartsFromWhatIsLive) {
  Tracker tracker;
  at::Tensor kept = at::ones({10});
  at::ones({1000});
  EXPECT_EQ(tracker.peak_bytes(), 4040u);
  tracker.reset_peak();
  EXPECT_EQ(tracker.peak_bytes(), 40u);
}

TEST(Tracker, MetaTensorsAreCountedWithoutMemory) {
  Tracker tracker({.device = c10::kMeta});
  at::Tensor huge = at::empty({std::int64_t{1} << 40}, at::TensorOptions(at::kFloat).device(at::kMeta));
  EXPECT_EQ(tracker.live_bytes(), std::uint64_t{1} << 42);
  at::Tensor twice = huge + huge;
  EXPECT_EQ(tracker.peak_bytes(), std::uint64_t{1} << 43);
  huge.reset();
  twice.reset();
  EXPECT_EQ(tracker.live_bytes(), 0u);
}

TEST(Tracker, TheBudgetHoldsAndTheErrorCarriesTheAccount) {
  std::uint64_t peak = 0;
  auto step = [](Tracker& tracker) {
    at::manual_seed(1);
    auto model = std::make_shared<Mlp>();
    tracker.adopt(model->parameters(), Category::Parameter);
    model->loss(at::randn({32, 64})).backward();
  };
  {
    Tracker tracker;
    step(tracker);
    peak = tracker.peak_bytes();
  }
  {
    Tracker tracker({.budget_bytes = peak});
    step(tracker);
    EXPECT_EQ(tracker.peak_bytes(), peak);
  }
  Tracker tracker({.budget_bytes = peak - 1});
  try {
    step(tracker);
    FAIL() << "the budget was passed";
  } catch (const OutOfBudget& error) {
    EXPECT_EQ(error.budget_bytes(), peak - 1);
    EXPECT_GT(error.requested_bytes(), 0u);
    EXPECT_GT(error.alive().total + error.requested_bytes(), peak - 1);
    EXPECT_EQ(error.alive()[Category::Parameter], kParameterBytes);
    EXPECT_NE(std::string(error.what()).find("parameters"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("budget"), std::string::npos);
  }
  EXPECT_EQ(tracker.live_bytes(), 0u) << "nothing stays behind after the exception";
  EXPECT_LE(tracker.peak_bytes(), peak - 1);
}

TEST(Tracker, GradientsAreThoseOfAnUnwatchedStep) {
  at::manual_seed(3);
  auto model = std::make_shared<Mlp>();
  const at::Tensor x = at::randn({32, 64});
  model->loss(x).backward();
  std::vector<at::Tensor> plain;
  for (auto& parameter : model->parameters()) {
    plain.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  Tracker tracker;
  model->loss(x).backward();
  for (std::size_t i = 0; i < plain.size(); ++i)
    EXPECT_TRUE(at::equal(model->parameters()[i].grad(), plain[i]));
}

TEST(Tracker, OperatorsSavesAndMarksAreInTheTrace) {
  Collect collect;
  {
    Tracker tracker({.sink = &collect});
    tracker.mark("step 1");
    at::Tensor x = at::ones({4}).requires_grad_();
    (x * x).sum().backward();
    tracker.live_bytes();
  }
  std::map<trace::EventKind, int> kinds;
  std::vector<std::string> ops;
  for (const auto& event : collect.events) {
    ++kinds[event.kind];
    if (event.kind == trace::EventKind::Op) ops.push_back(collect.names[event.name]);
    if (event.kind == trace::EventKind::Mark) {
      EXPECT_EQ(collect.names[event.name], "step 1");
    }
  }
  EXPECT_EQ(kinds[trace::EventKind::Mark], 1);
  EXPECT_EQ(kinds[trace::EventKind::Save], 2);
  EXPECT_EQ(kinds[trace::EventKind::Unpack], 2);
  EXPECT_NE(std::find(ops.begin(), ops.end(), "aten::mul.Tensor"), ops.end());
  for (std::size_t i = 1; i < collect.events.size(); ++i)
    EXPECT_LE(collect.events[i - 1].time_ns, collect.events[i].time_ns);
}

TEST(Tracker, AFailingSinkIsReportedOnceAndTheAccountGoesOn) {
  struct Full : trace::EventSink {
    void write(const trace::Event&, const trace::NameTable&) override { throw RunError("disk full"); }
  } full;
  Tracker tracker({.sink = &full});
  at::Tensor x = at::ones({4});
  EXPECT_THROW(tracker.live_bytes(), RunError);
  x.reset();
  EXPECT_EQ(tracker.live_bytes(), 0u);
}

TEST(Tracker, InsideARecordingItOnlyWatches) {
  at::Tensor x = at::randn({64, 64}).requires_grad_();
  const auto dropped = [&](bool tracker_first) {
    std::optional<Tracker> tracker;
    if (tracker_first) tracker.emplace();
    tape::Recording recording(tape::Fates::recompute());
    if (!tracker_first) tracker.emplace();
    region("watched", [&] { return at::tanh(at::exp(x)).sum(); }).backward();
    tracker.reset();
    return recording.totals().at("watched").dropped_values;
  };
  EXPECT_EQ(dropped(true), 2u);
  EXPECT_EQ(dropped(false), 2u);
}

TEST(Tracker, InsideARecordingItSeesWhatIsKept) {
  at::Tensor x = at::randn({64, 64}).requires_grad_();
  tape::Recording recording(tape::Fates::keep());
  Tracker tracker;
  at::Tensor loss = region("watched", [&] { return at::tanh(at::exp(x)).sum(); });
  EXPECT_EQ(tracker.live()[Category::Activation], 2u * 64 * 64 * sizeof(float));
}

constexpr std::int64_t k64MiB = 64 << 20;

TEST(Tracker, OneThatEndsBeforeAnInnerOneTakesItsLimitAndNoOther) {
  auto outer = std::make_unique<Tracker>(TrackerOptions{.budget_bytes = k64MiB});
  auto inner = std::make_unique<Tracker>(TrackerOptions{.budget_bytes = 2 * k64MiB});
  at::Tensor x = at::ones({1000});
  outer.reset();
  at::empty({k64MiB + 1}, at::kByte);
  EXPECT_THROW(at::empty({2 * k64MiB + 1}, at::kByte), OutOfBudget);
  EXPECT_EQ(inner->live_bytes(), 4000u);
  x = at::ones({10});
  EXPECT_EQ(inner->live_bytes(), 40u);
  EXPECT_EQ(inner->allocator_bytes(), 40u);
  inner.reset();
  at::empty({2 * k64MiB + 1}, at::kByte);
  EXPECT_EQ(current_resource(c10::kCPU), default_resource(c10::kCPU));
}

TEST(Tracker, OneThatEndsFirstOnItsOwnThreadLeavesNothingBehind) {
  auto outer = std::make_unique<Tracker>(TrackerOptions{.budget_bytes = k64MiB});
  std::atomic<bool> begun = false, may_end = false;
  std::thread other([&] {
    Tracker inner;
    begun = true;
    while (!may_end) std::this_thread::yield();
  });
  while (!begun) std::this_thread::yield();
  outer.reset();
  may_end = true;
  other.join();
  at::empty({2 * k64MiB}, at::kByte);
}

TEST(Tracker, AnInnerOneAdoptsWhatNoneOfTheOthersKnows) {
  Tracker outer;
  at::Tensor x;
  {
    Tracker in_between;
    x = at::ones({1000});
  }
  at::Tensor y = at::ones({1000});
  Tracker middle, inner;
  EXPECT_EQ(inner.adopt({x, y}, Category::Parameter), 0u);
  EXPECT_EQ(inner.live_bytes(), 8000u);
  EXPECT_EQ(middle.allocator_bytes(), 0u);
  x.reset();
  y.reset();
  for (Tracker* tracker : {&outer, &middle, &inner}) {
    EXPECT_EQ(tracker->live_bytes(), 0u);
    EXPECT_EQ(tracker->allocator_bytes(), 0u);
  }
}

TEST(Tracker, TwoOnOneThreadSeeOperatorsUntilEachEnds) {
  auto first = std::make_unique<Tracker>();
  Collect collect;
  auto second = std::make_unique<Tracker>(TrackerOptions{.sink = &collect});
  first.reset();
  at::Tensor x = at::ones({4}).requires_grad_();
  at::Tensor y = (x * x).sum();
  EXPECT_EQ(second->live()[Category::Parameter], 16u);
  second.reset();
  EXPECT_EQ(std::ranges::count(collect.events, trace::EventKind::Save, &trace::Event::kind), 2);
  EXPECT_FALSE(c10::impl::tls_is_dispatch_key_included(hooks::kOperatorKey));
}

TEST(ProcessMemory, OnTheCpuTheResidentSetIsLargerThanTheTensors) {
  at::Tensor x = at::ones({1 << 20});
  const auto memory = process_memory(c10::kCPU, 4 << 20);
  EXPECT_EQ(memory.allocated_bytes, 4u << 20);
  EXPECT_EQ(memory.reserved_bytes, 4u << 20);
  EXPECT_GT(memory.process_bytes, memory.reserved_bytes);
  EXPECT_EQ(memory.outside_bytes(), memory.process_bytes - memory.reserved_bytes);
}

}  // namespace
}  // namespace snug::memory
