// The steps in tests/plans, which tests/capture/sketch_files_test.cpp writes, and random fates for their
// values.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "snug/plan/cost.h"
#include "snug/plan/step_model.h"
#include "snug/trace/sketch_file.h"

namespace snug::plan {

inline constexpr const char* kSketches[] = {"llama_on_cpu", "llama_on_gpu", "convolutions"};

inline Sketch load_step(const std::string& name) {
  return trace::load_sketch(std::filesystem::path(SNUG_PLANS) / (name + ".sketch"));
}

inline std::shared_ptr<const StepModel> model_of(const std::string& name, const Hardware& hardware,
                                                 double passes = 1) {
  return std::make_shared<const StepModel>(
      load_step(name), passes, [&](const trace::Work& work) { return seconds(work, hardware); },
      links_of(hardware));
}

// One list per call; those of one region are alike.
inline std::vector<std::vector<Fate>> random_fates(const Timeline& timeline, std::mt19937& random) {
  const double recomputed = std::uniform_real_distribution<double>(0, 1)(random);
  std::map<std::string, std::vector<Fate>> by_region;
  std::vector<std::vector<Fate>> fates;
  for (std::size_t call = 0; call < timeline.sketch().calls.size(); ++call) {
    const trace::RegionTape& tape = timeline.sketch().calls[call].tape;
    auto& drawn = by_region[tape.region];
    while (drawn.size() < tape.values.size())
      drawn.push_back(std::bernoulli_distribution(recomputed)(random) ? Fate::Recompute
                      : random() % 2 == 0                             ? Fate::Keep
                                                                      : Fate::Offload);
    fates.push_back(timeline.allowed(call, drawn));
  }
  return fates;
}

}  // namespace snug::plan
