#include "tests/tools/run_command.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gtest/gtest.h"

namespace llmc {
namespace {

class ScopedFolder {
 public:
  ScopedFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "llmc-test-XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~ScopedFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string JoinIds(const nlohmann::json& ids) {
  std::string out;
  for (const nlohmann::json& id : ids) out += (out.empty() ? "" : ",") + std::to_string(id.get<int>());
  return out;
}

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

}  // namespace

const std::string& TempFolder() {
  static const ScopedFolder folder;
  return folder.path();
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string ShippedModel() { return Environment("LLMC_TEST_DATA", LLMC_TEST_DATA) + "/tale-7m"; }

CommandResult RunLlmc(const std::vector<std::string>& args, int limit_seconds, const std::string& device,
                      const std::string& in) {
  static int runs = 0;
  const std::string stem = TempFolder() + "/run" + std::to_string(++runs);
  const std::string out = device.empty() ? stem + ".out" : device, err = stem + ".err";
  static const std::string command = Environment("LLMC_COMMAND", LLMC_BINARY);
  std::vector<char*> argv{const_cast<char*>(command.c_str())};
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (freopen(out.c_str(), "w", stdout) == nullptr || freopen(err.c_str(), "w", stderr) == nullptr) _exit(126);
    if (!in.empty() && freopen(in.c_str(), "r", stdin) == nullptr) _exit(126);
    alarm(limit_seconds);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  rusage used = {};
  wait4(child, &status, 0, &used);
  CommandResult result;
  result.cpu_seconds = Seconds(used.ru_utime) + Seconds(used.ru_stime);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (device.empty()) result.out = ReadFile(out);
  result.err = ReadFile(err);
  return result;
}

void ExpectReferenceTokens(const std::string& model, const std::string& reference_file, double loose_margin,
                           const std::vector<std::string>& extra) {
  const nlohmann::json reference = nlohmann::json::parse(ReadFile(reference_file), nullptr, false);
  ASSERT_TRUE(reference.is_object()) << reference_file;
  for (const nlohmann::json& item : reference["greedy"]) {
    const nlohmann::json& wanted = item["output_ids"];
    std::vector<std::string> args = {
        "generate", model,          "--prompt-ids",     JoinIds(item["prompt_ids"]),   "--temperature",
        "0",        "--ignore-eos", "--max-new-tokens", std::to_string(wanted.size()), "--json"};
    args.insert(args.end(), extra.begin(), extra.end());
    const CommandResult result = RunLlmc(args);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const nlohmann::json got = result.Json()["output_ids"];
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (got[i] == wanted[i]) continue;
      EXPECT_LT(item["margin_to_second"][i].get<double>(), loose_margin)
          << item["prompt"] << " token " << i << ": " << got[i] << " instead of " << wanted[i];
      break;
    }
  }
}

}  // namespace llmc
