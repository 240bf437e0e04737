#include "snug/plan/hardware.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "snug/base/bytes.h"
#include "snug/base/error.h"
#include "snug/plan/planner.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"

namespace snug::plan {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using testing::write_file;

const std::vector<const char*> kPositive = {"matmul_flops_fp32", "matmul_flops_bf16", "attention_flops",
                                            "memory_rate",       "adam_rate",         "peer_rate",
                                            "network_rate"};
const std::vector<const char*> kLinks = {"to_host_rate", "to_device_rate", "both_ways_rate"};
const std::vector<const char*> kMayBeZero = {"operation_seconds", "copy_slowdown", "disk_rate"};

std::string refusal(const Json& json) {
  return message_of<Error>([&] { from_json(json, "h.json"); });
}

std::string refusal(const std::string& key, Json value, const char* name = "h200") {
  Json json = to_json(preset(name));
  json[key] = std::move(value);
  return refusal(json);
}

// Numbers whose shortest decimal form is long, and the largest size that JSON integers of ours hold.
Hardware uneven() {
  return {
      .name = "caf\u00e9 \"1\"\n",
      .is_gpu = true,
      .is_estimate = false,
      .memory_bytes = std::numeric_limits<std::int64_t>::max(),
      .outside_bytes = 1,
      .host_bytes = 3,
      .matmul_flops_fp32 = 1e13 / 3,
      .matmul_flops_bf16 = std::nextafter(7e14, 8e14),
      .attention_flops = 0.1 + 0.2,
      .memory_rate = std::numeric_limits<double>::max(),
      .to_host_rate = std::numeric_limits<double>::denorm_min(),
      .to_device_rate = 5.5e10,
      .both_ways_rate = 1e11 / 7,
      .copy_slowdown = 0.1 + 0.2,
      .operation_seconds = 1.0 / 7e6,
      .adam_rate = 1e9 / 3,
      .peer_rate = 1e11 / 3,
      .network_rate = 1e10 / 7,
      .ranks_per_network = 3,
      .disk_rate = 1e9 / 7,
      .operators = {{{.name = "aten::mm", .flops = 1e12 / 3, .bytes = 12, .low_precision = true}, 1e-3 / 7},
                    {{.name = "attention", .flops = 2, .is_attention = true}, 1}}};
}

TEST(Hardware, AGpuIsKnownByItsNameAndMemory) {
  EXPECT_EQ(preset_like("NVIDIA H200", 140_GiB).name, "h200");
  EXPECT_EQ(preset_like("NVIDIA H100 80GB HBM3", 80_GiB).name, "h100");
  EXPECT_EQ(preset_like("NVIDIA A100-SXM4-40GB", 40_GiB).name, "a100-40");
  EXPECT_EQ(preset_like("NVIDIA A100-SXM4-80GB", 79_GiB).name, "a100-80");
  EXPECT_EQ(preset_like("NVIDIA GeForce RTX 4090", 24_GiB).name, "rtx4090");
  EXPECT_EQ(preset_like("NVIDIA L4", 22_GiB).name, "l4");
  EXPECT_EQ(preset_like("NVIDIA L40S", 45_GiB).name, "h200") << "not an l4";
  EXPECT_EQ(preset_like("NVIDIA L40S", 45_GiB).memory_bytes, 45_GiB);
}

TEST(Hardware, EveryPresetIsValidAndAnEstimate) {
  for (const Hardware& hardware : presets()) {
    EXPECT_NO_THROW(validate(hardware, hardware.name));
    EXPECT_TRUE(hardware.is_estimate) << hardware.name;
    EXPECT_EQ(preset(hardware.name), hardware);
    EXPECT_EQ(load_hardware(hardware.name), hardware);
  }
}

TEST(Hardware, OnlyAGpuHasLinksAndAnOutside) {
  for (const Hardware& hardware : presets()) {
    EXPECT_EQ(hardware.is_gpu, hardware.name != "cpu");
    EXPECT_EQ(hardware.to_host_rate > 0, hardware.is_gpu) << hardware.name;
    EXPECT_EQ(hardware.to_device_rate > 0, hardware.is_gpu) << hardware.name;
    EXPECT_EQ(hardware.both_ways_rate > 0, hardware.is_gpu) << hardware.name;
    EXPECT_EQ(hardware.copy_slowdown > 0, hardware.is_gpu) << hardware.name;
    EXPECT_EQ(hardware.outside_bytes, hardware.is_gpu ? kUsualOutside : 0) << hardware.name;
  }
}

TEST(Hardware, TheH200IsWhatWasMeasured) {
  const Hardware h200 = preset("h200");
  EXPECT_NEAR(h200.matmul_flops_bf16, 725e12, 5e12);
  EXPECT_NEAR(h200.attention_flops, 530e12, 5e12);
  EXPECT_NEAR(h200.memory_rate, 4.2e12, 1e9);
  EXPECT_EQ(h200.to_host_rate, 55e9);
  EXPECT_NEAR(h200.both_ways_rate, 101e9, 1);
  EXPECT_EQ(h200.copy_slowdown, 0.07);
  EXPECT_EQ(h200.adam_rate, 4.5e9);
  EXPECT_EQ(h200.disk_rate, 1.4e9);
  EXPECT_EQ(h200.host_bytes, 125_GiB);
}

TEST(Hardware, SurvivesAWriteAndAReadExactly) {
  TemporaryFolder folder;
  std::vector<Hardware> all = presets();
  all.push_back(uneven());
  for (const Hardware& hardware : all) {
    EXPECT_EQ(from_json(to_json(hardware), "h.json"), hardware) << hardware.name;
    write_file(folder / "h.json", to_json(hardware).dump(2));
    EXPECT_EQ(load_hardware((folder / "h.json").string()), hardware) << hardware.name;
    save_hardware(hardware, folder / "saved.json");
    EXPECT_EQ(load_hardware((folder / "saved.json").string()), hardware) << hardware.name;
  }
}

TEST(Hardware, IsSavedWholeOrNotAtAll) {
  TemporaryFolder folder;
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path()),
                         std::filesystem::directory_iterator{});
  };
  const std::filesystem::path path = folder / "h.json";
  save_hardware(preset("h100"), path);
  {
    const testing::FileSizeLimit full(16);
    EXPECT_EQ(message_of<RunError>([&] { save_hardware(preset("h200"), path); }).find(path.string()), 0u);
  }
  EXPECT_EQ(load_hardware(path.string()), preset("h100")) << "the old one stays";
  std::filesystem::create_directory(folder / "d");
  const std::string message = message_of<Error>([&] { save_hardware(preset("h200"), folder / "d"); });
  EXPECT_EQ(message.find((folder / "d").string() + ": cannot write: "), 0u) << message;
  EXPECT_EQ(message_of<Error>([&] { save_hardware({}, folder / "empty"); }),
            (folder / "empty").string() + ": name must not be empty");
  EXPECT_EQ(files(), 2) << "nothing half-written";
}

TEST(Hardware, AcceptsIntegersAsRates) {
  Json json = to_json(preset("cpu"));
  json["memory_rate"] = 8000000000;
  json["operation_seconds"] = 0;
  EXPECT_EQ(from_json(json, "h.json").memory_rate, 8e9);
  EXPECT_EQ(from_json(json, "h.json").operation_seconds, 0);
}

TEST(Hardware, ListsThePresetsForAnUnknownName) {
  EXPECT_EQ(preset_names(), "h200, h100, a100-40, a100-80, rtx4090, rtx3090, l4, cpu");
  EXPECT_EQ(message_of<Error>([] { preset("h300"); }),
            "no hardware preset h300: expected one of " + preset_names());
  EXPECT_EQ(message_of<Error>([] { load_hardware("h300"); }),
            "no hardware h300: expected a preset (" + preset_names() + ") or a file that snug probe wrote");
  EXPECT_EQ(message_of<Error>([] { load_hardware(""); }).find("no hardware : expected a preset"), 0u);
}

TEST(Hardware, NamesTheFileThatCannotBeRead) {
  TemporaryFolder folder;
  const std::string folder_path = folder.path().string();
  EXPECT_EQ(message_of<Error>([&] { load_hardware(folder_path); }),
            folder_path + ": is a folder, expected a file");
  const std::string path = (folder / "h.json").string();
  write_file(path, "{\"name\": ");
  const std::string message = message_of<Error>([&] { load_hardware(path); });
  EXPECT_EQ(message.find(path + ": not valid JSON"), 0u) << message;
  const std::string below_a_file = path + "/h.json";
  EXPECT_NE(message_of<Error>([&] { load_hardware(below_a_file); }).find(below_a_file), std::string::npos);
}

TEST(Hardware, NamesTheFileAndTheKeyOfABadValue) {
  TemporaryFolder folder;
  const std::string path = (folder / "h.json").string();
  Json json = to_json(preset("h100"));
  json["memory_rate"] = 0;
  write_file(path, json.dump());
  EXPECT_EQ(message_of<Error>([&] { load_hardware(path); }),
            path + ": memory_rate must be finite and above 0, got 0");
}

TEST(Hardware, RefusesANumberThatNoDoubleHolds) {
  TemporaryFolder folder;
  const std::string path = (folder / "h.json").string();
  write_file(path, R"({"name": "x", "memory_rate": 1e999})");
  const std::string message = message_of<Error>([&] { load_hardware(path); });
  EXPECT_EQ(message.find(path), 0u) << message;
  EXPECT_NE(message.find("1e999"), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

TEST(Hardware, NamesEveryKeyThatIsMissing) {
  const Json whole = to_json(preset("h200"));
  for (const auto& [key, value] : whole.items()) {
    Json json = whole;
    json.erase(key);
    EXPECT_EQ(refusal(json),
              "h.json: \"" + key + "\" is missing; if an older snug wrote this file, run 'snug probe' again");
  }
}

TEST(Hardware, NamesEveryKeyWithAValueOfTheWrongType) {
  const Json whole = to_json(preset("h200"));  // outlives the loop over it
  for (const auto& [key, value] : whole.items()) {
    for (const Json& wrong : {Json(nullptr), Json::array(), Json::object()}) {
      if (value.type() == wrong.type()) continue;
      EXPECT_EQ(refusal(key, wrong).find("h.json: \"" + key + "\" must be "), 0u) << refusal(key, wrong);
    }
    const Json other = value.is_string() ? Json(1) : Json("1");
    EXPECT_EQ(refusal(key, other).find("h.json: \"" + key + "\" must be "), 0u) << refusal(key, other);
  }
}

TEST(Hardware, RefusesNumbersAsFlagsAndFractionsAsSizes) {
  EXPECT_EQ(refusal("is_gpu", 1), "h.json: \"is_gpu\" must be true or false, got the number 1");
  EXPECT_EQ(refusal("memory_bytes", 1.5), "h.json: \"memory_bytes\" must be an integer, got the number 1.5");
  EXPECT_EQ(refusal("outside_bytes", std::numeric_limits<std::uint64_t>::max()),
            "h.json: \"outside_bytes\" must be an integer, got the number 18446744073709551615");
}

TEST(Hardware, NamesAKeyItDoesNotKnow) {
  EXPECT_EQ(refusal("nvlink_rate", 9e11),
            "h.json: unknown key \"nvlink_rate\": remove it or correct its spelling");
}

TEST(Hardware, RefusesWhatIsNotAnObject) {
  EXPECT_EQ(refusal(Json::array()), "h.json: expected a JSON object, got an array");
}

TEST(Hardware, RefusesRatesThatAreNotPositiveAndFinite) {
  for (const char* key : kPositive) {
    for (double value : {0.0, -1.0, HUGE_VAL, std::nan("")}) {
      for (const char* name : {"h200", "cpu"}) {
        EXPECT_EQ(refusal(key, value, name),
                  concat("h.json: ", key, " must be finite and above 0, got ", value));
      }
    }
  }
}

TEST(Hardware, LetsOnlyTheCpuBeWithoutLinks) {
  for (const char* key : kLinks) {
    for (double value : {0.0, -1.0, HUGE_VAL, std::nan("")})
      EXPECT_EQ(refusal(key, value), concat("h.json: ", key, " must be finite and above 0, got ", value));
    for (double value : {-1.0, HUGE_VAL, std::nan("")}) {
      EXPECT_EQ(refusal(key, value, "cpu"),
                concat("h.json: ", key, " must be finite and at least 0, got ", value));
    }
  }
}

TEST(Hardware, LetsSomeBeZeroButNotLess) {
  for (const char* key : kMayBeZero) {
    for (double value : {-1e-6, HUGE_VAL, std::nan("")})
      EXPECT_EQ(refusal(key, value), concat("h.json: ", key, " must be finite and at least 0, got ", value));
    Json json = to_json(preset("h200"));
    json[key] = 0;
    EXPECT_NO_THROW(from_json(json, "h.json")) << key;
  }
}

TEST(Hardware, RefusesOperatorsThatCannotBe) {
  const auto with = [](const char* key, Json value) {
    Json entry = to_json(uneven())["operators"][0];
    entry[key] = std::move(value);
    return refusal("operators", Json::array({entry}));
  };
  EXPECT_EQ(refusal("operators", 3), "h.json: \"operators\" must be a list, got 3");
  EXPECT_EQ(with("seconds", 0), "h.json: operators: aten::mm: seconds must be finite and above 0, got 0");
  EXPECT_EQ(with("bytes", -1), "h.json: operators: aten::mm: bytes must be finite and at least 0, got -1");
  EXPECT_NE(with("name", 1).find("operators"), std::string::npos);
  EXPECT_NE(with("other", 1).find("other"), std::string::npos);
}

TEST(Hardware, RefusesSizesThatLeaveNothing) {
  EXPECT_EQ(refusal("memory_bytes", 0), "h.json: memory_bytes must be at least 1, got 0");
  EXPECT_EQ(refusal("memory_bytes", -8), "h.json: memory_bytes must be at least 0, got -8");
  EXPECT_EQ(refusal("host_bytes", 0), "h.json: host_bytes must be at least 1, got 0");
  EXPECT_EQ(refusal("host_bytes", -1), "h.json: host_bytes must be at least 0, got -1");
  EXPECT_EQ(refusal("outside_bytes", -1), "h.json: outside_bytes must be at least 0, got -1");
  EXPECT_EQ(refusal("memory_bytes", 922 << 20),
            "h.json: outside_bytes must be below memory_bytes 966787072, got 966787072");
  EXPECT_EQ(refusal("name", ""), "h.json: name must not be empty");
}

}  // namespace
}  // namespace snug::plan
