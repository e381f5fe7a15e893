// llmc chat: answers are those of generate, conversations go on, errors say what to do; Ctrl-C on a terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// A template with no control tokens but the begin token, which `generate` puts before prompts.
std::string PlainTemplate() {
  const std::string path = TempFolder() + "/plain.jinja";
  std::ofstream(path) << "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
                         "{% if add_generation_prompt %}assistant:{% endif %}";
  return path;
}

CommandResult Chat(const std::string& input, std::vector<std::string> args) {
  const std::string file = TempFolder() + "/input.txt";
  std::ofstream(file) << input;
  args.insert(args.begin(), {"chat", kModel});
  return RunLlmc(args, 120, "", file);
}

std::string Generated(const std::string& prompt, int tokens) {
  const CommandResult result =
      RunLlmc({"generate", kModel, "--prompt", prompt, "--max-new-tokens", absl::StrCat(tokens), "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.Json()["text"];
}

std::vector<json> Lines(const CommandResult& result) {
  std::vector<json> lines;
  for (const absl::string_view line : absl::StrSplit(result.out, '\n', absl::SkipEmpty())) {
    lines.push_back(json::parse(std::string(line), nullptr, false));
  }
  return lines;
}

TEST(Chat, AnswersAreThoseOfGenerate) {
  const std::string text = "Once upon a time there was a little girl who lived in a house near the dark wood";
  const std::string first = Generated("user: " + text + "\nassistant:", 8);
  const CommandResult plain = Chat(text + "\n", {"--template", PlainTemplate(), "--max-new-tokens", "8"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(plain.out, first + "\n");
  const CommandResult two =
      Chat("{\"role\": \"user\", \"content\": \"" + text + "\"}\n\n{\"role\": \"user\", \"content\": \"Go on\"}\n",
           {"--template", PlainTemplate(), "--max-new-tokens", "8", "--json"});
  EXPECT_EQ(two.exit_code, 0) << two.err;
  std::vector<json> answers;
  std::string deltas;
  for (const json& line : Lines(two)) {
    if (line.contains("content")) answers.push_back(line);
    if (line.contains("delta") && answers.empty()) deltas += line["delta"].get<std::string>();
  }
  ASSERT_EQ(answers.size(), 2u) << two.out;
  EXPECT_EQ(answers[0]["content"], first);
  EXPECT_EQ(deltas, first);
  EXPECT_EQ(answers[0]["finish_reason"], "length");
  EXPECT_EQ(answers[0]["usage"]["completion_tokens"], 8);
  EXPECT_EQ(answers[1]["content"],
            Generated("user: " + text + "\nassistant: " + first + "\nuser: Go on\nassistant:", 8));
  EXPECT_GE(answers[1]["usage"]["cached_tokens"], 16) << "the first turn is in the KV cache";
}

TEST(Chat, MessagesGoOnOverLines) {
  const std::string saved = TempFolder() + "/saved.json";
  const CommandResult result = Chat("\"\"\"a\n/b \"quoted\"\n\"\"\"\nx\\\ny\n/retry\n/save " + saved +
                                        "\n/undo\n/undo\n/load " + saved + "\n/stats\n",
                                    {"--template", PlainTemplate(), "--max-new-tokens", "2", "--system", "Sys"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json messages = json::parse(ReadFile(saved))["messages"];
  ASSERT_EQ(messages.size(), 5u) << messages;
  EXPECT_EQ(messages[0], json({{"role", "system"}, {"content", "Sys"}}));
  EXPECT_EQ(messages[1], json({{"role", "user"}, {"content", "a\n/b \"quoted\"\n"}}));
  EXPECT_EQ(messages[3], json({{"role", "user"}, {"content", "x\ny"}}));
  EXPECT_THAT(result.out, HasSubstr("messages: 5\n"));
  EXPECT_THAT(result.out, HasSubstr("tokens generated: 6\n"));
}

TEST(Chat, CommandsChangeTheConversation) {
  const std::string saved = TempFolder() + "/changed.json";
  const CommandResult result = Chat(
      "/system New\nHello\n/clear\n/set max-new-tokens 3\n/set temperature 0\nAgain\n/stats\n"
      "/save " +
          saved + "\n/help\n/exit\nnever read\n",
      {"--template", PlainTemplate(), "--max-new-tokens", "2", "--system", "Old"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const json messages = json::parse(ReadFile(saved))["messages"];
  ASSERT_EQ(messages.size(), 3u) << messages;
  EXPECT_EQ(messages[0]["content"], "New");
  EXPECT_EQ(messages[1]["content"], "Again");
  EXPECT_THAT(result.out, HasSubstr("tokens generated: 5\n"));
  EXPECT_THAT(result.out, HasSubstr("/retry"));
}

TEST(Chat, Errors) {
  const std::string folder = TempFolder() + "/no_template";
  std::filesystem::create_directories(folder);
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}) {
    std::filesystem::copy_file(kModel + "/" + name, folder + "/" + name);
  }
  const CommandResult none = RunLlmc({"chat", folder}, 120, "", "/dev/null");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr(folder + ": the model comes without a chat template; give --template FILE"));
  const std::string broken = TempFolder() + "/broken.jinja";
  std::ofstream(broken) << "a\n{{ (1 }}";
  const CommandResult wrong = Chat("", {"--template", broken});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.err, HasSubstr("broken.jinja:2: "));
  const std::vector<std::pair<std::string, std::string>> inputs = {
      {"/frob\n", "there is no command /frob"},
      {"/undo\n", "there is no message to forget"},
      {"/set nope 1\n", "there is no 'nope' to set; there are max-new-tokens, temperature"},
      {"/set top-p 2\n", "top_p"},
      {"/set temperature warm\n", "warm"},
      {"/load /nonexistent.json\n", "/nonexistent.json"},
      {"/save " + kModel + "\n", "is a folder"},
      {"\xff\n", "not valid UTF-8"}};
  for (const auto& [input, message] : inputs) {
    const CommandResult result = Chat(input, {"--template", PlainTemplate(), "--max-new-tokens", "1"});
    EXPECT_EQ(result.exit_code, 1) << input;
    EXPECT_THAT(result.err, HasSubstr(message)) << input;
  }
  for (const std::string input : {"{", "[1]\n", "{\"content\": \"x\"}\n", "{\"role\": 1}"}) {
    const CommandResult result = Chat(input, {"--template", PlainTemplate(), "--json"});
    EXPECT_EQ(result.exit_code, 1) << input;
    EXPECT_THAT(result.err, HasSubstr("standard input, line 1")) << input;
    EXPECT_EQ(result.Json()["error"]["code"], "INVALID_ARGUMENT") << input;
  }
  EXPECT_EQ(Chat("", {"--template", broken, "--template-name", "rag"}).exit_code, 2);
  EXPECT_EQ(Chat("", {"--variable", "x"}).exit_code, 2);
}

TEST(Chat, VariablesReachTheTemplate) {
  const std::string path = TempFolder() + "/variables.jinja";
  std::ofstream(path) << "{{ raise_exception(think ~ name ~ (list|length)) }}";
  const CommandResult result = Chat(
      "x\n", {"--template", path, "--variable", "think=false", "--variable", "name=a=b", "--variable", "list=[1, 2]"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("variables.jinja:1: the template refuses the conversation: Falsea=b2"));
}

// The command on a terminal of its own.
class OnTerminal {
 public:
  explicit OnTerminal(std::vector<std::string> args) {
    args.insert(args.begin(), LLMC_BINARY);
    std::vector<char*> pointers;
    for (std::string& arg : args) pointers.push_back(arg.data());
    pointers.push_back(nullptr);
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      execv(pointers[0], pointers.data());
      _exit(127);
    }
  }
  ~OnTerminal() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(terminal_);
  }
  void Type(const std::string& text) { EXPECT_EQ(write(terminal_, text.data(), text.size()), ssize_t(text.size())); }
  // Reads until `text` is there, behind what was found before.
  bool Await(const std::string& text) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (std::chrono::steady_clock::now() < end) {
      if (const size_t found = seen_.find(text, from_); found != std::string::npos) {
        from_ = found + text.size();
        return true;
      }
      pollfd ready{terminal_, POLLIN, 0};
      char part[4096];
      if (poll(&ready, 1, 1000) <= 0) continue;
      const ssize_t count = read(terminal_, part, sizeof part);
      if (count <= 0) break;
      seen_.append(part, static_cast<size_t>(count));
    }
    ADD_FAILURE() << "no \"" << text << "\" in " << seen_;
    return false;
  }
  int ExitCode() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  int terminal_ = -1;
  pid_t pid_ = -1;
  std::string seen_;
  size_t from_ = 0;
};

TEST(Chat, CtrlCEndsTheAnswerAndTwiceTheProgram) {
  OnTerminal chat({"chat", kModel, "--template", PlainTemplate(), "--max-new-tokens", "100000", "--system", "S"});
  ASSERT_TRUE(chat.Await("> "));
  chat.Type("Once upon a time\n");
  ASSERT_TRUE(chat.Await("\r\n"));
  ASSERT_TRUE(chat.Await(" "));
  usleep(200000);
  chat.Type("\x03");
  ASSERT_TRUE(chat.Await(", stopped]"));
  ASSERT_TRUE(chat.Await("> "));
  chat.Type("/frob\n");
  ASSERT_TRUE(chat.Await("error: there is no command /frob"));
  ASSERT_TRUE(chat.Await("> "));
  chat.Type("/set max-new-tokens 2\n");
  ASSERT_TRUE(chat.Await("> "));
  chat.Type("Go on\n");
  ASSERT_TRUE(chat.Await("[2 tokens, "));
  ASSERT_TRUE(chat.Await("> "));
  chat.Type("\x03");
  ASSERT_TRUE(chat.Await("Ctrl-C again"));
  chat.Type("\x03");
  EXPECT_EQ(chat.ExitCode(), 0);
}

}  // namespace
}  // namespace llmc
