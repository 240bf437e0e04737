// Sketches with the plans that are expected for them, as data: tests/plans/*.json. Adding one needs no
// compiler. On a failure the scenario is shown as it would have to be.
#include <gtest/gtest.h>

#include <set>

#include "snug/base/bytes.h"
#include "snug/base/json.h"
#include "snug/plan/fitted.h"
#include "tests/plan/sketched_step.h"

namespace snug::plan {
namespace {

Json decided(Planner& planner, const Hardware& hardware, const std::string& budget) {
  const std::uint64_t bytes = parse_bytes(budget);
  const Decision decision = decide_within(planner, bytes, {hardware.is_gpu ? hardware.memory_bytes : 0});
  return {{"budget", budget},
          {"fits", decision.fits},
          {"plain_bytes", decision.plain.peak_bytes},
          {"peak_bytes", decision.taken.peak_bytes},
          {"host_bytes", decision.taken.host_bytes},
          {"step_seconds", decision.taken.seconds},
          {"binds", decision.binds},
          {"levers", to_json(decision.levers)}};
}

// Numbers that are not whole may differ in their last digits.
bool is_alike(const Json& expected, const Json& came) {
  if (expected.is_number_float() || came.is_number_float())
    return expected.is_number() && came.is_number() &&
           std::abs(expected.get<double>() - came.get<double>()) <= 1e-6 * std::abs(came.get<double>());
  if (expected.type() != came.type() && !(expected.is_number() && came.is_number())) return false;
  if (!expected.is_structured()) return expected == came;
  if (expected.size() != came.size()) return false;
  if (expected.is_array()) return std::equal(expected.begin(), expected.end(), came.begin(), is_alike);
  for (const auto& [key, value] : expected.items())
    if (!came.contains(key) || !is_alike(value, came[key])) return false;
  return true;
}

TEST(Scenarios, HaveTheirPlans) {
  std::set<std::filesystem::path> scenarios;
  for (const auto& file : std::filesystem::directory_iterator(SNUG_PLANS))
    if (file.path().extension() == ".json") scenarios.insert(file.path());
  ASSERT_GE(scenarios.size(), 3u);
  for (const auto& path : scenarios) {
    const Json expected = read_json(path);
    const Hardware hardware = preset(expected["hardware"].get<std::string>());
    const auto model =
        model_of(expected["sketch"].get<std::string>(), hardware, expected["passes"].get<double>());
    Planner planner({{.model = model}}, overhead_of(hardware));
    Json came = expected;
    came["plans"] = Json::array();
    for (const Json& plan : expected["plans"])
      came["plans"].push_back(decided(planner, hardware, plan["budget"].get<std::string>()));
    EXPECT_TRUE(is_alike(expected, came)) << path.filename() << " would be\n" << came.dump(1);
  }
}

}  // namespace
}  // namespace snug::plan
