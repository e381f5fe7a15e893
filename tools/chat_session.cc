#include "tools/chat_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "runtime/chat/template_files.h"
#include "runtime/model_parts.h"
#include "tools/model_folder.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;
using ChatClock = std::chrono::steady_clock;
constexpr int64_t kMaxTemplateBytes = int64_t{4} << 20;

// The value as JSON, or else as the text that it is.
Json VariableValue(const std::string& text) {
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return value.is_discarded() ? Json(text) : value;
}

// The templates that came with the model, or with another tokenizer.
absl::StatusOr<TemplateFiles> TemplatesOf(const ModelSource& source, const std::string& tokenizer) {
  if (!tokenizer.empty()) {
    const std::string folder = FolderOf(tokenizer);
    return ReadTemplateFiles(SideFilesOf(folder), folder);
  }
  if (!Plan::IsPlan(source.path)) return ReadTemplateFiles(SideFilesOf(source.SideFolder()), source.SideFolder());
  ASSIGN_OR_RETURN(std::unique_ptr<Plan> plan, Plan::Load(source.path, {.verify_weights = false}));
  ASSIGN_OR_RETURN(const ModelParts parts, PartsOfPlan(std::move(plan)));
  return ReadTemplateFiles(parts.files, "");
}

}  // namespace

std::string CheckTemplateVariable(const std::string& text) {
  const size_t equals = text.find('=');
  return equals == std::string::npos || equals == 0 ? absl::StrCat("'", text, "' is not NAME=VALUE") : "";
}

void AddAnswerOptions(CLI::App* command, ChatOptions* options) {
  command->add_option("--max-new-tokens", options->max_new_tokens, "of an answer, at most so many")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  AddSamplingOptions(command, &options->sampling);
}

absl::Status CheckMessages(const Json& messages, absl::string_view name) {
  if (!messages.is_array()) return absl::InvalidArgumentError(absl::StrCat(name, ": holds no list of messages"));
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (message.is_object() && message.contains("role") && message["role"].is_string()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": message ", i + 1, " is no object with a role that is a string"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ChatSession>> ChatSession::Create(const ChatOptions& options, Progress* progress) {
  auto session = std::unique_ptr<ChatSession>(new ChatSession(options));
  for (const std::string& variable : options.template_variables) {
    const size_t equals = variable.find('=');
    session->variables_[variable.substr(0, equals)] = VariableValue(variable.substr(equals + 1));
  }
  RETURN_IF_ERROR(session->LoadTemplate());
  ASSIGN_OR_RETURN(session->run_, LoadLanguage(options.source, options.tokenizer, options.sampling, progress));
  LoadedPlan* const model = session->run_.model.get();
  if (model->tokenizer() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("a chat needs a tokenizer; give --tokenizer DIR: ", model->tokenizer_status().message()));
  }
  session->encoder_ = std::make_unique<ChatEncoder>(*model->tokenizer(), session->template_->source());
  ASSIGN_OR_RETURN(session->engine_, NewEngineFor(/*sequences=*/1, /*prefix_cache=*/true, model));
  if (!options.system.empty()) session->SetSystem(options.system);
  return session;
}

absl::Status ChatSession::LoadTemplate() {
  ASSIGN_OR_RETURN(const TemplateFiles files, TemplatesOf(options_.source, options_.tokenizer));
  TemplateFile chosen{"", options_.template_file, ""};
  if (!options_.template_file.empty()) {
    ASSIGN_OR_RETURN(chosen.text, ReadTextFile(options_.template_file, kMaxTemplateBytes));
  } else {
    absl::StatusOr<TemplateFile> found = ChooseTemplate(files, options_.template_name, /*has_tools=*/false);
    if (!found.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(options_.source.path, ": ", found.status().message(), "; give --template FILE"));
    }
    chosen = *std::move(found);
  }
  ChatTemplateOptions options;
  options.special_tokens = files.special_tokens;
  ASSIGN_OR_RETURN(template_, ChatTemplate::Parse(chosen.text, chosen.source, std::move(options)));
  return absl::OkStatus();
}

absl::Status ChatSession::MergeOptions() {
  ASSIGN_OR_RETURN(run_.sampling, MergeSampling(options_.sampling, run_.model->generation()->sampling));
  return absl::OkStatus();
}

void ChatSession::SetSystem(const std::string& text) {
  if (!messages_.empty() && messages_[0]["role"] == "system") messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), Json{{"role", "system"}, {"content", text}});
}

void ChatSession::Clear() {
  while (!messages_.empty() && messages_.back()["role"] != "system") messages_.erase(messages_.end() - 1);
}

bool ChatSession::DropAnswer() {
  const auto is_user = [](const Json& message) { return message["role"] == "user"; };
  if (std::none_of(messages_.begin(), messages_.end(), is_user)) return false;
  while (!is_user(messages_.back())) messages_.erase(messages_.end() - 1);
  return true;
}

bool ChatSession::Undo() {
  if (!DropAnswer()) return false;
  messages_.erase(messages_.end() - 1);
  return true;
}

absl::StatusOr<std::vector<int32_t>> ChatSession::Prompt() const {
  ChatInput input;
  input.messages = messages_;
  input.variables = variables_;
  ASSIGN_OR_RETURN(const RenderedChat chat, template_->Render(input));
  return encoder_->Encode(chat);
}

absl::StatusOr<ChatAnswer> ChatSession::Answer(const std::function<void(absl::string_view)>& show,
                                               const std::atomic<bool>& interrupted) {
  Request request;
  ASSIGN_OR_RETURN(request.prompt_ids, Prompt());
  request.max_new_tokens = options_.max_new_tokens;
  request.sampling = run_.sampling;
  ++run_.sampling.seed;  // so that another try is another answer
  ChatAnswer answer;
  answer.prompt_tokens = static_cast<int64_t>(request.prompt_ids.size());
  const int64_t cached = engine_->stats().cached_prompt_tokens;
  const ChatClock::time_point start = ChatClock::now();
  const auto seconds = [start] { return std::chrono::duration<double>(ChatClock::now() - start).count(); };
  Completion completion;
  ASSIGN_OR_RETURN(const RequestId id, engine_->AddRequest(std::move(request), [&](const TokenEvent& event) {
    if (completion.tokens.empty()) answer.first_token_s = seconds();
    completion.Add(event);
    if (!event.text.empty()) show(event.text);
  }));
  bool cancelled = false;
  while (!engine_->idle()) {
    if (interrupted && !std::exchange(cancelled, true)) engine_->Cancel(id).IgnoreError();
    RETURN_IF_ERROR(engine_->Step());
  }
  RETURN_IF_ERROR(completion.status);
  answer.text = completion.text;
  answer.finish = completion.finish.value_or(FinishReason::kError);
  answer.cached_tokens = engine_->stats().cached_prompt_tokens - cached;
  answer.new_tokens = static_cast<int64_t>(completion.tokens.size());
  answer.seconds = seconds();
  messages_.push_back({{"role", "assistant"}, {"content", answer.text}});
  return answer;
}

absl::Status ChatSession::Set(const std::string& name, const std::string& value) {
  const ChatOptions before = options_;
  CLI::App parser;
  AddAnswerOptions(&parser, &options_);
  if (parser.get_option_no_throw(absl::StrCat("--", name)) == nullptr || name == "help") {
    std::vector<std::string> names;
    for (const CLI::Option* option : parser.get_options()) {
      if (option->get_name() != "--help") names.push_back(option->get_name().substr(2));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("there is no '", name, "' to set; there are ", absl::StrJoin(names, ", ")));
  }
  try {
    std::vector<std::string> reversed = {value, absl::StrCat("--", name)};
    parser.parse(reversed);
  } catch (const CLI::ParseError& error) {
    options_ = before;
    return absl::InvalidArgumentError(error.what());
  }
  absl::Status status = CheckSamplingOptions(options_.sampling);
  if (status.ok()) status = MergeOptions();
  if (!status.ok()) options_ = before;
  return status;
}

}  // namespace llmc
