#include <unistd.h>

#include <cstdio>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "files/file_writer.h"
#include "nlohmann/json.hpp"
#include "runtime/text/utf8.h"
#include "tools/chat_lines.h"
#include "tools/chat_session.h"
#include "tools/commands.h"
#include "tools/output.h"
#include "tools/runnable.h"

namespace llmc {
namespace chat_command {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kSummary[] = "Talks with a model, by its chat template.";
constexpr char kDetails[] =
    "Each line is a message; one that ends with a backslash goes on, and so does what stands between \"\"\" and "
    "\"\"\".\n"
    "Ctrl-C ends an answer, Ctrl-D the conversation. Lines such as /help are commands. What users write never becomes\n"
    "control tokens. With --json each line in is a message, {\"role\": \"user\", \"content\": \"...\"}; those of "
    "other\n"
    "roles are only added. Lines out are {\"delta\": \"...\"}, then one with content, finish_reason and usage.\n"
    "Examples:\n"
    "  llmc chat model-folder --device=cuda\n"
    "  llmc chat plan.bin --system \"You are terse.\" --temperature 0.7\n"
    "  llmc chat model-folder --variable enable_thinking=false\n"
    "  llmc chat plan.bin --tokenizer model-folder --template chatml.jinja\n"
    "  echo \"Why is the sky blue?\" | llmc chat model-folder\n"
    "  echo '{\"role\": \"user\", \"content\": \"Hello\"}' | llmc chat model-folder --json";
constexpr char kHelp[] =
    "/help               this\n"
    "/clear              forget all messages but that of the system\n"
    "/system TEXT        another message of the system, or none\n"
    "/undo               forget the last message and its answer\n"
    "/retry              another answer to the last message\n"
    "/set NAME VALUE     temperature, top-k, top-p, min-p, seed, max-new-tokens, ...: options of `llmc chat`\n"
    "/save FILE          write the messages, as JSON\n"
    "/load FILE          go on with messages that were saved\n"
    "/stats              tokens and pages of the KV cache so far\n"
    "/exit               end\n";
constexpr int64_t kMaxConversationBytes = int64_t{64} << 20;

struct Options {
  ChatOptions chat;
  bool json = false;
};

// A line of output for programs.
void PrintLine(const Json& json) {
  PrintText(absl::StrCat(json.dump(-1, ' ', false, Json::error_handler_t::replace), "\n"));
  std::fflush(stdout);
}

class Conversation {
 public:
  Conversation(ChatSession* session, std::string model)
      : session_(session),
        model_(std::move(model)),
        terminal_(isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0),
        lines_(terminal_) {}

  absl::Status Talk() {
    if (terminal_) PrintText("/help tells of commands; Ctrl-D ends.\n");
    while (!ended_) {
      const std::optional<std::string> text = lines_.Text();
      if (!text.has_value()) break;
      if (absl::StripAsciiWhitespace(*text).empty()) continue;
      const absl::Status status = (*text)[0] == '/' ? Command(*text) : Say(*text);
      if (status.ok()) continue;
      // A user can go on after an error, a script cannot.
      if (!terminal_) return status;
      std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
    }
    if (terminal_) PrintText("\n");
    return absl::OkStatus();
  }

  absl::Status TalkJson() {
    int number = 0;
    while (const std::optional<std::string> line = lines_.Line("")) {
      ++number;
      if (absl::StripAsciiWhitespace(*line).empty()) continue;
      const Json message = Json::parse(*line, nullptr, /*allow_exceptions=*/false);
      const std::string name = absl::StrCat("standard input, line ", number);
      if (message.is_discarded()) return absl::InvalidArgumentError(absl::StrCat(name, ": is not JSON"));
      RETURN_IF_ERROR(CheckMessages(Json::array({message}), name));
      session_->messages().push_back(message);
      if (message["role"] != "user") continue;
      ASSIGN_OR_RETURN(const ChatAnswer answer, session_->Answer(
                                                    [](absl::string_view text) {
                                                      PrintLine({{"delta", std::string(text)}});
                                                    },
                                                    chat_interrupted));
      PrintLine({{"content", answer.text},
                 {"finish_reason", FinishReasonName(answer.finish)},
                 {"usage",
                  {{"prompt_tokens", answer.prompt_tokens},
                   {"cached_tokens", answer.cached_tokens},
                   {"completion_tokens", answer.new_tokens},
                   {"total_tokens", answer.prompt_tokens + answer.new_tokens}}}});
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Say(const std::string& text) {
    if (!IsValidUtf8(text)) return absl::InvalidArgumentError("the message is not valid UTF-8");
    session_->messages().push_back({{"role", "user"}, {"content", text}});
    const absl::Status status = Answer();
    if (!status.ok()) session_->Undo();
    return status;
  }

  absl::Status Answer() {
    chat_interrupted = false;
    const absl::StatusOr<ChatAnswer> answer = session_->Answer(
        [](absl::string_view text) {
          PrintText(text);
          std::fflush(stdout);
        },
        chat_interrupted);
    if (!answer.ok()) return answer.status();
    PrintText("\n");
    if (!terminal_) return absl::OkStatus();
    const double decode_s = answer->seconds - answer->first_token_s;
    const double rate = decode_s > 0 ? static_cast<double>(answer->new_tokens - 1) / decode_s : 0;
    const char* end = answer->finish == FinishReason::kCancelled ? ", stopped"
                      : answer->finish == FinishReason::kLength  ? ", cut at the limit of tokens"
                                                                 : "";
    PrintText(absl::StrFormat("[%d tokens, %.1f tokens/s, first after %.2f s%s]\n", answer->new_tokens, rate,
                              answer->first_token_s, end));
    return absl::OkStatus();
  }

  absl::Status Command(const std::string& text) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
    const std::string rest(absl::StripAsciiWhitespace(parts.second));
    for (const auto& command : kCommands) {
      if (parts.first == command.name) return (this->*command.run)(rest);
    }
    return absl::InvalidArgumentError(absl::StrCat("there is no command ", parts.first, "; /help lists them"));
  }

  absl::Status Help(const std::string&) {
    PrintText(kHelp);
    return absl::OkStatus();
  }
  absl::Status Clear(const std::string&) {
    session_->Clear();
    return absl::OkStatus();
  }
  absl::Status System(const std::string& text) {
    session_->SetSystem(text);
    return absl::OkStatus();
  }
  absl::Status Undo(const std::string&) {
    return session_->Undo() ? absl::OkStatus() : absl::InvalidArgumentError("there is no message to forget");
  }
  absl::Status Retry(const std::string&) {
    return session_->DropAnswer() ? Answer() : absl::InvalidArgumentError("there is no message to answer");
  }
  absl::Status Set(const std::string& text) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 1));
    if (parts.second.empty())
      return absl::InvalidArgumentError("/set needs a name and a value, as /set temperature 0.7");
    return session_->Set(parts.first, std::string(absl::StripAsciiWhitespace(parts.second)));
  }
  absl::Status Save(const std::string& path) {
    if (path.empty()) return absl::InvalidArgumentError("/save needs the name of a file");
    RETURN_IF_ERROR(CheckOutput(path, {model_}));
    const Json saved = {{"messages", session_->messages()}};
    return WriteWholeFile(path, absl::StrCat(saved.dump(2, ' ', false, Json::error_handler_t::replace), "\n"));
  }
  absl::Status Load(const std::string& path) {
    if (path.empty()) return absl::InvalidArgumentError("/load needs the name of a file");
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxConversationBytes));
    const Json saved = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!saved.is_object() || !saved.contains("messages")) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": is no JSON object with messages, as /save writes it"));
    }
    RETURN_IF_ERROR(CheckMessages(saved["messages"], path));
    session_->messages() = saved["messages"];
    return absl::OkStatus();
  }
  absl::Status Stats(const std::string&) {
    const EngineStats stats = session_->stats();
    PrintText(absl::StrCat("messages: ", session_->messages().size(), "\nprompt tokens computed: ", stats.prompt_tokens,
                           "\nprompt tokens found in the KV cache: ", stats.cached_prompt_tokens,
                           "\ntokens generated: ", stats.generated_tokens,
                           "\npages of the KV cache kept: ", stats.pages_cached, "\n"));
    return absl::OkStatus();
  }
  absl::Status Exit(const std::string&) {
    ended_ = true;
    return absl::OkStatus();
  }

  struct NamedCommand {
    absl::string_view name;
    absl::Status (Conversation::*run)(const std::string& rest);
  };
  static const NamedCommand kCommands[10];

  ChatSession* const session_;
  const std::string model_;
  const bool terminal_;
  ChatLines lines_;
  bool ended_ = false;
};

const Conversation::NamedCommand Conversation::kCommands[10] = {
    {"/help", &Conversation::Help}, {"/clear", &Conversation::Clear}, {"/system", &Conversation::System},
    {"/undo", &Conversation::Undo}, {"/retry", &Conversation::Retry}, {"/set", &Conversation::Set},
    {"/save", &Conversation::Save}, {"/load", &Conversation::Load},   {"/stats", &Conversation::Stats},
    {"/exit", &Conversation::Exit}};

absl::Status Run(const Options& options) {
  auto progress = std::make_unique<Progress>();
  ASSIGN_OR_RETURN(const std::unique_ptr<ChatSession> session, ChatSession::Create(options.chat, progress.get()));
  progress.reset();
  if (!options.json) PrintSampling(session->sampling());
  Conversation conversation(session.get(), options.chat.source.path);
  return options.json ? conversation.TalkJson() : conversation.Talk();
}

}  // namespace
}  // namespace chat_command

void AddChat(CLI::App& app, Command* chosen) {
  using namespace chat_command;
  CLI::App* command = AddCommand(app, "chat", kSummary, kDetails);
  auto options = std::make_shared<Options>();
  AddRunnableOptions(command, &options->chat.source);
  AddPaginationOptions(command, &options->chat.source);
  command->add_option("--system", options->chat.system, "the message of the system, before all others");
  AddAnswerOptions(command, &options->chat);
  command->add_option("--tokenizer", options->chat.tokenizer,
                      "folder with the files of a tokenizer and the template, or a tokenizer.json");
  CLI::Option* file = command->add_option("--template", options->chat.template_file, "a file with a chat template");
  command->add_option("--template-name", options->chat.template_name, "one of several templates of the model, by name")
      ->excludes(file);
  command
      ->add_option("--variable", options->chat.template_variables,
                   "NAME=VALUE, for the template; VALUE is JSON or else a text; may be given several times")
      ->allow_extra_args(false)
      ->check(CheckTemplateVariable);
  command->add_flag("--json", options->json, "one JSON object a line, in and out");
  command->callback([options, chosen] {
    RequireUsage(CheckSamplingOptions(options->chat.sampling));
    *chosen = [options] { return Run(*options); };
  });
}

}  // namespace llmc
