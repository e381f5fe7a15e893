// The `decoder` of tokenizer.json: turns the texts of tokens back into plain text, as they come.
#ifndef LLMC_RUNTIME_TEXT_DECODER_H_
#define LLMC_RUNTIME_TEXT_DECODER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/json_node.h"

namespace llmc {

// Takes the texts of tokens, in fragments of whole characters. A decoder that joins all tokens into one sends that in
// many fragments, of which only the first begins it and only the last, from Finish(), ends it.
class DecodeSink {
 public:
  virtual ~DecodeSink() = default;
  // `text` lives as long as the call.
  virtual void Push(absl::string_view text, bool begins, bool ends) = 0;
};

// One decoder at work on one stream. Not thread safe.
class DecodeStage : public DecodeSink {
 public:
  // The stream is over: sends on what was held back.
  virtual void Finish() {}
  // Once, before the first Push.
  void SendTo(DecodeSink* next) { next_ = next; }

 protected:
  void Emit(absl::string_view text, bool begins, bool ends) { next_->Push(text, begins, ends); }
  void EmitToken(absl::string_view text) { Emit(text, /*begins=*/true, /*ends=*/true); }

 private:
  DecodeSink* next_ = nullptr;
};

// A chain of decoders at work on one stream.
class DecodeStream {
 public:
  explicit DecodeStream(std::vector<std::unique_ptr<DecodeStage>> stages);
  // Takes the text of the next token, appends the text that is final now.
  void Push(absl::string_view token, std::string* out);
  void Finish(std::string* out);

 private:
  // The end of the chain.
  struct Collector : DecodeSink {
    void Push(absl::string_view text, bool, bool) override { out->append(text.data(), text.size()); }
    std::string* out = nullptr;
  };

  std::unique_ptr<Collector> collector_ = std::make_unique<Collector>();
  std::vector<std::unique_ptr<DecodeStage>> stages_;
};

// The decoders of a file. Immutable, so thread safe.
class Decoder {
 public:
  // Without a decoder tokens are joined with spaces.
  static Decoder JoinWithSpaces();
  using MakeStage = std::function<std::unique_ptr<DecodeStage>()>;
  // One stage, which makes not far more text as it is given.
  static Decoder FromStage(MakeStage make);
  static absl::StatusOr<Decoder> FromJson(const JsonNode& node);
  DecodeStream NewStream() const;
  // Whether it does nothing but read byte-level's alphabet.
  bool IsByteLevel() const { return is_byte_level_ && stages_.size() == 1; }

 private:
  absl::Status Read(const JsonNode& node);
  absl::Status ReadReplace(const JsonNode& node);
  absl::Status ReadStrip(const JsonNode& node);
  absl::Status ReadWordPiece(const JsonNode& node);
  absl::Status ReadCtc(const JsonNode& node);
  absl::Status ReadBpeSuffix(const JsonNode& node);

  std::vector<MakeStage> stages_;
  bool is_byte_level_ = false;  // one of the stages is
  double growth_ = 1;           // bytes that the stages make of one, at most
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_DECODER_H_
