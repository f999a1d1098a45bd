#include "train/run.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "io/checkpoint.h"
#include "io/json_lines.h"
#include "tests/io/scratch_directory.h"
#include "tests/train/text.h"

namespace faultline::train {
namespace {

namespace fs = std::filesystem;

// The configuration of small() as a builder.
ConfigBuilder builder() {
  ConfigBuilder config = ConfigBuilder::preset("tiny");
  for (const char* setting : {"hidden_size=16", "seq_len=16", "lr=1e-2", "dropout=0.1"}) {
    config.assign(setting, "--set");
  }
  return config;
}

// A run of `steps` steps in `directory`, new or gone on with.
RunResult go(const std::string& directory, RunOptions options,
             const ConfigBuilder& config = builder()) {
  Trainer trainer(config.build(), words());
  if (fs::exists(directory)) {
    cut_back(directory + "/metrics.jsonl", load_latest(directory, trainer));
  } else {
    create_run(directory, make_record("tiny", config, {}), trainer, {});
  }
  return run(trainer, directory, options);
}

std::vector<double> losses(const std::string& directory) {
  std::vector<double> result;
  for (const Json& line : read_json_lines(directory + "/metrics.jsonl")) {
    if (line.find("loss") != nullptr) result.push_back(line.at("loss").real());
  }
  return result;
}

TEST(Run, WritesWhatTheContractNames) {
  const ScratchDirectory scratch;
  const std::string directory = scratch / "run";
  const RunResult result = go(directory, {.steps = 6, .checkpoint_every = 4});
  EXPECT_EQ(result.step, 6);
  ASSERT_TRUE(result.held_out_loss.has_value());
  for (const char* step : {"step_0", "step_4", "step_6"}) {
    EXPECT_TRUE(fs::exists(directory + "/checkpoints/" + step)) << step;
  }
  const auto lines = read_json_lines(directory + "/metrics.jsonl");
  ASSERT_EQ(lines.size(), 7u);
  for (int64_t i = 0; i < 6; ++i) {
    const Json& line = lines[static_cast<size_t>(i)];
    EXPECT_EQ(line.at("step").integer(), i + 1);
    for (const char* key : {"loss", "lr", "grad_norm", "tokens", "ms"}) {
      EXPECT_NE(line.find(key), nullptr) << key;
    }
  }
  EXPECT_EQ(lines[6].at("eval_loss").real(), *result.held_out_loss);
  EXPECT_EQ(lines[6].find("loss"), nullptr);
  const RunRecord record = read_record(directory);
  EXPECT_EQ(record.model, "tiny");
  EXPECT_EQ(record.config.value("hidden_size"), "16");
  EXPECT_TRUE(differences(record).empty());
  const Json ranks = Json::parse(content_of(directory + "/ranks.json"), "ranks.json");
  ASSERT_EQ(ranks.items().size(), 1u);
  EXPECT_EQ(ranks.items()[0].at("world").integer(), 1);
  // Two moments a parameter, and the step counter.
  EXPECT_EQ(ranks.items()[0].at("optimizer_bytes").integer(),
            2 * ranks.items()[0].at("parameter_bytes").integer() + 8);
}

TEST(Run, StoppedAndResumedHasTheNumbersOfOneThatNeverStopped) {
  const ScratchDirectory scratch;
  go(scratch / "straight", {.steps = 8});
  for (const int64_t stop : {0, 1, 5}) {
    const std::string directory = scratch / ("stopped" + std::to_string(stop));
    go(directory, {.steps = stop});
    go(directory, {.steps = 8});
    EXPECT_EQ(losses(directory), losses(scratch / "straight")) << stop;
  }
}

TEST(Run, ResumeCutsLinesBehindItsCheckpointAndATornOne) {
  const ScratchDirectory scratch;
  const std::string directory = scratch / "run";
  go(directory, {.steps = 4});
  // As after a crash between two checkpoints.
  std::ofstream(directory + "/metrics.jsonl", std::ios::app) << R"({"step":5,"loss":9.0})"
                                                             << "\n"
                                                             << R"({"step":6,"lo)";
  go(directory, {.steps = 6});
  go(scratch / "straight", {.steps = 6});
  EXPECT_EQ(losses(directory), losses(scratch / "straight"));
}

TEST(Run, StopsAfterAWholeStepWithACheckpoint) {
  const ScratchDirectory scratch;
  int asked = 0;
  const RunResult result =
      go(scratch / "run",
         {.steps = 100, .stop = [&asked] { return ++asked == 3 ? Stop::interrupted : Stop::no; }});
  EXPECT_EQ(result.stop, Stop::interrupted);
  EXPECT_EQ(result.step, 3);
  EXPECT_EQ(latest_checkpoint(scratch / "run"), scratch / "run/checkpoints/step_3");
}

std::vector<std::pair<int64_t, double>> evaluations(const std::string& directory) {
  std::vector<std::pair<int64_t, double>> result;
  for (const Json& line : read_json_lines(directory + "/metrics.jsonl")) {
    const Json* loss = line.find("eval_loss");
    if (loss != nullptr) result.emplace_back(line.at("step").integer(), loss->real());
  }
  return result;
}

// Whatever was asked when the run was told to stop: after a step, before or within an evaluation.
TEST(Run, MakesUpForAnEvaluationThatWasCutShort) {
  const ScratchDirectory scratch;
  ConfigBuilder config = builder();
  config.assign("eval_every=3", "--set");
  int questions = 0;
  go(scratch / "straight", {.steps = 6, .stop = [&] { return ++questions, Stop::no; }}, config);
  const auto expected = evaluations(scratch / "straight");
  ASSERT_EQ(expected.size(), 2U);
  ASSERT_GT(questions, 6) << "the evaluations ask too";
  for (int last = 1; last <= questions; ++last) {
    const std::string directory = scratch / ("stopped" + std::to_string(last));
    int asked = 0;
    const auto stop = [&] { return ++asked == last ? Stop::interrupted : Stop::no; };
    const RunResult stopped = go(directory, {.steps = 6, .stop = stop}, config);
    EXPECT_EQ(stopped.stop, Stop::interrupted) << last;
    EXPECT_FALSE(stopped.held_out_loss.has_value()) << last;
    EXPECT_EQ(latest_checkpoint(directory),
              directory + "/checkpoints/step_" + std::to_string(stopped.step));
    EXPECT_EQ(go(directory, {.steps = 6}, config).held_out_loss, expected.back().second) << last;
    EXPECT_EQ(losses(directory), losses(scratch / "straight")) << last;
    EXPECT_EQ(evaluations(directory), expected) << last;
  }
}

TEST(Run, DoesNotTakeADirectoryThatAnotherRunTookMeanwhile) {
  const ScratchDirectory scratch;
  Trainer trainer(builder().build(), words());
  check_free("train: --out", scratch / "run");
  create_run(scratch / "run", make_record("first", builder(), {}), trainer, {});
  error_of<IoError>(
      [&] { create_run(scratch / "run", make_record("second", builder(), {}), trainer, {}); });
  EXPECT_EQ(read_record(scratch / "run").model, "first");
}

TEST(Run, OnAFullDiskKeepsTheEarlierCheckpoint) {
  const ScratchDirectory scratch;
  const std::string directory = scratch / "run";
  go(directory, {.steps = 2});
  {
    const FullDisk full(2000);
    error_of<IoError>([&] { go(directory, {.steps = 20, .checkpoint_every = 1}); });
  }
  EXPECT_EQ(latest_checkpoint(directory), directory + "/checkpoints/step_2");
  EXPECT_EQ(go(directory, {.steps = 4}).step, 4);
}

TEST(Run, CreateLeavesNothingBehindWhenItCannotBeWritten) {
  const ScratchDirectory scratch;
  {
    const FullDisk full(2000);
    error_of<IoError>([&] { go(scratch / "run", {.steps = 1}); });
  }
  EXPECT_TRUE(scratch.names().empty());
}

TEST(Run, RefusesADirectoryThatHoldsSomething) {
  const ScratchDirectory scratch;
  const auto free = [](const std::string& target) { check_free("merge: --out", target, " or X"); };
  const auto refusal = [&](const std::string& target) {
    return error_of<InvalidArgument>([&] { free(target); });
  };
  EXPECT_NO_THROW(free(scratch / "new"));
  EXPECT_NO_THROW(free(scratch.path()));
  const std::string file = scratch.write("used/notes.txt", "mine");
  EXPECT_EQ(refusal(scratch / "used"),
            "merge: --out '" + scratch / "used" + "' is not empty; name another directory or X");
  EXPECT_EQ(refusal(file),
            "merge: --out '" + file + "' is a file; name a directory that is not there yet");
  EXPECT_EQ(refusal(""), "merge: --out is empty; name a directory that is not there yet");
}

TEST(Run, RefusesToReadWhatIsNoRun) {
  const ScratchDirectory scratch;
  error_of<InvalidArgument>([&] { read_record(scratch / "nowhere"); });
  scratch.write("other/config.json", "{}");
  error_of<InvalidArgument>([&] { read_record(scratch / "other"); });
  scratch.write("torn/config.json", R"({"format": 1)");
  error_of<InvalidArgument>([&] { read_record(scratch / "torn"); });
}

TEST(Run, ProbesTheFloorWhenAskedTo) {
  const ScratchDirectory scratch;
  std::vector<int64_t> probed;
  const auto subscription = Context::current().events.subscribe<FloorProbeEvent>(
      [&](const FloorProbeEvent& probe) { probed.push_back(probe.step); });
  go(scratch / "run", {.steps = 5, .probe_every = 2});
  EXPECT_EQ(probed, (std::vector<int64_t>{2, 4, 5}));
}

}  // namespace
}  // namespace faultline::train
