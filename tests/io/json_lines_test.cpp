#include "io/json_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/io/scratch_directory.h"

namespace faultline {
namespace {

using testing::HasSubstr;

std::vector<int64_t> steps_of(const std::string& path) {
  std::vector<int64_t> steps;
  for (const Json& line : read_json_lines(path)) steps.push_back(line.at("step").integer());
  return steps;
}

void write_steps(const std::string& path, int64_t first, int64_t last) {
  JsonLinesWriter writer(path);
  for (int64_t step = first; step <= last; ++step) {
    writer.write(Json::object().set("step", step).set("loss", 1.0 / static_cast<double>(step)));
  }
}

TEST(JsonLines, AreThereAsSoonAsTheyAreWritten) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "run/metrics.jsonl";
  JsonLinesWriter writer(path);
  EXPECT_EQ(content_of(path), "");
  writer.write(Json::object().set("step", 1).set("loss", 0.1));
  EXPECT_EQ(content_of(path), "{\"step\":1,\"loss\":0.1}\n");
  writer.write(Json::object().set("step", 2));
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2}));
  EXPECT_THROW(writer.write(Json::array()), InvalidArgument);
}

TEST(JsonLines, GoOnWhereTheyStopped) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  write_steps(path, 1, 2);
  write_steps(path, 3, 4);
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(JsonLines, DropATornLastLineWhereverItIsTorn) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  write_steps(path, 1, 3);
  const std::string whole = content_of(path);
  const size_t third = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t cut = third; cut < whole.size(); ++cut) {
    scratch.write("metrics.jsonl", whole.substr(0, cut));
    EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2})) << cut;
    write_steps(path, 7, 7);  // not glued to what was torn
    EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 7})) << cut;
  }
  scratch.write("metrics.jsonl", "{\"step\"");
  EXPECT_TRUE(read_json_lines(path).empty());
}

TEST(JsonLines, NameTheLineThatIsDamaged) {
  const ScratchDirectory scratch;
  const std::string path = scratch.write("m.jsonl", "{\"step\":1}\n{\"step\":\n{\"step\":3}\n");
  EXPECT_THAT(error_of<InvalidArgument>([&] { read_json_lines(path); }),
              HasSubstr("m.jsonl, line 2: this is not JSON"));
  scratch.write("m.jsonl", "[1]\n");
  EXPECT_THAT(error_of<InvalidArgument>([&] { read_json_lines(path); }),
              HasSubstr("line 1: expected an object, found an array"));
  EXPECT_THAT(error_of<IoError>([&] { read_json_lines(scratch / "none"); }),
              HasSubstr("No such file"));
}

TEST(CutBack, KeepsTheLinesUpToAStepByteForByte) {
  const ScratchDirectory scratch;
  const std::string kept = "{ \"step\" : 1 }\n{\"note\":\"no step\"}\n{\"step\":2,\"loss\":1e-1}\n";
  const std::string path = scratch.write("m.jsonl", kept + "{\"step\":3}\n{\"step\":4,\"lo");
  cut_back(path, 2);
  EXPECT_EQ(content_of(path), kept);
  cut_back(path, 100);
  EXPECT_EQ(content_of(path), kept);
  cut_back(path, -1);
  EXPECT_EQ(content_of(path), "{\"note\":\"no step\"}\n");
  cut_back(scratch / "none.jsonl", 1);
  EXPECT_EQ(scratch.names(), std::vector<std::string>{"m.jsonl"});
}

TEST(JsonLines, KeepWholeLinesOnAFullDisk) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "metrics.jsonl";
  JsonLinesWriter writer(path);
  {
    const FullDisk full(50);
    writer.write(Json::object().set("step", 1).set("text", std::string(20, 'x')));
    EXPECT_THAT(error_of<IoError>([&] {
                  writer.write(Json::object().set("step", 2).set("text", std::string(20, 'x')));
                }),
                HasSubstr("metrics.jsonl"));
  }
  EXPECT_EQ(steps_of(path), std::vector<int64_t>{1});
  EXPECT_TRUE(content_of(path).ends_with('\n'));
  writer.write(Json::object().set("step", 3));
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 3}));
}

TEST(JsonLines, NameAPathThatCannotBeWritten) {
  const ScratchDirectory scratch;
  scratch.write("file", "");
  EXPECT_THAT(error_of<IoError>([&] { JsonLinesWriter(scratch / "file/m.jsonl"); }),
              HasSubstr("file/m.jsonl: Not a directory"));
  EXPECT_THAT(error_of<IoError>([] { JsonLinesWriter("/proc/nothing/m.jsonl"); }),
              HasSubstr("/proc/nothing/m.jsonl"));
}

}  // namespace
}  // namespace faultline
