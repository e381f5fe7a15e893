#include "frontend/huggingface/weights.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "files/random_source.h"
#include "frontend/huggingface/number_check.h"
#include "ir/ops.h"

namespace llmc {
namespace {

constexpr double kRandomWidth = 0.035;  // a deviation of 0.02, which models begin their training with

constexpr std::pair<HfFinding::Kind, absl::string_view> kTensorTitles[] = {
    {HfFinding::Kind::kMissing, "missing tensors"},
    {HfFinding::Kind::kWrong, "tensors of a wrong shape or type"},
    {HfFinding::Kind::kExtra, "tensors that this architecture does not use"},
};

// What a line of all of a kind says of one.
std::string TensorText(const HfFinding& finding, absl::string_view who_asks) {
  if (!finding.message.empty()) return finding.message;
  if (finding.kind == HfFinding::Kind::kMissing) return absl::StrCat(finding.place, finding.expected);
  const std::string file = finding.file.empty() ? "" : absl::StrCat(finding.file, ": ");
  if (finding.kind == HfFinding::Kind::kExtra) return absl::StrCat(file, Quoted(finding.place));
  return absl::StrCat(file, finding.place, " is ", finding.found, ", ", who_asks, " for ", finding.expected);
}

std::string TensorLines(const std::vector<HfFinding>& findings, absl::string_view who_asks) {
  constexpr size_t kShown = 30;
  std::string text;
  for (const auto& [kind, title] : kTensorTitles) {
    std::vector<std::string> items;
    size_t count = 0;
    for (const HfFinding& finding : findings) {
      if (finding.kind == kind && ++count <= kShown) items.push_back(TensorText(finding, who_asks));
    }
    if (count == 0) continue;
    absl::StrAppend(&text, "\n  ", title, " (", count, "): ", absl::StrJoin(items, ", "), count > kShown ? ", …" : "");
  }
  return text;
}

bool IsActivationType(DType dtype) { return IsFloat(dtype) && DTypeBits(dtype) >= 16; }

// Of the numbers that it stands for.
Shape LogicalShape(const CheckpointTensor& tensor) {
  Shape shape = tensor.tensor.shape();
  if (tensor.encoding == nullptr || shape.empty()) return shape;
  const EncodingFormat& format = *tensor.encoding->format;
  shape.back() = shape.back() / format.superblock_bytes * format.superblock;
  return shape;
}

}  // namespace

void HfWeights::AddFinding(HfFinding::Kind kind, const std::string& file, const std::string& tensor,
                           const std::string& found, const std::string& expected) {
  findings_.push_back({.kind = kind, .file = file, .place = tensor, .found = found, .expected = expected});
}

void HfWeights::SetPrefix(const std::string& prefix) {
  if (checkpoint_ == nullptr || prefix.empty()) return;
  const auto at = checkpoint_->lower_bound(prefix);
  if (at == checkpoint_->end() || !absl::StartsWith(at->first, prefix)) dropped_prefix_ = prefix;
}

std::string HfWeights::NameOf(const std::string& tensor) const {
  const std::string name(absl::StripPrefix(tensor, dropped_prefix_));
  if (checkpoint_ == nullptr || checkpoint_->contains(name)) return name;
  // What norms' weights were called once.
  for (const auto& [ending, older] : {std::pair(".weight", ".gamma"), {".bias", ".beta"}}) {
    if (!absl::EndsWith(name, ending)) continue;
    const std::string other = absl::StrCat(absl::StripSuffix(name, ending), older);
    if (checkpoint_->contains(other)) return other;
  }
  return name;
}

Value* HfWeights::Add(const std::string& name, const std::string& of_model, const Shape& shape, double mean) {
  const std::string tensor = NameOf(of_model);
  const Dims dims(shape.begin(), shape.end());
  if (checkpoint_ == nullptr) {
    return model_->AddWeight(name, {dtype_, dims},
                             RandomSource({.seed = seed_, .mean = mean, .width = kRandomWidth}, tensor));
  }
  const auto it = checkpoint_->find(tensor);
  if (it == checkpoint_->end()) {
    AddFinding(HfFinding::Kind::kMissing, "", tensor, "nothing", ShapeToString(shape));
    return model_->AddWeight(name, {DType::kF32, dims}, "");
  }
  used_.insert(tensor);
  const Tensor& found = it->second.tensor;
  const Encoding* encoding = it->second.encoding;
  const DType dtype = encoding == nullptr ? found.dtype() : it->second.dtype;
  const bool has_type = IsActivationType(dtype);
  if (const Shape actual = LogicalShape(it->second); actual != shape || !has_type) {
    AddFinding(HfFinding::Kind::kWrong, it->second.file, tensor,
               absl::StrCat(encoding == nullptr ? DTypeName(dtype) : encoding->text, ShapeToString(actual)),
               absl::StrCat(ShapeToString(shape), has_type ? "" : " of f64, f32, f16 or bf16"));
    return model_->AddWeight(name, {has_type ? dtype : DType::kF32, dims}, "");
  }
  if (encoding != nullptr) return AddEncoded(name, tensor, it->second);
  const std::string& stored = it->second.name.empty() ? tensor : it->second.name;
  Value* value = model_->AddWeight(name, {found.dtype(), dims}, WeightSource(it->second.file, stored));
  model_->data[value->name] = found;
  return value;
}

Value* HfWeights::AddEncoded(const std::string& name, const std::string& tensor, const CheckpointTensor& found) {
  const Shape& shape = found.tensor.shape();
  Value* blocks = model_->AddWeight(name + ".blocks", {found.tensor.dtype(), Dims(shape.begin(), shape.end())},
                                    WeightSource(found.file, found.name.empty() ? tensor : found.name));
  model_->data[blocks->name] = found.tensor;
  const EncodingFormat& format = *found.encoding->format;
  if (const std::optional<int64_t> bad = hf::FirstBadSuperblock(found.tensor, format); bad.has_value()) {
    const int64_t row = shape.back() / format.superblock_bytes;  // blocks of a row
    Complain(tensor, absl::StrCat(StoredName(tensor), ": a scale of block ", *bad % row, " of row ", *bad / row,
                                  " is NaN or infinite (", format.name, "): the file is damaged"));
  }
  Builder prepare(model_, &model_->prepare);
  prepare.set_loc(StoredName(tensor));
  return prepare.Add(Encode{.components = {blocks}, .as = found.encoding->text, .to = found.dtype}, name);
}

const CheckpointTensor* HfWeights::Find(const std::string& tensor) const {
  if (checkpoint_ == nullptr) return nullptr;
  const auto it = checkpoint_->find(NameOf(tensor));
  return it == checkpoint_->end() ? nullptr : &it->second;
}

Value* HfWeights::AddPart(const std::string& name, const std::string& of_model, absl::Span<const DType> types,
                          const Shape& shape, const std::string& why, const std::string& module) {
  const std::string tensor = NameOf(of_model);
  const CheckpointTensor* found = Find(of_model);
  const Dims dims(shape.begin(), shape.end());
  if (found == nullptr) {
    AddFinding(HfFinding::Kind::kMissing, "", tensor, "nothing", ShapeToString(shape));
    findings_.back().message = absl::StrCat(module, " is quantized, but has no ", tensor, " ", ShapeToString(shape));
    return AddNothing(name, {types[0], dims});
  }
  used_.insert(tensor);
  const DType dtype = found->tensor.dtype();
  const bool has_type = std::find(types.begin(), types.end(), dtype) != types.end();
  if (found->tensor.shape() != shape || !has_type) {
    const auto type_name = [](std::string* out, DType type) { absl::StrAppend(out, DTypeName(type)); };
    const std::string of_types = has_type ? "" : absl::StrCat(" of ", absl::StrJoin(types, ", ", type_name));
    AddFinding(HfFinding::Kind::kWrong, found->file, tensor,
               absl::StrCat(DTypeName(dtype), ShapeToString(found->tensor.shape())),
               absl::StrCat(ShapeToString(shape), of_types, why));
    return AddNothing(name, {has_type ? dtype : types[0], dims});
  }
  const std::string& stored = found->name.empty() ? tensor : found->name;
  Value* value = model_->AddWeight(name, {dtype, dims}, WeightSource(found->file, stored));
  model_->data[value->name] = found->tensor;
  return value;
}

Value* HfWeights::AddBytes(const std::string& name, const std::string& of_model, int64_t bytes, const std::string& why,
                           const std::string& module) {
  const DType types[] = {DType::kU8};
  const CheckpointTensor* found = Find(of_model);
  const bool is_of_others = found != nullptr && found->tensor.dtype() != DType::kU8 && found->encoding == nullptr &&
                            found->tensor.bytes() == bytes && found->tensor.shape() == Shape{found->tensor.size(), 1};
  if (!is_of_others) return AddPart(name, of_model, types, {bytes, 1}, why, module);
  const std::string tensor = NameOf(of_model);
  used_.insert(tensor);
  Value* value = model_->AddWeight(name, {DType::kU8, {Dim(bytes), Dim(1)}},
                                   WeightSource(found->file, found->name.empty() ? tensor : found->name));
  model_->data[value->name] = Tensor(DType::kU8, {bytes, 1}, found->tensor.owner());
  return value;
}

Value* HfWeights::AddRandom(const std::string& name, const std::string& tensor, const TensorType& type,
                            RandomNumbers numbers) {
  numbers.seed = seed_;
  return model_->AddWeight(name, type, RandomSource(numbers, tensor));
}

Value* HfWeights::AddNothing(const std::string& name, const TensorType& type) {
  return model_->AddWeight(name, type, "");
}

void HfWeights::Complain(const std::string& of_model, const std::string& message) {
  const std::string tensor = NameOf(of_model);
  used_.insert(tensor);
  const CheckpointTensor* found = Find(of_model);
  AddFinding(HfFinding::Kind::kWrong, found == nullptr ? "" : found->file, tensor, "", "");
  findings_.back().message = message;
}

std::string HfWeights::FileOf(const std::string& module) const {
  const std::string begin = absl::StrCat(NameOf(module), ".");
  if (checkpoint_ == nullptr) return "";
  const auto at = checkpoint_->lower_bound(begin);
  return at == checkpoint_->end() || !absl::StartsWith(at->first, begin) ? "" : at->second.file;
}

void HfWeights::ComplainOfMissing(const std::string& of_model, const std::string& message) {
  AddFinding(HfFinding::Kind::kMissing, "", NameOf(of_model), "", "");
  findings_.back().message = message;
}

bool HfWeights::HasComplaintOf(const std::string& module) const {
  const std::string begin = absl::StrCat(NameOf(module), ".");
  return std::any_of(findings_.begin(), findings_.end(),
                     [&](const HfFinding& finding) { return absl::StartsWith(finding.place, begin); });
}

void HfWeights::Ignore(const std::string& of_model, const std::string& reason) {
  const std::string tensor = NameOf(of_model);
  if (Has(tensor) && used_.insert(tensor).second) ignored_.push_back({tensor, reason});
}

void HfWeights::Ignore(const hf::UnusedTensors& unused, const std::vector<hf::LayerSpec>& layers) {
  unused_ = unused;
  for (const hf::LayerSpec& layer : layers) {
    for (const auto& [ending, reason] : unused.of_layers) unused_.names.emplace_back(layer.module + ending, reason);
  }
}

void HfWeights::Refuse(const std::string& of_model, const std::string& why) {
  const std::string tensor = NameOf(of_model);
  if (!Has(tensor) || !used_.insert(tensor).second) return;
  AddFinding(HfFinding::Kind::kWrong, "", tensor, "", "");
  findings_.back().message = absl::StrCat(tensor, ": ", why);
}

bool HfWeights::SameContents(const std::string& a, const std::string& b) const {
  if (!Has(a) || !Has(b)) return true;
  const auto x = checkpoint_->find(NameOf(a)), y = checkpoint_->find(NameOf(b));
  return x->second.tensor == y->second.tensor;
}

absl::Status HfWeights::Finish(std::vector<IgnoredTensor>* ignored) {
  if (checkpoint_ == nullptr) return absl::OkStatus();
  for (const auto& [tensor, reason] : unused_.names) Ignore(tensor, reason);
  for (const auto& [tensor, reason] : unless_used_) Ignore(tensor, reason);
  for (const auto& [beginning, reason] : unused_.beginnings) {
    for (const auto& [name, tensor] : *checkpoint_) {
      if (absl::StartsWith(name, beginning) && used_.insert(name).second) ignored_.push_back({name, reason});
    }
  }
  for (const auto& [name, tensor] : *checkpoint_) {
    if (!used_.contains(name)) AddFinding(HfFinding::Kind::kExtra, tensor.file, name, "a tensor", "none of this name");
  }
  if (!findings_.empty() && stored_name_ != nullptr) {
    for (HfFinding& finding : findings_) finding.place = StoredName(finding.place);
    return absl::InvalidArgumentError(
        absl::StrCat(folder_, ": the tensors do not fit the metadata:", TensorLines(findings_, "the metadata ask")));
  }
  if (!findings_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder_, ": the checkpoint does not fit config.json:", TensorLines(findings_, "config.json asks")));
  }
  if (ignored != nullptr) *ignored = std::move(ignored_);
  return absl::OkStatus();
}

}  // namespace llmc
