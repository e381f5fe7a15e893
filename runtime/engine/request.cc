#include "runtime/engine/request.h"

namespace llmc {

absl::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

void Completion::Add(const TokenEvent& event) {
  if (event.token.has_value()) tokens.push_back(*event.token);
  text += event.text;
  if (event.log_prob.has_value()) log_probs.push_back(*event.log_prob);
  finish = event.finish;
  status = event.status;
}

}  // namespace llmc
