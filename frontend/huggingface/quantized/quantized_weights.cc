#include "frontend/huggingface/quantized/quantized_weights.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "files/random_source.h"
#include "frontend/huggingface/quantized/forms.h"
#include "ir/encoding.h"

namespace llmc::hf {
namespace {

// Random weights are about as large as others: a deviation of 0.02 with which models begin their training.
constexpr double kDeviation = 0.02;

// The deviation of uniform codes of a format.
double DeviationOfCodes(const Encoding& e) {
  if (e.format->codebook != nullptr) {
    double squares = 0;
    for (int i = 0; i < 16; ++i) squares += e.format->codebook[i] * e.format->codebook[i];
    return std::sqrt(squares / 16);
  }
  return e.format->is_integer() ? std::ldexp(1, e.format->bits()) / std::sqrt(12.0) : 1;
}

// What number i of the components is drawn from, so that the whole is of kDeviation. Floats of 8 bits are drawn from
// [-√3, √3), integers from all that there are. Zero points in the middle of them leave the mean at 0.
RandomNumbers NumbersOf(const Encoding& e, size_t i, DType dtype) {
  const double scale = kDeviation / DeviationOfCodes(e);
  const absl::string_view component = e.ComponentName(i);
  if (i == 0) return IsFloat(dtype) ? RandomNumbers{.width = std::sqrt(3.0)} : RandomNumbers{.bits = true};
  if (component == "zero") {
    return IsFloat(dtype) ? RandomNumbers{.mean = std::ldexp(1, e.format->bits() - 1)} : RandomNumbers{.bits = true};
  }
  if (component == "outer_scale") return {.mean = scale};
  if (e.format->scale_is_exponent) return {.mean = std::round(127 + std::log2(scale)), .width = 1};
  const double mean = e.format->outer_scale ? 1 : scale;
  return {.mean = mean, .width = mean / 2};
}

// Whether two numbers that are made alike, of a weight each, are the same.
bool HasEqualContents(const Model& model, const Value* a, const Value* b) {
  const auto contents = [&](const Value* value) {
    while (value->def != nullptr && !value->def->operands.empty()) value = value->def->operands.back();
    return model.data.find(value->name);
  };
  if (a == b) return true;
  const auto x = contents(a), y = contents(b);
  return x != model.data.end() && y != model.data.end() && x->second == y->second;
}

// Whether the matrices of each expert, several of what encode makes, have one outer scale.
bool SharesOuterScales(const Model& model, const std::vector<Value*>& parts, size_t of_expert) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Node& first = *parts[i - i % of_expert]->def;
    if (!HasEqualContents(model, first.operands.back(), parts[i]->def->operands.back())) return false;
  }
  return true;
}

}  // namespace

bool QuantizedWeights::IsQuantized(const LinearModule& module) const {
  const QuantizedScheme* scheme = weights_.scheme();
  if (scheme == nullptr || !scheme->Covers(module)) return false;
  if (!weights_.has_checkpoint()) return !module.is_head && !module.is_router && !module.is_embedding;
  // What is there as plain floats is taken as such, whatever the configuration says: it has no scales to forget, since
  // they would be tensors that nothing uses.
  const std::string codes = absl::StrCat(module.name, ".", scheme->CodesOf(module));
  const CheckpointTensor* plain = weights_.Find(module.name + ".weight");
  const bool is_float = plain != nullptr && IsFloat(plain->tensor.dtype()) && DTypeBits(plain->tensor.dtype()) >= 16;
  return !is_float || (codes != module.name + ".weight" && weights_.Has(codes));
}

bool QuantizedWeights::HasCodes(const LinearModule& module) const {
  return IsQuantized(module) && weights_.Has(absl::StrCat(module.name, ".", weights_.scheme()->CodesOf(module)));
}

std::string QuantizedWeights::StacksOf(const std::string& experts) const {
  const std::string name = weights_.scheme() == nullptr ? "" : weights_.scheme()->NameOfStacks();
  return name.empty() ? "" : absl::StrCat(experts.substr(0, experts.rfind('.') + 1), name);
}

std::optional<LinearWeight> QuantizedWeights::Add(const std::string& name, const LinearModule& module, DType to) {
  if (!IsQuantized(module)) return std::nullopt;
  const QuantizedScheme& scheme = *weights_.scheme();
  const Shape shape = module.Stacked({module.out, module.in});
  Builder own = b_;
  PartReader reader(&weights_, weights_.has_checkpoint() ? &own : &b_, &shared_, module.name, name);
  LinearWeight weight = {.input = module.is_embedding ? std::nullopt : inputs_.Read(module, reader)};
  EncodedParts parts = weights_.has_checkpoint()
                           ? scheme.Read(module, reader)
                           : Random(name, module.name + ".weight", scheme.EncodingOf(module, to), shape);
  const bool has_parts = reader.builder().status().ok();
  if (has_parts && weight.input.has_value() && !module.is_expert) inputs_.Adapt(*weight.input, module, &parts);
  weight.value = Encoded(name, parts, to, shape, reader);
  weight.order = parts.order;
  weight.multiplier = parts.multiplier;
  return weight;
}

std::optional<InputEncoding> QuantizedWeights::InputOfRandom(const LinearModule& module) {
  if (weights_.has_checkpoint() || !IsQuantized(module)) return std::nullopt;
  PartReader reader(&weights_, &b_, &shared_, module.name, "");
  return inputs_.Read(module, reader);
}

// ---- keys and values ------------------------------------------------------------------------------------------------

const Encoding* QuantizedWeights::KvEncoding() {
  if (weights_.scheme() == nullptr) return nullptr;
  const std::optional<KvCacheSpec> spec = weights_.scheme()->KvCache();
  if (!spec.has_value()) return nullptr;
  weights_.Ask(absl::StrCat("keys and values were cached in ", spec->format,
                            spec->is_dynamic ? "" : ", with scales from the checkpoint",
                            "; --kv=checkpoint does that"));
  const QuantizedUse::Kv use = weights_.use().kv;
  const bool is_f8 = spec->format == "f8e4m3" && !spec->is_dynamic;
  if (use == QuantizedUse::Kv::kFloats || (use == QuantizedUse::Kv::kF8IfSaid && !is_f8)) return nullptr;
  const std::string as =
      absl::StrCat(spec->format, spec->is_dynamic ? " per=token scale=f32" : " per=tensor scale=f32");
  const absl::StatusOr<const Encoding*> encoding = ParseEncoding(as);
  const bool is_known = spec->is_symmetric && (spec->is_dynamic || spec->per == Granularity::kTensor);
  if (encoding.ok() && is_known) return *encoding;
  const bool is_one = spec->is_dynamic || spec->per == Granularity::kTensor;
  const char* with = !spec->is_symmetric ? " with zero points"
                     : is_one            ? ""
                                         : " with static scales of more than one for a layer";
  weights_.Complain("kv_cache_scheme",
                    absl::StrCat("config.json: a cache in ", spec->format, with,
                                 " is not supported; leave out --kv=checkpoint, or say --kv=f8e4m3, which stores a "
                                 "scale with each token's head"));
  return nullptr;
}

KvScales QuantizedWeights::ReadKvScales(const Encoding* encoding, const std::string& name, const std::string& module,
                                        const std::string& k, const std::string& v) {
  if (weights_.scheme() == nullptr) return {};
  const bool is_needed = encoding != nullptr && encoding->scale->per == Granularity::kTensor;
  const std::optional<KvCacheSpec> spec = weights_.scheme()->KvCache();
  const bool may_be_any = !spec.has_value() || !spec->is_symmetric;
  for (const auto& [place, zero] : {std::pair(module, "k_zero_point"),
                                    {module, "v_zero_point"},
                                    {k, "k_zero_point"},
                                    {v, "v_zero_point"},
                                    {module, "q_zero_point"}}) {
    PartReader reader(&weights_, &b_, &shared_, place, name);
    IgnoreZeros(zero, reader, may_be_any);
  }
  PartReader(&weights_, &b_, &shared_, module, name).IgnoreActivationScale("q_scale", "queries are not quantized");
  return {KvScale(is_needed, name, {{module, "k_scale"}, {k, "output_scale"}, {k, "k_scale"}}),
          KvScale(is_needed, name, {{module, "v_scale"}, {v, "output_scale"}, {v, "v_scale"}})};
}

Value* QuantizedWeights::KvScale(bool is_needed, const std::string& name,
                                 const std::vector<std::pair<std::string, std::string>>& places) {
  if (!weights_.has_checkpoint()) {
    return is_needed ? PartReader(&weights_, &b_, &shared_, places[0].first, name).Constant(1) : nullptr;
  }
  Value* scale = nullptr;
  for (const auto& [module, part] : places) {
    PartReader reader(&weights_, &b_, &shared_, module, name);
    if (!reader.Has(part)) continue;
    if (!is_needed || scale != nullptr) {
      reader.IgnoreActivationScale(part, "keys and values are cached as they are (--kv=checkpoint)");
      continue;
    }
    scale = reader.AsF32(reader.OneScale(part));
  }
  if (scale != nullptr || !is_needed) return scale;
  const auto name_of = [](const auto& place) { return absl::StrCat(place.first, ".", place.second); };
  const auto add_name = [&](std::string* out, const auto& place) { *out += name_of(place); };
  const std::string others = absl::StrJoin(absl::MakeConstSpan(places).subspan(1), ", ", add_name);
  const std::string remedy = said_kv_scale_is_missing_
                                 ? ""
                                 : ": the cache is to have this static scale; leave out --kv=checkpoint, or give "
                                   "--kv=f8e4m3, which makes scales of its own";
  said_kv_scale_is_missing_ = true;
  const std::string first = name_of(places[0]);
  weights_.ComplainOfMissing(first, absl::StrCat(first, " (or ", others, ")", remedy));
  return weights_.AddNothing(absl::StrCat(name, ".", places[0].second), {DType::kF32, {}});
}

std::optional<LinearWeight> QuantizedWeights::AddStacked(const std::string& name, const std::string& fused,
                                                         int64_t experts, const LinearModule& module, DType to,
                                                         const std::function<Value*(Value*)>& in_rows) {
  const QuantizedScheme* scheme = weights_.scheme();
  if (scheme == nullptr || !weights_.has_checkpoint()) return std::nullopt;
  Builder own = b_;
  PartReader reader(&weights_, &own, &shared_, module.name, name);
  reader.in_rows = in_rows;
  if (!scheme->HasStacked(fused, reader)) return std::nullopt;
  LinearWeight weight;
  const std::optional<ActivationSpec> inputs = scheme->ActivationOf(module);
  if (inputs.has_value() && inputs->is_dynamic) weight.input = inputs_.Read(module, reader);
  if (inputs.has_value() && !inputs->is_dynamic && weights_.use().activations) {
    weights_.Note(absl::StrCat(fused, ": its input stays in floats: static scales of experts in one tensor"));
  }
  const EncodedParts parts = scheme->ReadStacked(fused, experts, module, reader);
  weight.value = Encoded(name, parts, to, {experts, module.out, module.in}, reader);
  return weight;
}

std::optional<Value*> QuantizedWeights::AddRandomStacked(const std::string& name, int64_t experts,
                                                         const LinearModule& module, DType to) {
  if (weights_.has_checkpoint() || !IsQuantized(module)) return std::nullopt;
  const QuantizedScheme& scheme = *weights_.scheme();
  std::string as = scheme.EncodingOf(module, to);
  // Channels of experts are rows of one matrix.
  if (const absl::StatusOr<const Encoding*> e = ParseEncoding(as); e.ok()) {
    Encoding stacked = **e;
    if (stacked.format->outer_scale) stacked.outer = OuterScale::kOfMatrices;
    for (std::optional<Encoding::Part>* part : {&stacked.scale, &stacked.zero}) {
      if (!part->has_value()) continue;
      const bool is_whole = (*part)->per == Granularity::kChannel || (*part)->per == Granularity::kTensor;
      if (is_whole) (*part)->per = Granularity::kToken;
    }
    if (const absl::StatusOr<const Encoding*> made = InternEncoding(stacked); made.ok()) as = (*made)->text;
  }
  const Shape shape = {experts, module.out, module.in};
  PartReader reader(&weights_, &b_, &shared_, module.name, name);
  return Encoded(name, Random(name, module.name + ".weight", as, shape), to, shape, reader);
}

EncodedParts QuantizedWeights::Random(const std::string& name, const std::string& tensor, const std::string& as,
                                      const Shape& shape) {
  EncodedParts parts = {.as = as};
  const absl::StatusOr<const Encoding*> encoding = ParseEncoding(as);
  for (size_t i = 0; encoding.ok() && i < (*encoding)->components(); ++i) {
    const TensorType type = (*encoding)->ComponentType(i, Dims(shape.begin(), shape.end()));
    const std::string component((*encoding)->ComponentName(i));
    parts.components.push_back(weights_.AddRandom(absl::StrCat(name, ".", component),
                                                  absl::StrCat(tensor, ".", component), type,
                                                  NumbersOf(**encoding, i, type.dtype)));
  }
  return parts;
}

Value* QuantizedWeights::Encoded(const std::string& name, const EncodedParts& parts, DType to, const Shape& shape,
                                 PartReader& reader) {
  Builder& own = reader.builder();
  if (!parts.components.empty()) {
    Value* value = own.Add(Encode{.components = parts.components, .as = parts.as, .to = to}, "%" + name.substr(1));
    if (value != nullptr) return value;
  }
  if (!own.status().ok() && !weights_.HasComplaintOf(reader.module())) {
    reader.Wrong("weight", absl::StrCat(" cannot be made of what is stored: ", own.status().message()));
  }
  return weights_.AddNothing(name, {to, Dims(shape.begin(), shape.end())});
}

bool QuantizedWeights::AreOneWeight(const Value* a, const Value* b) {
  const Encoding* encoding = a->type.encoding;
  const int64_t rows = encoding == nullptr ? 0 : encoding->rows;
  const bool is_whole = rows == 0 || a->type.shape[a->type.rank() - 2].value() % rows == 0;
  return is_whole && encoding == b->type.encoding && a->type.dtype == b->type.dtype;
}

absl::StatusOr<Value*> QuantizedWeights::Stack(const std::vector<Value*>& parts, int64_t experts, int64_t rows,
                                               int64_t in, const std::string& name) {
  // What is not encoded here is damaged, and has a complaint.
  const auto is_encoded = [](const Value* part) { return part->type.encoding != nullptr; };
  if (!std::all_of(parts.begin(), parts.end(), is_encoded)) {
    return absl::UnimplementedError(absl::StrCat(
        name, ": the matrices of experts are not stored alike, in whole blocks: some are quantized, others are not"));
  }
  Encoding stacked = *parts[0]->type.encoding;
  const bool has_outer = stacked.format->outer_scale;
  for (const Value* part : parts) {
    if (Is<Encode>(part->def) && stacked.format->superblock == 0) continue;
    return absl::UnimplementedError(absl::StrCat(name, ": matrices of experts in ", stacked.text, " cannot be one"));
  }
  // A row of all experts together has its own scale.
  for (std::optional<Encoding::Part>* part : {&stacked.scale, &stacked.zero}) {
    if (!part->has_value()) continue;
    const bool is_whole = (*part)->per == Granularity::kChannel || (*part)->per == Granularity::kTensor;
    if (is_whole) (*part)->per = Granularity::kToken;
  }
  const size_t of_expert = parts.size() / static_cast<size_t>(experts);
  const bool shares_outer = has_outer && SharesOuterScales(*b_.model(), parts, of_expert);
  if (has_outer) stacked.outer = shares_outer ? OuterScale::kOfMatrices : OuterScale::kOfRows;
  ASSIGN_OR_RETURN(const Encoding* encoding, InternEncoding(stacked));
  std::vector<Value*> components;
  for (size_t i = 0; i < encoding->components(); ++i) {
    std::vector<Value*> all;
    for (size_t p = 0; p < parts.size(); ++p) {
      Value* component = parts[p]->def->operands[i];
      const bool is_outer = has_outer && i + 1 == encoding->components();
      if (is_outer && shares_outer && p % of_expert != 0) continue;  // one for each expert
      if (component->type.rank() == 0) component = b_.Add(Reshape{.x = component, .shape = {Dim(1)}});
      const bool is_of_rows = i > 0 && !(is_outer && shares_outer);
      if (is_of_rows && component->type.rank() == 1 && component->type.shape[0] == Dim(1)) {
        component = b_.Add(Expand{.x = component, .shape = {parts[p]->type.shape[0]}});
      }
      all.push_back(component);
    }
    const TensorType type = encoding->ComponentType(i, {Dim(experts), Dim(rows), Dim(in)});
    components.push_back(b_.Add(Reshape{.x = b_.Add(Concat{.parts = all, .axis = 0}), .shape = type.shape}));
  }
  return b_.Add(Encode{.components = components, .as = encoding->text, .to = parts[0]->type.dtype}, name);
}

absl::StatusOr<Value*> QuantizedWeights::WithRows(Value* encoded, const std::vector<int64_t>& rows,
                                                  const std::string& name) {
  const Encoding* e = encoded->type.encoding;
  if (!Is<Encode>(encoded->def) || !e->k_is_last) {
    return absl::UnimplementedError(
        absl::StrCat(name, ": rows of ", encoded->type.ToString(), " cannot be put in another order"));
  }
  const auto indices = [&](const std::vector<int64_t>& of_rows) {
    const auto count = static_cast<int64_t>(of_rows.size());
    return b_.Add(llmc::Constant{.value = Tensor::FromValues(DType::kI64, {count}, of_rows)});
  };
  // Rows of a block may come apart: each gets the scales of its block, as groups.
  const int64_t rows_of_block = std::max<int64_t>(e->rows, 1);
  Encoding ordered = *e;
  if (e->rows > 0) {
    ordered.group = e->columns;
    ordered.rows = ordered.columns = 0;
    for (auto* part : {&ordered.scale, &ordered.zero}) {
      if (part->has_value() && (*part)->per == Granularity::kBlock) (*part)->per = Granularity::kGroup;
    }
  }
  ASSIGN_OR_RETURN(const Encoding* as, InternEncoding(ordered));
  std::vector<int64_t> blocks = rows;
  for (int64_t& row : blocks) row /= rows_of_block;
  Value* order = indices(rows);
  Value* order_of_scales = e->rows > 0 ? indices(blocks) : order;
  std::vector<Value*> components = encoded->def->operands;
  for (size_t i = 0; i < components.size(); ++i) {
    if (e->ComponentType(i, encoded->type.shape).rank() == 0) continue;  // one number for all rows
    components[i] = b_.Add(Gather{.x = components[i], .indices = i == 0 ? order : order_of_scales});
  }
  return b_.Add(Encode{.components = components, .as = as->text, .to = encoded->type.dtype}, name);
}

}  // namespace llmc::hf
