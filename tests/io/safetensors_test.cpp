#include "snug/io/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "snug/base/error.h"
#include "snug/io/safetensors_writer.h"
#include "tests/io/raw_safetensors.h"
#include "tests/support/temporary_folder.h"

namespace snug::io {
namespace {

using testing::message_of;
using testing::safetensors_bytes;
using testing::TemporaryFolder;

class Safetensors : public ::testing::Test {
 protected:
  std::string refusal(const std::string& bytes) {
    testing::write_file(folder_ / "x.safetensors", bytes);
    const std::string message = message_of<Error>([&] { SafetensorsFile file(folder_ / "x.safetensors"); });
    const std::string name = (folder_ / "x.safetensors").string();
    EXPECT_TRUE(message.starts_with(name)) << message;
    return message.substr(std::min(name.size(), message.size()));
  }

  std::string refusal_of_entry(const std::string& entry, const std::string& data = "12345678") {
    return refusal(safetensors_bytes(R"({"a": )" + entry + "}", data));
  }

  TemporaryFolder folder_;
};

TEST_F(Safetensors, GivesBackWhatWasWritten) {
  std::vector<at::Tensor> tensors;
  for (const auto dtype :
       {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kByte, at::kBool})
    tensors.push_back(at::randint(2, {3, 5}, at::kLong).to(dtype));
  tensors.push_back(at::zeros({0, 4}));
  tensors.push_back(at::scalar_tensor(2.5));
  tensors.push_back(at::randn({4, 6}).t());  // not contiguous
  std::vector<TensorSource> sources;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    sources.push_back(source_of("t" + std::to_string(i), tensors[i]));
  write_safetensors(folder_ / "x.safetensors", sources, {{"format", "pt"}});

  const SafetensorsFile file(folder_ / "x.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.entries().size(), tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorEntry* entry = file.find("t" + std::to_string(i));
    ASSERT_NE(entry, nullptr);
    const at::Tensor read = file.tensor(*entry);
    EXPECT_EQ(read.scalar_type(), tensors[i].scalar_type());
    EXPECT_TRUE(at::equal(read, tensors[i])) << i;
    file.release(*entry);
    EXPECT_TRUE(at::equal(file.tensor(*entry), tensors[i])) << "after release";
  }
  EXPECT_EQ(file.find("t99"), nullptr);
}

TEST_F(Safetensors, ATensorIsAViewOfTheMapAndOutlivesTheFile) {
  const at::Tensor wide = at::randn({1000});
  write_safetensors(folder_ / "x.safetensors", {source_of("a", wide), source_of("b", wide)});
  at::Tensor a, b;
  {
    const SafetensorsFile file(folder_ / "x.safetensors");
    a = file.tensor(*file.find("a"));
    b = file.tensor(*file.find("b"));
  }
  EXPECT_EQ(static_cast<const char*>(b.const_data_ptr()) - static_cast<const char*>(a.const_data_ptr()),
            4000);
  EXPECT_TRUE(at::equal(a, wide));
}

// 100,000 of them are the states of a model of 2,800 layers.
TEST_F(Safetensors, AsManyTensorsAsADeepModelHasAreReadAgain) {
  const at::Tensor value = at::ones({1});
  std::vector<TensorSource> sources;
  for (int i = 0; i < 100'000; ++i) sources.push_back(source_of("t" + std::to_string(i), value));
  write_safetensors(folder_ / "x.safetensors", sources);
  const SafetensorsFile file(folder_ / "x.safetensors");
  EXPECT_EQ(file.entries().size(), sources.size());
  EXPECT_NE(file.find("t99999"), nullptr);
}

TEST_F(Safetensors, IsNotWrittenIfItCouldNotBeRead) {
  const at::Tensor value = at::ones({1});
  const std::string long_name(1'000'000, 'x');
  std::vector<TensorSource> sources;
  for (int i = 0; i < 100; ++i) sources.push_back(source_of(long_name + std::to_string(i), value));
  const std::string message =
      message_of<Error>([&] { write_safetensors(folder_ / "x.safetensors", sources); });
  EXPECT_NE(message.find("100 tensors need a header of 1000"), std::string::npos) << message;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "x.safetensors"));
}

TEST_F(Safetensors, CopiesWhatIsNotAligned) {
  testing::write_file(folder_ / "x.safetensors",
                      safetensors_bytes(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                        R"("a":{"dtype":"I32","shape":[1],"data_offsets":[1,5]}})",
                                        std::string("\x07\x01\x00\x00\x00", 5)));
  const SafetensorsFile file(folder_ / "x.safetensors");
  EXPECT_EQ(file.tensor(*file.find("a")).item<int>(), 1);
  EXPECT_EQ(file.entries()[0].name, "b");
}

TEST_F(Safetensors, RefusesLengthsThatLie) {
  EXPECT_EQ(refusal("1234"), ": expected a safetensors file, got a file of 4 bytes");
  std::string huge(8, '\0');
  huge[7] = 0x10;  // 2^60
  EXPECT_NE(refusal(huge).find("announce a header of 1152921504606846976 bytes"), std::string::npos);
  EXPECT_NE(refusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\n").find("git lfs pull"),
            std::string::npos);
  EXPECT_NE(refusal(safetensors_bytes("{}", "").substr(0, 9)).find("cut short"), std::string::npos);
  EXPECT_NE(refusal(safetensors_bytes("{}", "x")).find("the tensors end at byte 10, the file at 11"),
            std::string::npos);
  EXPECT_NE(refusal(safetensors_bytes(" {}", "")).find("must begin with '{'"), std::string::npos);
}

TEST_F(Safetensors, RefusesOffsetsThatLie) {
  const auto floats = [](const std::string& shape, const std::string& offsets) {
    return R"({"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  EXPECT_NE(refusal_of_entry(floats("[2]", "[0,9]")).find("do not lie in the file's 8 bytes"),
            std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("[2]", "[8,0]")).find("do not lie"), std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("[3]", "[0,8]")).find("hold 8 bytes, shape and dtype need 12"),
            std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("[1]", "[4,8]")).find("leaves a hole"), std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("[4611686018427387904,4]", "[0,8]")).find("more than 2^63"),
            std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("[-1]", "[0,8]")).find("integers from 0"), std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("[2.0]", "[0,8]")).find("integers from 0"), std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("2", "[0,8]")).find("must be a list"), std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("[2]", "[0]")).find("must be [begin, end]"), std::string::npos);
  EXPECT_NE(refusal_of_entry(floats("[2]", "[0,8.5]")).find("must be [begin, end]"), std::string::npos);
  EXPECT_NE(refusal(safetensors_bytes(
                        R"({"a":)" + floats("[2]", "[0,8]") + R"(,"b":)" + floats("[2]", "[0,8]") + "}",
                        "12345678"))
                .find("overlaps"),
            std::string::npos);
}

TEST_F(Safetensors, RefusesHeadersThatAreNoHeaders) {
  EXPECT_NE(refusal(safetensors_bytes("{\"a\": ", "")).find("header"), std::string::npos);
  EXPECT_NE(refusal_of_entry("3").find("expected an object"), std::string::npos);
  EXPECT_NE(
      refusal_of_entry(R"({"dtype":"F4","shape":[16],"data_offsets":[0,8]})").find("'F4' is not supported"),
      std::string::npos);
  EXPECT_NE(refusal_of_entry(R"({"shape":[2],"data_offsets":[0,8]})").find("dtype"), std::string::npos);
  EXPECT_NE(refusal_of_entry(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})").find("x"),
            std::string::npos);
  const std::string entry = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_NE(refusal(safetensors_bytes("{" + entry + "," + entry + "}", "12345678")).find("twice"),
            std::string::npos);
  EXPECT_NE(refusal(safetensors_bytes(R"({"__metadata__":{"a":1}})", "")).find("must hold strings"),
            std::string::npos);
}

TEST_F(Safetensors, WritesNothingForANameThatIsTaken) {
  const at::Tensor one = at::ones({1});
  EXPECT_THROW(write_safetensors(folder_ / "y.safetensors", {source_of("a", one), source_of("a", one)}),
               Error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "y.safetensors"));
}

}  // namespace
}  // namespace snug::io
