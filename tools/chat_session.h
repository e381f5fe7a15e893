// A conversation with a model: messages, template, engine. What `llmc chat` shows and reads is command_chat.cc's
// matter.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/chat/chat_encoder.h"
#include "runtime/chat/chat_template.h"
#include "runtime/llmc.h"
#include "tools/language_run.h"
#include "tools/model_source.h"
#include "tools/progress.h"
#include "tools/sampling_options.h"

namespace llmc {

struct ChatOptions {
  ModelSource source;
  std::string tokenizer;                        // as of `generate`
  std::string template_file, template_name;     // empty: the model's own, its default
  std::vector<std::string> template_variables;  // NAME=VALUE
  std::string system;
  int64_t max_new_tokens = 1024;
  SamplingOptions sampling;
};

// Declares what is set while a conversation goes on too (/set): how tokens are drawn, and how many.
void AddAnswerOptions(CLI::App* command, ChatOptions* options);

struct ChatAnswer {
  std::string text;
  FinishReason finish = FinishReason::kError;
  int64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  double first_token_s = 0, seconds = 0;  // until the first token; of the whole
};

// For one thread, but that `interrupted` may be set by a signal.
class ChatSession {
 public:
  static absl::StatusOr<std::unique_ptr<ChatSession>> Create(const ChatOptions& options, Progress* progress);

  nlohmann::ordered_json& messages() { return messages_; }
  void SetSystem(const std::string& text);
  // No message is left but that of the system.
  void Clear();
  // Drops the last message of the user and what followed. False: there is none.
  bool Undo();
  // Drops what followed the last message of the user. False: there is none.
  bool DropAnswer();

  // Answers the messages, and adds the answer to them. `show` gets the text as it comes; setting `interrupted` ends the
  // answer. On an error the messages are as before.
  absl::StatusOr<ChatAnswer> Answer(const std::function<void(absl::string_view)>& show,
                                    const std::atomic<bool>& interrupted);

  // "temperature", "0.7" and so on: the options of AddAnswerOptions by name. InvalidArgument: no such, or a wrong
  // value.
  absl::Status Set(const std::string& name, const std::string& value);
  const SamplingParams& sampling() const { return run_.sampling; }
  EngineStats stats() const { return engine_->stats(); }

 private:
  explicit ChatSession(ChatOptions options) : options_(std::move(options)) {}
  absl::Status LoadTemplate();
  absl::StatusOr<std::vector<int32_t>> Prompt() const;
  absl::Status MergeOptions();

  ChatOptions options_;
  LanguageRun run_;
  std::unique_ptr<ChatTemplate> template_;
  std::unique_ptr<ChatEncoder> encoder_;
  std::unique_ptr<Engine> engine_;
  nlohmann::ordered_json variables_ = nlohmann::ordered_json::object();
  nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();
};

// An error message unless it is NAME=VALUE, or "".
std::string CheckTemplateVariable(const std::string& text);

// InvalidArgument if it is no list of messages: objects with a role. `name` goes into the error.
absl::Status CheckMessages(const nlohmann::ordered_json& messages, absl::string_view name);

}  // namespace llmc
