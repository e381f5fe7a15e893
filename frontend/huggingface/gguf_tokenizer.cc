// The tokenizer in a GGUF file's metadata as a tokenizer.json.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "files/path_check.h"
#include "frontend/huggingface/gguf.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

// tokenizer.ggml.token_type
constexpr int kUnknownToken = 2, kControlToken = 3, kUserToken = 4, kByteToken = 6;
constexpr size_t kMaxTokenBytes = 1024;
constexpr uint64_t kMaxSplitWork = uint64_t{1} << 31;

json SplitBy(const char* pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}
json ByteLevelStep(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}
json Steps(json first, json second) {
  return {{"type", "Sequence"}, {"pretokenizers", {std::move(first), std::move(second)}}};
}

// How texts become words, by tokenizer.ggml.pre.
struct GgufPreTokenizer {
  absl::string_view name;
  json (*make)();
  bool normalizes = false;      // to NFC
  bool ignores_merges = false;  // a word that is a token is that
  bool adds_begin = false;      // where the file does not say
};
const GgufPreTokenizer kPreTokenizers[] = {
    {"gpt-2", [] { return ByteLevelStep(true); }},
    {"llama-bpe",
     [] {
       return Steps(SplitBy("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                            "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
                    ByteLevelStep(false));
     },
     false, true, true},
    {"qwen2",
     [] {
       return Steps(SplitBy("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
                            "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"),
                    ByteLevelStep(false));
     },
     true},
    {"starcoder",
     [] {
       return Steps({{"type", "Digits"}, {"individual_digits", true}}, ByteLevelStep(true));
     }},
};

class GgufTokenizerReader {
 public:
  GgufTokenizerReader(const std::string& path, const GgufFile& file) : path_(path), metadata_(file.metadata) {}

  absl::StatusOr<GgufTokenizer> Read() {
    const json* model = Find("tokenizer.ggml.model");
    if (model == nullptr || *model == "none" || *model == "no_vocab") return GgufTokenizer();
    RETURN_IF_ERROR(ReadTokens());
    json out = {{"version", "1.0"}, {"added_tokens", Added()}, {"post_processor", nullptr}};
    if (*model == "gpt2") {
      RETURN_IF_ERROR(PutByteLevel(&out));
    } else if (*model == "llama") {
      RETURN_IF_ERROR(PutSentencePiece(&out));
    } else {
      return absl::UnimplementedError(absl::StrCat(path_, ": tokenizer.ggml.model ", Text(*model),
                                                   " is not supported; supported are gpt2 and llama: give a "
                                                   "tokenizer.json with --tokenizer"));
    }
    ASSIGN_OR_RETURN(const json config, Config());
    const auto replace = json::error_handler_t::replace;
    return GgufTokenizer{.tokenizer = out.dump(-1, ' ', false, replace),
                         .config = config.dump(-1, ' ', false, replace)};
  }

 private:
  const json* Find(const std::string& key) const {
    const auto at = metadata_.find(key);
    return at == metadata_.end() ? nullptr : &*at;
  }
  static std::string Text(const json& value) {
    return value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 200);
  }
  absl::Status Wrong(const std::string& key, absl::string_view wanted) const {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": metadata \"", key, "\" must be ", wanted));
  }

  absl::Status ReadTokens() {
    const json* tokens = Find("tokenizer.ggml.tokens");
    if (tokens == nullptr || !tokens->is_array() || tokens->empty()) {
      return Wrong("tokenizer.ggml.tokens", "a list of strings");
    }
    for (const json& token : *tokens) {
      if (!token.is_string() || token.get_ref<const std::string&>().size() > kMaxTokenBytes) {
        return Wrong("tokenizer.ggml.tokens", absl::StrCat("a list of strings of at most ", kMaxTokenBytes, " bytes"));
      }
      tokens_.push_back(token.get<std::string>());
      if (ids_.emplace(tokens_.back(), tokens_.size() - 1).second) continue;
      return Wrong("tokenizer.ggml.tokens",
                   absl::StrCat("different strings; ", Quoted(tokens_.back()), " is there twice"));
    }
    types_.assign(tokens_.size(), 1);
    const json* types = Find("tokenizer.ggml.token_type");
    if (types == nullptr) return absl::OkStatus();
    const auto is_type = [](const json& type) { return type.is_number_integer() && type >= 0 && type <= 6; };
    if (!types->is_array() || types->size() != tokens_.size() || !std::all_of(types->begin(), types->end(), is_type)) {
      return Wrong("tokenizer.ggml.token_type", "a list of a number from 0 to 6 for each token");
    }
    types_ = types->get<std::vector<int>>();
    return absl::OkStatus();
  }

  json Vocabulary() const {
    json vocabulary = json::object();
    for (size_t id = 0; id < tokens_.size(); ++id) vocabulary[tokens_[id]] = id;
    return vocabulary;
  }

  json Added() const {
    json added = json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const bool is_special = types_[id] == kControlToken || types_[id] == kUnknownToken;
      if (!is_special && types_[id] != kUserToken) continue;
      added.push_back({{"id", id},
                       {"content", tokens_[id]},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false},
                       {"special", is_special}});
    }
    return added;
  }

  absl::Status PutByteLevel(json* out) {
    const json* pre = Find("tokenizer.ggml.pre");
    const auto* found = std::find_if(std::begin(kPreTokenizers), std::end(kPreTokenizers),
                                     [&](const auto& row) { return pre != nullptr && *pre == std::string(row.name); });
    if (found == std::end(kPreTokenizers)) {
      return absl::UnimplementedError(absl::StrCat(
          path_, ": tokenizer.ggml.pre ", pre == nullptr ? "that is absent" : Text(*pre),
          " is not supported; supported are ",
          absl::StrJoin(kPreTokenizers, ", ", [](std::string* s, const auto& row) { absl::StrAppend(s, row.name); }),
          ": give a tokenizer.json with --tokenizer"));
    }
    adds_begin_ = found->adds_begin;
    const json* merges = Find("tokenizer.ggml.merges");
    const auto is_text = [](const json& merge) { return merge.is_string(); };
    if (merges == nullptr || !merges->is_array() || !std::all_of(merges->begin(), merges->end(), is_text)) {
      return Wrong("tokenizer.ggml.merges", "a list of strings");
    }
    (*out)["normalizer"] = found->normalizes ? json{{"type", "NFC"}} : json();
    (*out)["pre_tokenizer"] = found->make();
    (*out)["decoder"] = ByteLevelStep(true);
    (*out)["model"] = {
        {"type", "BPE"}, {"vocab", Vocabulary()}, {"merges", *merges}, {"ignore_merges", found->ignores_merges}};
    return absl::OkStatus();
  }

  // SentencePiece's BPE joins the two neighbours whose piece has the highest score; as merges in order of scores, as
  // the Python packages convert it.
  absl::Status PutSentencePiece(json* out) {
    const json* scores = Find("tokenizer.ggml.scores");
    const auto is_number = [](const json& score) { return score.is_number() && std::isfinite(score.get<double>()); };
    if (scores == nullptr || !scores->is_array() || scores->size() != tokens_.size() ||
        !std::all_of(scores->begin(), scores->end(), is_number)) {
      return Wrong("tokenizer.ggml.scores", "a list of a finite number for each token");
    }
    uint64_t work = 0;  // of finding the halves of all pieces
    for (const std::string& token : tokens_) work += token.size() * token.size();
    if (work > kMaxSplitWork) return Wrong("tokenizer.ggml.tokens", "shorter: the pieces have too many halves");
    adds_begin_ = true;
    const json* prefix = Find("tokenizer.ggml.add_space_prefix");
    const bool adds_space = prefix == nullptr || *prefix != false;
    const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}};
    const json prepend = {{"type", "Prepend"}, {"prepend", "▁"}};
    json steps = adds_space ? json{prepend, replace} : json{replace};
    (*out)["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    (*out)["pre_tokenizer"] = nullptr;
    json stages = {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
    if (adds_space) stages.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    (*out)["decoder"] = {{"type", "Sequence"}, {"decoders", stages}};
    json model = {{"type", "BPE"},
                  {"vocab", Vocabulary()},
                  {"merges", Merges(scores->get<std::vector<double>>())},
                  {"fuse_unk", true},
                  {"byte_fallback", true}};
    const auto unknown = std::find(types_.begin(), types_.end(), kUnknownToken);
    if (unknown != types_.end()) model["unk_token"] = tokens_[static_cast<size_t>(unknown - types_.begin())];
    (*out)["model"] = std::move(model);
    return absl::OkStatus();
  }

  json Merges(const std::vector<double>& scores) const {
    struct Merge {
      double score;
      size_t left, right;
    };
    const auto is_piece = [this](size_t id) { return types_[id] != kControlToken && types_[id] != kByteToken; };
    std::vector<Merge> merges;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const std::string& token = tokens_[id];
      const size_t first = merges.size();
      for (size_t at = 1; is_piece(id) && at < token.size(); ++at) {
        const auto left = ids_.find(token.substr(0, at)), right = ids_.find(token.substr(at));
        if (left == ids_.end() || right == ids_.end()) continue;
        if (is_piece(left->second) && is_piece(right->second))
          merges.push_back({scores[id], left->second, right->second});
      }
      std::sort(merges.begin() + static_cast<int64_t>(first), merges.end(),
                [](const Merge& a, const Merge& b) { return std::pair(a.left, a.right) < std::pair(b.left, b.right); });
    }
    std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) { return a.score > b.score; });
    json list = json::array();
    for (const Merge& merge : merges) list.push_back({tokens_[merge.left], tokens_[merge.right]});
    return list;
  }

  absl::StatusOr<json> Config() const {
    json config = {{"add_bos_token", adds_begin_}, {"add_eos_token", false}};
    for (const char* name : {"add_bos_token", "add_eos_token"}) {
      const json* value = Find(absl::StrCat("tokenizer.ggml.", name));
      if (value == nullptr) continue;
      if (!value->is_boolean()) return Wrong(absl::StrCat("tokenizer.ggml.", name), "true or false");
      config[name] = *value;
    }
    for (const char* name : {"bos", "eos"}) {
      const std::string key = absl::StrCat("tokenizer.ggml.", name, "_token_id");
      const json* id = Find(key);
      if (id == nullptr) continue;
      if (!id->is_number_unsigned() || *id >= tokens_.size()) {
        return Wrong(key, absl::StrCat("a token's number, below ", tokens_.size()));
      }
      config[absl::StrCat(name, "_token")] = tokens_[id->get<size_t>()];
    }
    const json* chat = Find("tokenizer.chat_template");
    if (chat != nullptr && chat->is_string()) config["chat_template"] = *chat;
    return config;
  }

  const std::string& path_;
  const json& metadata_;
  std::vector<std::string> tokens_;
  std::vector<int> types_;
  std::unordered_map<std::string, size_t> ids_;
  bool adds_begin_ = false;
};

}  // namespace

absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(const std::string& path, const GgufFile& file) {
  return GgufTokenizerReader(path, file).Read();
}

}  // namespace llmc::hf
