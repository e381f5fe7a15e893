// The `post_processor` of tokenizer.json: puts special tokens around a text's ids, or around those of two.
#ifndef LLMC_RUNTIME_TEXT_POST_PROCESSOR_H_
#define LLMC_RUNTIME_TEXT_POST_PROCESSOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/text/json_node.h"

namespace llmc {

// Tokens of a text, or of two that are read as one, and the type of each.
struct TypedTokens {
  std::vector<int32_t> ids;
  std::vector<int32_t> types;
};

// For one text the supported processors all come to this: some ids before it and some behind.
class PostProcessor {
 public:
  static absl::StatusOr<PostProcessor> FromJson(const JsonNode& node);

  // `repeat_first`: also where the ids begin with what comes before them; else that is not put there again.
  void AddSpecialTokens(bool repeat_first, std::vector<int32_t>* ids) const;
  // The tokens of two texts, joined. Unimplemented: a text has other special tokens than the file says (SetFirst,
  // SetLast), or does not name each of two texts once, or two steps put tokens around them.
  absl::StatusOr<TypedTokens> Join(absl::Span<const int32_t> first, absl::Span<const int32_t> second) const;
  // From now on adds `id` once before (behind) a text, or not, whatever the file says of it.
  void SetFirst(int32_t id, bool added);
  void SetLast(int32_t id, bool added);
  // All ids that it may add.
  std::vector<int32_t> Ids() const;

 private:
  // A part of two texts that are joined: special tokens, or one of the texts.
  struct Piece {
    enum Kind { kTokens, kFirst, kSecond } kind = kTokens;
    std::vector<int32_t> ids = {};
    int32_t type = 0;
  };

  absl::Status Read(const JsonNode& node);
  absl::Status ReadTemplate(const JsonNode& node);
  absl::Status ReadTemplateOfTwo(const JsonNode& node);
  absl::Status ReadEnds(const JsonNode& node, bool is_roberta);
  absl::Status ReadSequence(const JsonNode& node);
  // Of one step; of several it is not known how they come together.
  void SetOfTwo(std::vector<Piece> pieces);

  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
  std::vector<Piece> of_two_;  // empty: no step puts anything there
  bool of_two_is_known_ = true;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_POST_PROCESSOR_H_
