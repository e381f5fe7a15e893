#include "runtime/host/plan_model.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/text.h"
#include "runtime/device/random_weights.h"

namespace llmc {
namespace {

// External files give no promise of alignment; code that reads tensors needs that of the element.
Tensor AlignedView(DType dtype, Shape shape, std::shared_ptr<const char> bytes) {
  const uintptr_t alignment = static_cast<uintptr_t>(DTypeBits(dtype) + 7) / 8;
  if (reinterpret_cast<uintptr_t>(bytes.get()) % alignment == 0) return {dtype, std::move(shape), std::move(bytes)};
  Tensor copy(dtype, std::move(shape));
  std::memcpy(copy.mutable_raw(), bytes.get(), static_cast<size_t>(copy.bytes()));
  return copy;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> ModelFromPlan(const Plan& plan) {
  ASSIGN_OR_RETURN(std::unique_ptr<Model> model, ParseModel(plan.ir_text(), absl::StrCat(plan.path(), "(ir)")));
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(plan.path(), ": ", what, "; compile the model again"));
  };
  absl::flat_hash_map<absl::string_view, int> index;
  for (int i = 0; i < plan.manifest().weights_size(); ++i) index[plan.manifest().weights(i).name()] = i;
  for (const Value* weight : model->weights) {
    auto it = index.find(weight->name);
    if (it == index.end()) return wrong(absl::StrCat("weight ", weight->name, " of its text is not in its manifest"));
    const plan::Weight& stored = plan.manifest().weights(it->second);
    const absl::StatusOr<DType> dtype = ParseDType(stored.dtype());
    if (!dtype.ok()) return wrong(absl::StrCat("weight ", weight->name, ": ", dtype.status().message()));
    const Shape shape(stored.shape().begin(), stored.shape().end());
    if (weight->type != TensorType{*dtype, Dims(shape.begin(), shape.end())}) {
      return wrong(absl::StrCat("weight ", weight->name, " is ", weight->type.ToString(), " in its text, ",
                                stored.dtype(), ShapeToString(shape), " in its manifest"));
    }
    if (stored.has_random()) continue;
    // The plan checked that the bytes agree with the type and lie in their file.
    model->data[weight->name] = AlignedView(*dtype, shape, plan.WeightBytes(it->second));
  }
  return model;
}

absl::Status DrawRandomWeights(const Plan& plan, Model* model) {
  int64_t bytes = 0;
  for (const plan::Weight& weight : plan.manifest().weights()) {
    if (weight.has_random() && weight.bytes() <= static_cast<uint64_t>(kMaxDrawnBytes)) {
      bytes += static_cast<int64_t>(weight.bytes());
    } else if (weight.has_random()) {
      bytes = kMaxDrawnBytes + 1;
    }
    if (bytes > kMaxDrawnBytes) {
      return absl::ResourceExhaustedError(
          absl::StrCat(plan.path(),
                       ": has weights of random numbers, to time a model with on a GPU: run it with --device=cuda; on "
                       "this machine's processor at most ",
                       kMaxDrawnBytes, " bytes of such weights are drawn"));
    }
  }
  std::vector<float> values;
  for (const plan::Weight& weight : plan.manifest().weights()) {
    if (!weight.has_random() || model->data.contains(weight.name())) continue;
    ASSIGN_OR_RETURN(const DType dtype, ParseDType(weight.dtype()));
    Tensor tensor(dtype, Shape(weight.shape().begin(), weight.shape().end()));
    if (weight.random().bits()) {
      DrawRandomBits(weight.random(), absl::MakeSpan(tensor.mutable_raw(), static_cast<size_t>(tensor.bytes())));
    } else {
      values.resize(static_cast<size_t>(tensor.size()));
      DrawRandomNumbers(weight.random(), absl::MakeSpan(values));
      for (int64_t i = 0; i < tensor.size(); ++i) {
        if (IsFloat(dtype)) tensor.SetFloat(i, values[i]);
        if (!IsFloat(dtype)) tensor.SetInt(i, std::lrint(values[i]));
      }
    }
    model->data[weight.name()] = std::move(tensor);
  }
  return absl::OkStatus();
}

}  // namespace llmc
