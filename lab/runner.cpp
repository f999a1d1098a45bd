#include "lab/runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>

#include "lab/run_case.h"

extern char** environ;

namespace faultline::lab {
namespace {

using Clock = std::chrono::steady_clock;

// Where a worker finds its pipe.
constexpr int kResultDescriptor = 3;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A case that runs, or has run, in a process.
struct Job {
  size_t index;
  pid_t process = -1;
  int pipe = -1;
  Clock::time_point begin;
  std::string text;
  std::string killed_because;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::vector<std::string>& own) {
  std::vector<std::string> result = own;
  result.emplace_back("OMP_NUM_THREADS=1");
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& mine : result) replaced = replaced || mine.starts_with(name);
    if (!replaced) result.emplace_back(text);
  }
  return result;
}

Job start(size_t index, const Variant& variant, const RunnerOptions& options) {
  std::vector<std::string> arguments = {"/proc/self/exe"};
  arguments.insert(arguments.end(), options.worker_arguments.begin(),
                   options.worker_arguments.end());
  arguments.push_back(variant.full_name());
  arguments.emplace_back("--seed");
  arguments.push_back(std::to_string(options.seed));
  std::vector<std::string> environment = environment_with(options.worker_environment);

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw IoError(fmt::format("lab: no pipe for a case: {}", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kResultDescriptor);
  Job job{index, -1, ends[0], Clock::now(), "", ""};
  const int error = posix_spawn(&job.process, arguments[0].c_str(), &actions, nullptr,
                                pointers(arguments).data(), pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    throw IoError(fmt::format("lab: cannot start a process for a case: {}", std::strerror(error)));
  }
  return job;
}

// Reads what is there. False when the worker has closed its end.
bool read_some(Job& job) {
  char buffer[1 << 16];
  const ssize_t count = read(job.pipe, buffer, sizeof buffer);
  if (count > 0) job.text.append(buffer, static_cast<size_t>(count));
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("its process crashed: {}", strsignal(WTERMSIG(status)));
  }
  return fmt::format("its process ended with exit code {} and no result", WEXITSTATUS(status));
}

CaseResult finish(Job& job, const Catalogue::Entry& entry) {
  close(job.pipe);
  int status = 0;
  while (waitpid(job.process, &status, 0) < 0 && errno == EINTR) {
  }
  CaseResult result = blank_result(*entry.fault, *entry.variant);
  result.seconds = seconds_since(job.begin);
  if (!job.killed_because.empty()) {
    result.why = job.killed_because;
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    result.why = how_it_ended(status);
  } else {
    try {
      result = result_from_json(Json::parse(job.text, "result of " + entry.variant->full_name()));
    } catch (const Error& error) {
      result.why = fmt::format("its process gave no usable result: {}", error.what());
    }
  }
  return result;
}

// The processes that run now.
class Pool {
 public:
  Pool(const std::vector<Catalogue::Entry>& entries, const RunnerOptions& options)
      : entries_(entries), options_(options), done_(entries.size()) {}
  ~Pool() {
    for (Job& job : jobs_) {
      kill(job.process, SIGKILL);
      close(job.pipe);
      waitpid(job.process, nullptr, 0);
    }
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void start_next() {
    jobs_.push_back(start(next_, *entries_[next_].variant, options_));
    ++next_;
  }
  bool may_start() const {
    const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
    const auto limit = static_cast<size_t>(options_.parallel > 0 ? options_.parallel : cores);
    return next_ < entries_.size() && jobs_.size() < limit;
  }
  bool busy() const { return !jobs_.empty(); }

  // Waits until something happens, takes what came, kills what is late.
  void turn() {
    std::vector<pollfd> waiting;
    double patience = options_.deadline_seconds;
    for (const Job& job : jobs_) {
      waiting.push_back({job.pipe, POLLIN, 0});
      patience = std::min(patience, options_.deadline_seconds - seconds_since(job.begin));
    }
    const double milliseconds = std::ceil(std::max(0.0, patience) * 1e3);
    poll(waiting.data(), waiting.size(), static_cast<int>(milliseconds));
    for (size_t i = jobs_.size(); i-- > 0;) {
      const bool open = waiting[i].revents == 0 || read_some(jobs_[i]);
      if (open && seconds_since(jobs_[i].begin) < options_.deadline_seconds) continue;
      if (open) give_up(jobs_[i]);
      done_[jobs_[i].index] = finish(jobs_[i], entries_[jobs_[i].index]);
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  const std::optional<CaseResult>& result(size_t index) const { return done_[index]; }

 private:
  void give_up(Job& job) const {
    kill(job.process, SIGKILL);
    job.killed_because =
        fmt::format("not done after {} s; its process was ended", options_.deadline_seconds);
  }

  const std::vector<Catalogue::Entry>& entries_;
  const RunnerOptions& options_;
  std::vector<Job> jobs_;
  std::vector<std::optional<CaseResult>> done_;
  size_t next_ = 0;
};

}  // namespace

std::vector<CaseResult> run_cases(const std::vector<Catalogue::Entry>& entries,
                                  const RunnerOptions& options,
                                  const std::function<void(const CaseResult&)>& on_result) {
  Pool pool(entries, options);
  std::vector<CaseResult> results;
  while (results.size() < entries.size()) {
    while (pool.may_start()) pool.start_next();
    if (pool.busy()) pool.turn();
    while (results.size() < entries.size() && pool.result(results.size())) {
      results.push_back(*pool.result(results.size()));
      if (on_result) on_result(results.back());
    }
  }
  return results;
}

void run_worker(const Catalogue& catalogue, const std::string& full_name, uint64_t seed) {
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a lab that is stopped leaves nothing running
#endif
  const Variant& variant = catalogue.find(full_name);
  const CaseResult result =
      run_case({&catalogue.fault_of(full_name), &variant}, RunOptions{.seed = seed});
  const std::string text = to_json(result).to_text();
  for (size_t written = 0; written < text.size();) {
    const ssize_t count = write(kResultDescriptor, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw IoError(
          fmt::format("lab: --run-case is for the lab's own use; it has no pipe to write "
                      "to: {}",
                      std::strerror(errno)));
    }
    written += static_cast<size_t>(count);
  }
}

}  // namespace faultline::lab
