// The `post_processor` of tokenizer.json: puts special tokens around a text's ids.
#ifndef LLMC_RUNTIME_TEXT_POST_PROCESSOR_H_
#define LLMC_RUNTIME_TEXT_POST_PROCESSOR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/text/json_node.h"

namespace llmc {

// For one text the supported processors all come to this: some ids before it and some behind.
class PostProcessor {
 public:
  static absl::StatusOr<PostProcessor> FromJson(const JsonNode& node);

  // `repeat_first`: also where the ids begin with what comes before them; else that is not put there again.
  void AddSpecialTokens(bool repeat_first, std::vector<int32_t>* ids) const;
  // From now on adds `id` once before (behind) a text, or not, whatever the file says of it.
  void SetFirst(int32_t id, bool added);
  void SetLast(int32_t id, bool added);
  // All ids that it may add.
  std::vector<int32_t> Ids() const;

 private:
  absl::Status Read(const JsonNode& node);
  absl::Status ReadTemplate(const JsonNode& node);
  absl::Status ReadPair(const JsonNode& node);
  absl::Status ReadSequence(const JsonNode& node);

  std::vector<int32_t> before_;
  std::vector<int32_t> after_;
};

}  // namespace llmc

#endif  // LLMC_RUNTIME_TEXT_POST_PROCESSOR_H_
