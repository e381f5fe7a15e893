#include "frontend/huggingface/quantized/quantized_inputs.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "ir/encoding.h"
#include "ir/ops.h"

namespace llmc::hf {
namespace {

// Where there is no checkpoint: what quantizes numbers up to 4 or 5, as rows behind a norm have them.
constexpr double kRandomScale = 0.01, kRandomOuter = 0.0015;

// The encoding of rows, or why there is none.
struct Form {
  std::string as, why_not;
};
Form FormOf(const ActivationSpec& spec) {
  if (!spec.unsupported.empty()) return {"", spec.unsupported};
  if (!spec.is_symmetric) return {"", "zero points of inputs are not supported"};
  if (spec.format == "nvfp4" || (spec.format == "mxfp4" && spec.is_dynamic)) return {spec.format, ""};
  std::string run;
  if (!spec.is_dynamic) {
    if (spec.per != Granularity::kTensor) return {"", "static scales of more than one for all are not supported"};
    run = "per=tensor";
  } else if (spec.per == Granularity::kGroup) {
    run = absl::StrCat("group=", spec.group);
  } else if (spec.per == Granularity::kToken || spec.per == Granularity::kTensor) {
    // One dynamic scale for all tokens of a step would make what one sequence gets depend on the others; one for each
    // is never larger.
    run = "per=token";
  } else {
    return {"", "dynamic scales of neither tokens nor groups are not supported"};
  }
  const std::string as = absl::StrCat(spec.format, " ", run, " scale=f32");
  if (!ParseEncoding(as).ok()) return {"", absl::StrCat("inputs in ", spec.format, " are not supported")};
  return {as, ""};
}

}  // namespace

std::string DescribeActivations(const ActivationSpec& spec) {
  const std::string of = !spec.is_dynamic                  ? "one scale for all, from the checkpoint"
                         : spec.per == Granularity::kGroup ? absl::StrCat("a scale for each ", spec.group, " elements")
                         : spec.per == Granularity::kToken ? "a scale for each token"
                                                           : "one scale for all tokens";
  return absl::StrCat(spec.format, spec.is_symmetric ? ", " : " with zero points, ", of);
}

std::optional<InputEncoding> QuantizedInputs::Read(const LinearModule& module, PartReader& reader) {
  const std::optional<ActivationSpec> spec = weights_.scheme()->ActivationOf(module);
  if (!spec.has_value()) return std::nullopt;
  const Form form = FormOf(*spec);
  weights_.Ask(absl::StrCat("inputs of layers were quantized: ", DescribeActivations(*spec),
                            form.as.empty() ? absl::StrCat("; they stay floats, since ", form.why_not)
                                            : "; --quantize-activations does that"));
  if (!weights_.use().activations) return std::nullopt;
  if (form.as.empty()) {
    weights_.Note(absl::StrCat(module.name, ": its input stays in floats: ", form.why_not));
    return std::nullopt;
  }
  InputEncoding input = {.as = form.as, .limit = spec->limit, .inverse = spec->inverse};
  const bool has_outer = (*ParseEncoding(form.as))->format->outer_scale;
  if (has_outer) input.outer = StaticScale(*spec, reader);
  if (!has_outer && !spec->is_dynamic) input.scale = StaticScale(*spec, reader);
  weights_.CountQuantizedInput();
  return input;
}

Value* QuantizedInputs::StaticScale(const ActivationSpec& spec, PartReader& reader) {
  if (!weights_.has_checkpoint()) return reader.Constant(spec.format == "nvfp4" ? kRandomOuter : kRandomScale);
  const Tensor* contents = reader.Find(spec.scale);
  for (const StoredScale& known : scales_) {
    if (contents == nullptr || known.divides != spec.scale_divides || !(*known.contents == *contents)) continue;
    reader.Ignore(spec.scale, "the same as that of another module");
    return known.value;
  }
  Value* scale = reader.OneScale(spec.scale);
  if (scale->type.dtype != DType::kF32) scale = b_.Add(Cast{.x = scale, .to = DType::kF32});
  if (spec.scale_divides) scale = b_.Add(Div{.lhs = reader.Constant(1), .rhs = scale});
  if (contents != nullptr) scales_.push_back({contents, spec.scale_divides, scale});
  return scale;
}

Value* QuantizedInputs::Encoded(Value* x, const InputEncoding& input) {
  Value*& encoded = encoded_[{x, input}];
  if (encoded != nullptr) return encoded;
  Value* scale = input.scale;
  if (scale == nullptr) {
    scale = b_.Add(
        DynamicScale{.x = x, .outer = input.outer, .as = input.as, .limit = input.limit, .inverse = input.inverse});
  }
  std::vector<Value*> components = {
      b_.Add(Quantize{.x = x, .scale = scale, .outer = input.outer, .as = input.as, .inverse = input.inverse}), scale};
  if (input.outer != nullptr) components.push_back(input.outer);
  encoded = b_.Add(Encode{.components = components, .as = input.as, .to = x->type.dtype});
  return encoded;
}

void QuantizedInputs::Adapt(const InputEncoding& input, const LinearModule& module, EncodedParts* parts) {
  const absl::StatusOr<const Encoding*> encoding = ParseEncoding(parts->as);
  if (parts->components.empty() || !encoding.ok()) return;
  Encoding own = **encoding;
  const bool is_of_rows = own.scale.has_value() && own.columns == 0 && own.group == 0 &&
                          (own.scale->per == Granularity::kTensor || own.scale->per == Granularity::kChannel);
  if (!is_of_rows || own.format->outer_scale || DTypeBits(own.format->codes) != 8) return;
  Value*& scale = parts->components[1];
  if (own.scale->dtype != DType::kF32) scale = b_.Add(Cast{.x = scale, .to = DType::kF32});
  own.scale->dtype = DType::kF32;
  if (own.scale->per == Granularity::kTensor && absl::StrContains(input.as, "per=token")) {
    scale = b_.Add(Expand{.x = b_.Add(Reshape{.x = scale, .shape = {Dim(1)}}), .shape = {Dim(module.out)}});
    own.scale->per = Granularity::kChannel;
  }
  if (const absl::StatusOr<const Encoding*> made = InternEncoding(own); made.ok()) parts->as = (*made)->text;
}

}  // namespace llmc::hf
