// The ONNX project's node tests cut off and changed at seeded places: each file gives a clean error, or a model that
// verifies, goes through all passes and runs, within 2 s of the processor and 512 MB. LLMC_HOSTILE=PART takes those
// with that part in their name.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/import.h"
#include "ir/eval.h"
#include "ir/verify.h"
#include "passes/pipeline.h"
#include "tests/frontend/onnx_node_cases.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr int kPlaces = 20;  // of either kind
constexpr int kSeconds = 2;
constexpr int64_t kMegabytes = 512;  // with freed memory that a sanitizer keeps: CMakePresets.json bounds it
// What a run may hold: a model may ask for tensors of any size.
constexpr int64_t kMostElements = int64_t{1} << 20;

// Cases 0 to kPlaces - 1 are cut off, the others have one byte changed.
std::string Damaged(const std::string& bytes, const std::string& name, int c) {
  const std::string label = absl::StrCat(name, c);
  std::seed_seq seed(label.begin(), label.end());
  std::mt19937 random(seed);
  std::string damaged = bytes;
  const size_t at = random() % bytes.size();
  if (c < kPlaces) {
    damaged.resize(at);
  } else {
    damaged[at] = static_cast<char>(damaged[at] + 1 + random() % 255);
  }
  return damaged;
}

bool IsSmall(const Model& model) {
  const auto small = [](const Value* value) {
    const Dim size = Product(value->type.shape);
    return !size.is_constant() || (size.value() >= 0 && size.value() <= kMostElements);
  };
  for (const Value* weight : model.weights) {
    if (!small(weight)) return false;
  }
  for (const auto& step : model.steps) {
    for (const Value* param : step->params) {
      if (!small(param)) return false;
    }
    for (const auto& node : step->block.nodes) {
      if (!std::all_of(node->results.begin(), node->results.end(), small)) return false;
    }
  }
  return true;
}

// The test's own inputs where they fit, else ones.
NamedTensors InputsFor(const Step& step, const Tensors& given) {
  NamedTensors inputs;
  for (size_t i = 0; i < step.params.size(); ++i) {
    const TensorType& type = step.params[i]->type;
    Shape shape;
    for (const Dim& dim : type.shape) shape.push_back(dim.is_constant() ? dim.value() : 2);
    Tensor tensor(type.dtype, shape);
    for (int64_t k = 0; k < tensor.size(); ++k) {
      IsFloat(type.dtype) ? tensor.SetFloat(k, 1) : tensor.SetInt(k, 1);
    }
    const bool fits = i < given.size() && given[i].dtype() == type.dtype && given[i].rank() == tensor.rank();
    inputs[step.params[i]->name.substr(1)] = fits ? given[i] : tensor;
  }
  return inputs;
}

enum Result : int { kRefused, kRan, kFailedToRun, kTooLarge, kResults };

// Whatever is wrong with the model, nothing here may end the process.
Result Try(const std::string& path, const Tensors& given) {
  const auto model = ImportOnnx(path);
  if (!model.ok()) {
    if (model.status().message().find(".onnx") == std::string::npos) {
      std::cerr << "an error that does not name the file: " << model.status() << std::endl;
      std::abort();
    }
    return kRefused;
  }
  if (absl::Status status = Verify(**model, Phase::kImported); !status.ok()) {
    std::cerr << "the model does not verify: " << status << std::endl;
    std::abort();
  }
  if (!IsSmall(**model)) return kTooLarge;
  const NamedTensors inputs = InputsFor(*(*model)->steps[0], given);
  const auto evaluator = Evaluator::Create(model->get());
  const bool ran = evaluator.ok() && (*evaluator)->Run(*(*model)->steps[0], inputs).ok();
  if (absl::Status status = RunPipeline(model->get(), {}, nullptr); absl::IsInternal(status)) {
    std::cerr << "a pass fails: " << status << std::endl;
    std::abort();
  }
  return ran ? kRan : kFailedToRun;
}

// What a child process says while it works.
struct Progress {
  std::atomic<int> next;  // the case that it works on
  std::atomic<int> results[kResults];
};

struct Batch {
  fs::path folder;
  std::string scratch;
  Progress* progress;
};

// In a child: all cases of a model from `progress->next` on.
[[noreturn]] void RunChild(const Batch& batch) noexcept {
  rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::ifstream in(batch.folder / "model.onnx", std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto proto = LoadNodeModel(batch.folder);
  const auto given = LoadNodeTensors(batch.folder, "input_", proto.ok() ? proto->graph().input_size() : 0);
  for (; batch.progress->next < 2 * kPlaces; ++batch.progress->next) {
    // A file that is cut off and written again waits for the disk on some file systems; a new one does not.
    unlink(batch.scratch.c_str());
    std::ofstream(batch.scratch, std::ios::binary)
        << Damaged(bytes, batch.folder.filename().string(), batch.progress->next);
    const itimerval limit = {.it_interval = {}, .it_value = {.tv_sec = kSeconds, .tv_usec = 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);  // ends the process
    const Result result = Try(batch.scratch, given.ok() ? *given : Tensors());
    const itimerval none = {};
    setitimer(ITIMER_PROF, &none, nullptr);
    ++batch.progress->results[result];
  }
  _exit(0);
}

// What went wrong, with the number of the case; the file that did it stays.
std::vector<std::string> TryModel(const Batch& batch) {
  std::vector<std::string> wrong;
  batch.progress->next = 0;
  while (batch.progress->next < 2 * kPlaces) {
    const pid_t child = fork();
    if (child == 0) RunChild(batch);
    int status = 0;
    rusage usage = {};
    if (child < 0 || wait4(child, &status, 0, &usage) != child) return {"cannot start a process"};
    const int at = batch.progress->next;
    if (usage.ru_maxrss > kMegabytes << 10) {
      wrong.push_back(absl::StrCat("case ", at, " or one before takes ", usage.ru_maxrss >> 10, " MB"));
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    const std::string kept = absl::StrCat(batch.scratch, ".", batch.folder.filename().string(), ".", at);
    std::error_code error;
    fs::copy_file(batch.scratch, kept, fs::copy_options::overwrite_existing, error);
    const bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
    wrong.push_back(absl::StrCat("case ", at, late ? " takes too long" : " ends the process", ": ", kept));
    ++batch.progress->next;
  }
  return wrong;
}

TEST(HostileNodes, GiveAnErrorOrRun) {
  std::vector<fs::path> folders = OnnxNodeFolders();
  if (folders.empty()) GTEST_SKIP() << "no tests in " << OnnxNodeFolder();
  if (const char* choice = std::getenv("LLMC_HOSTILE")) {
    std::erase_if(folders, [&](const fs::path& f) { return f.filename().string().find(choice) == std::string::npos; });
  }
  const int workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  auto* progress = static_cast<Progress*>(mmap(nullptr, sizeof(Progress) * static_cast<size_t>(workers),
                                               PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(progress, MAP_FAILED);
  std::vector<std::vector<std::string>> wrong(folders.size());
  // Processes that fork while no thread of theirs runs: one for each worker.
  std::vector<pid_t> children;
  const std::string stem = absl::StrCat(testing::TempDir(), "/llmc-hostile-", getpid(), "-");
  for (int w = 0; w < workers; ++w) {
    new (&progress[w]) Progress{};
    children.push_back(fork());
    if (children.back() != 0) continue;
    const std::string scratch = absl::StrCat(stem, w, ".onnx");
    std::ofstream report(absl::StrCat(stem, w, ".txt"));
    for (size_t i = static_cast<size_t>(w); i < folders.size(); i += static_cast<size_t>(workers)) {
      for (const std::string& line : TryModel({folders[i], scratch, &progress[w]})) {
        report << folders[i].filename().string() << ": " << line << "\n";
      }
    }
    report.close();
    fs::remove(scratch);
    _exit(0);
  }
  std::map<int, int> results;
  for (int w = 0; w < workers; ++w) {
    int status = 0;
    waitpid(children[static_cast<size_t>(w)], &status, 0);
    EXPECT_EQ(status, 0);
    for (int r = 0; r < kResults; ++r) results[r] += progress[w].results[r];
    const std::string path = absl::StrCat(stem, w, ".txt");
    std::ifstream report(path);
    for (std::string line; std::getline(report, line);) ADD_FAILURE() << line;
    fs::remove(path);
  }
  munmap(progress, sizeof(Progress) * static_cast<size_t>(workers));
  std::cout << folders.size() << " models: " << results[kRefused] << " files refused, " << results[kRan] << " run, "
            << results[kFailedToRun] << " fail to run, " << results[kTooLarge] << " are too large to run here\n";
  EXPECT_GT(results[kRefused], 0);
  EXPECT_GT(results[kRan], 0);
}

}  // namespace
}  // namespace llmc
