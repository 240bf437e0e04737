// Reading JSON, and what a user is told when it is wrong.
#include "snug/base/json.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>

#include "tests/support/temporary_folder.h"

namespace snug {
namespace {

using testing::message_of;
using testing::TemporaryFolder;
using testing::write_file;

std::string parse_error(const std::string& text) {
  return message_of<Error>([&] { parse_json(text, "x.json"); });
}

TEST(ReadJson, KeepsTheOrderOfKeys) {
  const TemporaryFolder folder;
  write_file(folder / "a.json", R"({"z": 1, "a": [true, null, {"z": 2}]})");
  EXPECT_EQ(read_json(folder / "a.json").dump(), R"({"z":1,"a":[true,null,{"z":2}]})");
}

TEST(ReadJson, NamesTheFileThatIsMissingAFolderOrEmpty) {
  const TemporaryFolder folder;
  const auto missing = folder / "missing.json";
  EXPECT_EQ(message_of<Error>([&] { read_json(missing); }),
            missing.string() + ": cannot open: No such file or directory");
  EXPECT_EQ(message_of<Error>([&] { read_json(folder.path()); }),
            folder.path().string() + ": is a folder, expected a file");
  write_file(folder / "empty.json", "");
  const std::string message = message_of<Error>([&] { read_json(folder / "empty.json"); });
  EXPECT_TRUE(
      message.starts_with((folder / "empty.json").string() + ": not valid JSON: parse error at line 1"))
      << message;
}

TEST(ReadJson, SaysWhereParsingFailedInOneLine) {
  const std::string message = parse_error("{\n  \"a\": 1,\n  \"b\": oops\n}\n");
  EXPECT_TRUE(message.starts_with("x.json: not valid JSON: parse error at line 3, column 8: ")) << message;
  EXPECT_EQ(message.find('\n'), message.npos);
}

TEST(ReadJson, RefusesWhatIsNotJson) {
  for (const char* text : {"{\"a\": 1} x", "{'a': 1}", "{\"a\": 1,}", "{\"a\" 1}", "{\"a\": NaN}",
                           "{\"a\": 01}", "{", "{\"a\": \"\xff\"}", "{\"a\": 1e999}", "{\"a\": \"\n\"}"}) {
    const std::string message = parse_error(text);
    EXPECT_TRUE(message.starts_with("x.json: not valid JSON: ")) << message;
    EXPECT_EQ(message.find('\n'), message.npos) << message;
  }
}

TEST(ReadJson, ShortensTheMessageAboutAnEndlessToken) {
  EXPECT_LT(parse_error("{\"a\": \"" + std::string(100'000, 'x')).size(), 400u);
}

TEST(ReadJson, RefusesAKeyGivenTwice) {
  EXPECT_EQ(parse_error(R"({"a": 1, "a": 1})"), R"(x.json: the key "a" appears twice in one object)");
  EXPECT_EQ(parse_error(R"([{"b": {"a": 1, "c": [], "a": 1}}])"),
            R"(x.json: the key "a" appears twice in one object)");
  EXPECT_NO_THROW(parse_json(R"({"a": {"a": 1}, "b": {"a": 1}})", "x.json"));
}

TEST(ReadJson, RefusesATopLevelThatIsNotAnObject) {
  EXPECT_EQ(parse_error("[1]"), "x.json: expected a JSON object, got an array");
  EXPECT_EQ(parse_error("3"), "x.json: expected a JSON object, got the number 3");
  EXPECT_EQ(parse_error("null"), "x.json: expected a JSON object, got null");
}

TEST(ReadJson, RefusesNestingThatWouldOverflowTheStack) {
  const std::string deep = "{\"a\": " + std::string(1'000'000, '[');
  EXPECT_EQ(parse_error(deep), "x.json: nested deeper than 200 levels");
  EXPECT_NO_THROW(parse_json("{\"a\": " + std::string(150, '[') + std::string(150, ']') + "}", "x.json"));
}

TEST(ReadJson, TakesAsManyKeysAsATextOfItsLengthCanMean) {
  std::string many = "{\"first\": 0", dense = many;
  for (int i = 0; i < 100'000; ++i) {
    many += ",\"tensor " + std::to_string(i) + "\":0";
    dense += ",\"" + std::to_string(i) + "\":0";
  }
  const Json read = parse_json(many + "}", "x.json");
  EXPECT_EQ(read.size(), 100'001u);
  EXPECT_EQ(read.begin().key(), "first");
  EXPECT_EQ(std::prev(read.end()).key(), "tensor 99999");
  EXPECT_TRUE(parse_error(dense + "}").ends_with(" keys")) << parse_error(dense + "}");
  EXPECT_EQ(parse_error(many + ",\"tensor 7\":0}"),
            R"(x.json: the key "tensor 7" appears twice in one object)");
}

class Reader : public ::testing::Test {
 protected:
  JsonReader reader_{
      parse_json(R"({"yes": true, "count": 7, "low": -7, "rate": 0.5, "name": "llama", "none": null,
                                    "list": [1], "inner": {"a": 1}, "whole": 1.0, "huge": 18446744073709551615})",
                 "config.json"),
      "config.json"};

  template <class T>
  std::string error(const std::string& key) {
    return message_of<Error>([&] { reader_.required<T>(key); });
  }
};

TEST_F(Reader, GivesEveryType) {
  EXPECT_TRUE(reader_.required<bool>("yes"));
  EXPECT_EQ(reader_.required<std::int64_t>("count"), 7);
  EXPECT_EQ(reader_.required<std::int64_t>("low"), -7);
  EXPECT_EQ(reader_.required<double>("rate"), 0.5);
  EXPECT_EQ(reader_.required<double>("count"), 7.0);
  EXPECT_EQ(reader_.required<std::string>("name"), "llama");
  EXPECT_EQ(reader_.required<Json>("list"), Json({1}));
  EXPECT_TRUE(reader_.required<Json>("none").is_null());
}

TEST_F(Reader, NamesTheKeyWhatWasExpectedAndWhatCame) {
  EXPECT_EQ(error<std::int64_t>("name"), R"(config.json: "name" must be an integer, got the string "llama")");
  EXPECT_EQ(error<std::int64_t>("whole"), R"(config.json: "whole" must be an integer, got the number 1.0)");
  EXPECT_EQ(error<std::int64_t>("huge"),
            R"(config.json: "huge" must be an integer, got the number 18446744073709551615)");
  EXPECT_EQ(error<std::int64_t>("yes"), R"(config.json: "yes" must be an integer, got true)");
  EXPECT_EQ(error<std::int64_t>("none"), R"(config.json: "none" must be an integer, got null)");
  EXPECT_EQ(error<bool>("count"), R"(config.json: "count" must be true or false, got the number 7)");
  EXPECT_EQ(error<double>("list"), R"(config.json: "list" must be a number, got an array)");
  EXPECT_EQ(error<std::string>("inner"), R"(config.json: "inner" must be a string, got an object)");
  EXPECT_EQ(error<double>("gone"), R"(config.json: "gone" is missing: expected a number)");
  EXPECT_EQ(error<Json>("gone"), R"(config.json: "gone" is missing: expected any value)");
}

TEST_F(Reader, ShortensALongStringInTheMessage) {
  const JsonReader reader(Json{{"a", std::string(10'000, 'x')}}, "f");
  EXPECT_LT(message_of<Error>([&] { reader.required<bool>("a"); }).size(), 150u);
}

TEST_F(Reader, TakesTheFallbackOnlyForAnAbsentOrNullKey) {
  EXPECT_EQ(reader_.optional<std::int64_t>("gone", 3), 3);
  EXPECT_EQ(reader_.optional<std::int64_t>("none", 3), 3);
  EXPECT_EQ(reader_.optional<std::int64_t>("count", 3), 7);
  EXPECT_THROW(reader_.optional<std::int64_t>("name", 3), Error);
}

TEST_F(Reader, HasMeansPresentAndNotNull) {
  EXPECT_TRUE(reader_.has("count"));
  EXPECT_FALSE(reader_.has("none"));
  EXPECT_FALSE(reader_.has("gone"));
}

TEST(JsonReader, RefusesTheFirstKeyNobodyAskedFor) {
  const JsonReader reader(parse_json(R"({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5})", "f.json"), "f.json");
  reader.required<std::int64_t>("a");
  reader.optional<std::int64_t>("b", 0);
  reader.ignore("d");
  EXPECT_EQ(message_of<Error>([&] { reader.refuse_unread(); }),
            R"(f.json: unknown key "c": remove it or correct its spelling)");
  reader.ignore("c");
  EXPECT_TRUE(reader.has("e"));
  EXPECT_NO_THROW(reader.refuse_unread());
}

TEST(JsonReader, RefusesWhatIsNotAnObject) {
  EXPECT_EQ(message_of<Error>([] { JsonReader(Json::array(), "f.json"); }),
            "f.json: expected a JSON object, got an array");
}

}  // namespace
}  // namespace snug
