#include "frontend/huggingface/weights.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "files/path_check.h"
#include "files/random_source.h"

namespace llmc {
namespace {

constexpr double kRandomWidth = 0.035;  // a deviation of 0.02, which models begin their training with

std::string Line(absl::string_view title, const std::vector<std::string>& items) {
  constexpr size_t kShown = 30;
  if (items.empty()) return "";
  const auto end = items.begin() + static_cast<int64_t>(std::min(items.size(), kShown));
  return absl::StrCat("\n  ", title, " (", items.size(), "): ", absl::StrJoin(items.begin(), end, ", "),
                      items.size() > kShown ? ", …" : "");
}

bool IsActivationType(DType dtype) { return IsFloat(dtype) && DTypeBits(dtype) >= 16; }

}  // namespace

Value* HfWeights::Add(const std::string& name, const std::string& tensor, const Shape& shape, double mean) {
  if (checkpoint_ == nullptr) {
    return model_->AddWeight(name, {dtype_, Dims(shape.begin(), shape.end())},
                             RandomSource({.seed = seed_, .mean = mean, .width = kRandomWidth}, tensor));
  }
  const auto it = checkpoint_->find(tensor);
  if (it == checkpoint_->end()) {
    missing_.push_back(absl::StrCat(tensor, ShapeToString(shape)));
    return nullptr;
  }
  used_.insert(tensor);
  const Tensor& found = it->second.tensor;
  if (found.shape() != shape || !IsActivationType(found.dtype())) {
    wrong_.push_back(absl::StrCat(it->second.file, ": ", tensor, " is ", DTypeName(found.dtype()),
                                  ShapeToString(found.shape()), ", config.json asks for ", ShapeToString(shape),
                                  IsActivationType(found.dtype()) ? "" : " of f64, f32, f16 or bf16"));
    return nullptr;
  }
  const TensorType type{found.dtype(), Dims(shape.begin(), shape.end())};
  Value* value = model_->AddWeight(name, type, WeightSource(it->second.file, tensor));
  model_->data[name] = found;
  return value;
}

void HfWeights::Ignore(const std::string& tensor, const std::string& reason) {
  if (Has(tensor) && used_.insert(tensor).second) ignored_.push_back({tensor, reason});
}

void HfWeights::Refuse(const std::string& tensor, const std::string& why) {
  if (Has(tensor) && used_.insert(tensor).second) wrong_.push_back(absl::StrCat(tensor, ": ", why));
}

bool HfWeights::SameContents(const std::string& a, const std::string& b) const {
  if (!Has(a) || !Has(b)) return true;
  const auto x = checkpoint_->find(a), y = checkpoint_->find(b);
  return x->second.tensor == y->second.tensor;
}

absl::Status HfWeights::Finish(std::vector<IgnoredTensor>* ignored) {
  if (checkpoint_ == nullptr) return absl::OkStatus();
  std::vector<std::string> unused;
  for (const auto& [name, tensor] : *checkpoint_) {
    if (!used_.contains(name)) unused.push_back(absl::StrCat(tensor.file, ": ", Quoted(name)));
  }
  if (!missing_.empty() || !wrong_.empty() || !unused.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder_, ": the checkpoint does not fit config.json:", Line("missing tensors", missing_),
        Line("tensors of a wrong shape or type", wrong_), Line("tensors that this architecture does not use", unused)));
  }
  if (ignored != nullptr) *ignored = std::move(ignored_);
  return absl::OkStatus();
}

}  // namespace llmc
