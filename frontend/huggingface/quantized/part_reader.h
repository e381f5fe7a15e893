// Declares the tensors of a quantized module, with an account of what is missing, of a wrong shape, or no scale.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "frontend/huggingface/quantized/scheme.h"
#include "frontend/huggingface/weights.h"
#include "ir/op.h"
#include "ir/ops.h"

namespace llmc::hf {

inline constexpr DType kScaleTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// Tensors of which equal ones are declared once, with what is made of them: queries, keys and values share the orders
// of their columns (g_idx), their scales of scales and what their input is multiplied by, so that their weights can
// still be merged.
struct SharedParts {
  std::vector<std::pair<const Tensor*, Value*>> orders, scales, multipliers;
};

class PartReader {
 public:
  // `module` begins the names of tensors, `name` those of weights ("@l0.wq"); all must outlive this.
  PartReader(HfWeights* weights, Builder* builder, SharedParts* shared, std::string module, std::string name)
      : weights_(*weights), b_(*builder), shared_(*shared), module_(std::move(module)), name_(std::move(name)) {}

  const std::string& module() const { return module_; }
  std::string NameOf(const std::string& part) const { return absl::StrCat(module_, ".", part); }
  bool Has(const std::string& part) const { return weights_.Has(NameOf(part)); }
  // Its contents; nullptr if it is not there.
  const Tensor* Find(const std::string& part) const;

  // Declares MODULE.PART, which must be of one of the types and of this shape; `why` says in errors where the shape
  // comes from: " = [in 256 / group 128, out 512 / 8]". What is not so is a complaint, and what is declared then has no
  // contents.
  Value* Part(const std::string& part, absl::Span<const DType> types, const Shape& shape, const std::string& why = "");
  // The same of codes that are floats of 8 bits: none may be NaN or infinite.
  Value* FloatCodes(const std::string& part, absl::Span<const DType> types, const Shape& shape, const std::string& why);
  // The same of a scale, or of other numbers: none may be NaN or infinite, and, where
  // zeros are not allowed, not all may be 0.
  enum class Zeros { kWarn, kAllow, kRefuse };
  Value* Scale(const std::string& part, const Shape& shape, const std::string& why = "",
               absl::Span<const DType> types = kScaleTypes, Zeros zeros = Zeros::kWarn);
  // One number: of shape [] or [1].
  Value* OneScale(const std::string& part, absl::Span<const DType> types = kScaleTypes);
  // As OneScale in f32, which it multiplies or, with `divides`, divides by; modules with the same number share it.
  Value* OuterScale(const std::string& part, bool divides);
  // As Scale, of scales that are exponents: 255 is no number.
  Value* Exponents(const std::string& part, const Shape& shape, const std::string& why = "");

  // The number of the only element of an integer or float tensor that says how others are stored; nullopt if it is not
  // there, a complaint if it has several. The tensor counts as used.
  std::optional<double> Setting(const std::string& part);
  // That MODULE.PART, if it is there, has been read: it says how others are stored.
  void Use(const std::string& part) { weights_.Use(NameOf(part)); }
  // That MODULE.PART, if it is there, is not used.
  void Ignore(const std::string& part, const std::string& reason) { weights_.Ignore(NameOf(part), reason); }
  // Checks a static scale of activations, which nothing has used, and says so.
  void IgnoreActivationScale(
      const std::string& part,
      const std::string& reason =
          "inputs of the layer are not quantized: the product takes them as they are (--quantize-activations)");
  // Keeps a complaint: MODULE.PART…
  void Wrong(const std::string& part, const std::string& message);

  // Whether so many codes fill whole words; a complaint of MODULE.PART if not.
  bool FillsWords(const std::string& part, int64_t codes, int64_t of_word);

  // The columns in the order of their groups, for weights whose groups lie across them: the sorted indices of
  // MODULE.PART [in], of which each of the groups must have `group` columns. nullptr if they lie in order already.
  Value* OrderOfGroups(const std::string& part, int64_t in, int64_t group);

  // [in]: what x is multiplied by. nullptr if MODULE.PART is not there.
  Value* Multiplier(const std::string& part, int64_t in);

  template <class Op>
  Value* Add(const Op& op, const std::string& part = "") {
    return b_.Add(op, part.empty() ? "" : absl::StrCat("%", name_.substr(1), ".", part));
  }
  Value* Reshaped(Value* x, const Shape& shape) {
    return Add(Reshape{.x = x, .shape = Dims(shape.begin(), shape.end())});
  }
  Value* Constant(double number, const Shape& shape = {});
  Builder& builder() { return b_; }
  HfWeights& weights() { return weights_; }

  // Puts the rows of experts in order (axis 1 of [experts, out, …]); none: they are.
  std::function<Value*(Value*)> in_rows;

 private:
  void CheckNumbers(const std::string& part, const Tensor& scale, Zeros allowed = Zeros::kWarn);

  HfWeights& weights_;
  Builder& b_;
  SharedParts& shared_;
  const std::string module_, name_;
};

}  // namespace llmc::hf
