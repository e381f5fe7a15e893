#include "runtime/text/decoder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/text/decode_stages.h"
#include "runtime/text/metaspace.h"
#include "runtime/text/regex.h"
#include "runtime/text/utf8.h"

namespace llmc {
namespace {

// Decoding has no errors, so what it can make of a text is limited beforehand.
constexpr int kMaxGrowth = 64;

}  // namespace

DecodeStream::DecodeStream(std::vector<std::unique_ptr<DecodeStage>> stages) : stages_(std::move(stages)) {
  DecodeSink* next = collector_.get();
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    (*stage)->SendTo(next);
    next = stage->get();
  }
}

void DecodeStream::Push(absl::string_view token, std::string* out) {
  collector_->out = out;
  DecodeSink* first = stages_.empty() ? static_cast<DecodeSink*>(collector_.get()) : stages_.front().get();
  first->Push(token, /*begins=*/true, /*ends=*/true);
}

void DecodeStream::Finish(std::string* out) {
  collector_->out = out;
  for (const std::unique_ptr<DecodeStage>& stage : stages_) stage->Finish();
}

Decoder Decoder::JoinWithSpaces() { return FromStage(NewJoinStage); }

Decoder Decoder::FromStage(MakeStage make) {
  Decoder decoder;
  decoder.stages_.push_back(std::move(make));
  return decoder;
}

absl::StatusOr<Decoder> Decoder::FromJson(const JsonNode& node) {
  Decoder decoder;
  RETURN_IF_ERROR(decoder.Read(node));
  if (decoder.growth_ > kMaxGrowth) {
    return node.Error(absl::StrCat("can make a text more than ", kMaxGrowth, " times as long"));
  }
  return decoder;
}

DecodeStream Decoder::NewStream() const {
  std::vector<std::unique_ptr<DecodeStage>> stages;
  for (const MakeStage& make : stages_) stages.push_back(make());
  return DecodeStream(std::move(stages));
}

absl::Status Decoder::Read(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string type, node.GetString("type"));
  if (type == "Sequence") {
    ASSIGN_OR_RETURN(const std::vector<JsonNode> children, node.GetArray("decoders"));
    for (const JsonNode& child : children) {
      RETURN_IF_ERROR(Read(child));
    }
    return absl::OkStatus();
  }
  if (type == "Replace") return ReadReplace(node);
  if (type == "Strip") return ReadStrip(node);
  if (type == "WordPiece") return ReadWordPiece(node);
  if (type == "CTC") return ReadCtc(node);
  if (type == "BPEDecoder") return ReadBpeSuffix(node);
  if (type == "Metaspace") {
    const absl::StatusOr<MetaspaceOptions> options = MetaspaceOptions::FromJson(node);
    if (!options.ok()) return options.status();
    stages_.emplace_back([options = *options] { return NewMetaspaceStage(options); });
  } else if (type == "ByteLevel") {
    growth_ *= 1.5;  // a wrong byte, one character of two bytes, becomes one of three
    is_byte_level_ = true;
    stages_.emplace_back(NewByteLevelStage);
  } else if (type == "ByteFallback") {
    stages_.emplace_back(NewByteFallbackStage);
  } else if (type == "Fuse") {
    stages_.emplace_back(NewFuseStage);
  } else {
    return node.Unsupported(absl::StrCat("decoder \"", type, "\" is not supported"));
  }
  return absl::OkStatus();
}

absl::Status Decoder::ReadReplace(const JsonNode& node) {
  ASSIGN_OR_RETURN(const JsonNode pattern_node, node.Get("pattern"));
  const absl::StatusOr<Pattern> pattern = Pattern::FromJson(pattern_node);
  if (!pattern.ok()) return pattern.status();
  const absl::StatusOr<std::string> content = node.GetString("content");
  if (!content.ok()) return content.status();
  growth_ *= pattern->MaxGrowth(*content);
  stages_.emplace_back([pattern = *pattern, content = *content] { return NewReplaceStage(pattern, content); });
  return absl::OkStatus();
}

absl::Status Decoder::ReadStrip(const JsonNode& node) {
  const absl::StatusOr<std::string> content = node.GetString("content");
  if (!content.ok()) return content.status();
  if (!IsOneChar(*content)) {
    return node.Error("content must be one character");
  }
  const absl::StatusOr<int64_t> start = node.GetInt("start", 0, INT32_MAX);
  if (!start.ok()) return start.status();
  const absl::StatusOr<int64_t> stop = node.GetInt("stop", 0, INT32_MAX);
  if (!stop.ok()) return stop.status();
  stages_.emplace_back(
      [content = *content, start = *start, stop = *stop] { return NewStripStage(content, start, stop); });
  return absl::OkStatus();
}

absl::Status Decoder::ReadWordPiece(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string prefix, node.GetString("prefix", "##"));
  ASSIGN_OR_RETURN(const bool cleanup, node.GetBool("cleanup", true));
  stages_.emplace_back([prefix, cleanup] { return NewWordPieceStage(prefix, cleanup); });
  return absl::OkStatus();
}

absl::Status Decoder::ReadCtc(const JsonNode& node) {
  CtcOptions options;
  ASSIGN_OR_RETURN(options.pad, node.GetString("pad_token", "<pad>"));
  ASSIGN_OR_RETURN(options.delimiter, node.GetString("word_delimiter_token", "|"));
  ASSIGN_OR_RETURN(options.cleanup, node.GetBool("cleanup", true));
  if (options.pad.empty() || options.delimiter.empty()) {
    return node.Error("pad_token and word_delimiter_token must not be empty");
  }
  stages_.emplace_back([options] { return NewCtcStage(options); });
  return absl::OkStatus();
}

absl::Status Decoder::ReadBpeSuffix(const JsonNode& node) {
  ASSIGN_OR_RETURN(const std::string suffix, node.GetString("suffix", "</w>"));
  if (suffix.empty()) return node.Error("suffix must not be empty");
  stages_.emplace_back([suffix] { return NewBpeSuffixStage(suffix); });
  return absl::OkStatus();
}

}  // namespace llmc
