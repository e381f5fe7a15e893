#include "quantize/stored_form.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "ir/graph.h"
#include "ir/ops_internal.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kVersion = "0.14.0";  // of compressed-tensors, that its files are as of
constexpr int64_t kWordBits = 32;
constexpr int kNf4Block = 64;
constexpr double kBitsAndBytesLevels = 127;
constexpr float kLargestE2M1 = 6;
constexpr double kOutlierThreshold = 6;  // arXiv:2208.07339, section 3.2

int64_t WordsFor(int64_t codes, int64_t bits) { return (codes * bits + kWordBits - 1) / kWordBits; }

// Codes of a matrix [rows, columns], unsigned by an offset, in words of 32 bits along a row, the first in the lowest
// bits. A row is filled up with zero bits.
Tensor PackedRows(const Tensor& codes, int64_t bits, int64_t offset) {
  const int64_t rows = codes.shape()[0], columns = codes.shape()[1], words = WordsFor(columns, bits);
  const int64_t per_word = kWordBits / bits;
  Tensor packed(DType::kI32, {rows, words});
  auto* out = packed.mutable_data<uint32_t>();
  ops::ParallelFor(rows, 4.0 * static_cast<double>(codes.size()), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        const auto code = static_cast<uint32_t>(codes.GetInt(r * columns + c) + offset);
        out[r * words + c / per_word] |= code << (c % per_word * bits);
      }
    }
  });
  return packed;
}

Tensor Transposed(const Tensor& matrix) {
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  Tensor out(matrix.dtype(), {columns, rows});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out.SetInt(c * rows + r, matrix.GetInt(r * columns + c));
  }
  return out;
}

// The same bytes as another type of one byte for each, or of two codes in one.
Tensor BytesOf(const Tensor& tensor, DType dtype, Shape shape) {
  return Tensor(dtype, std::move(shape), std::shared_ptr<const char>(tensor.owner(), tensor.raw()));
}

Tensor F32(float number) { return Tensor::FromValues(DType::kF32, {1}, std::vector<float>{number}); }

Tensor TextTensor(const std::string& text) {
  Tensor tensor(DType::kU8, {static_cast<int64_t>(text.size())});
  std::copy(text.begin(), text.end(), tensor.mutable_raw());
  return tensor;
}

Shape ShapeOf(const Encoding& e, size_t component, int64_t out, int64_t in) {
  Shape shape;
  for (const Dim& dim : e.ComponentType(component, {Dim(out), Dim(in)}).shape) shape.push_back(dim.value());
  return shape;
}

// Scales as compressed-tensors shapes them: [out, groups], [out, 1], [1] or blocks.
Shape ScaleShape(const Encoding& e, int64_t out, int64_t in) {
  Shape shape = ShapeOf(e, 1, out, in);
  if (shape.empty()) return {1};
  if (shape.size() == 1) shape.push_back(1);
  return shape;
}

StoredPart ScalePart(const Encoding& e, int64_t out, int64_t in) {
  const Shape shape = ScaleShape(e, out, in);
  return {
      ".weight_scale", {e.scale->dtype, shape}, [shape](const Tensor& t) { return ComponentOf(t, 1).Reshaped(shape); }};
}

std::vector<StoredPart> PackedIntegers(const Scheme& scheme, const Encoding& e, int64_t out, int64_t in) {
  const int64_t bits = scheme.bits(), offset = int64_t{1} << (bits - 1);
  std::vector<StoredPart> parts = {
      {".weight_packed",
       {DType::kI32, {out, WordsFor(in, bits)}},
       [=](const Tensor& t) { return PackedRows(ComponentOf(t, 0), bits, offset); }},
      ScalePart(e, out, in),
      {".weight_shape",
       {DType::kI64, {2}},
       [=](const Tensor&) {
         return Tensor::FromValues(DType::kI64, {2}, std::vector<int64_t>{out, in});
       }},
  };
  if (!e.zero.has_value()) return parts;
  const Shape scales = ScaleShape(e, out, in);
  // Along the outputs.
  parts.push_back({".weight_zero_point", {DType::kI32, {WordsFor(out, bits), scales[1]}}, [=](const Tensor& t) {
                     return Transposed(PackedRows(Transposed(ComponentOf(t, 2).Reshaped(scales)), bits, offset));
                   }});
  return parts;
}

std::vector<StoredPart> PackedFloats(const Encoding& e, int64_t out, int64_t in) {
  const Shape packed = {out, in / 2};
  std::vector<StoredPart> parts = {
      {".weight_packed", {DType::kU8, packed}, [=](const Tensor& t) { return BytesOf(t, DType::kU8, packed); }},
      ScalePart(e, out, in),
  };
  if (e.format->outer_scale) {
    parts.push_back({".weight_global_scale", {DType::kF32, {1}}, [](const Tensor& t) {
                       return F32(1 / ComponentOf(t, 2).data<float>()[0]);
                     }});
  }
  return parts;
}

std::vector<StoredPart> WholeCodes(const Encoding& e, int64_t out, int64_t in) {
  return {{".weight", {e.format->codes, {out, in}}, [](const Tensor& t) { return ComponentOf(t, 0); }},
          ScalePart(e, out, in)};
}

std::vector<StoredPart> BitsAndBytesInt8(int64_t out, int64_t in) {
  return {{".weight", {DType::kI8, {out, in}}, [](const Tensor& t) { return ComponentOf(t, 0); }},
          {".SCB",
           {DType::kF32, {out}},
           [](const Tensor& t) {
             std::vector<float> amax = ComponentOf(t, 1).ToFloats();
             for (float& scale : amax) scale *= static_cast<float>(kBitsAndBytesLevels);
             return Tensor::FromValues(DType::kF32, {static_cast<int64_t>(amax.size())}, amax);
           }},
          {".weight_format", {DType::kU8, {}}, [](const Tensor&) { return Tensor(DType::kU8, Shape{}); }}};
}

absl::string_view TorchName(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

// A text that depends on numbers has room for the longest of them: readers skip spaces at its end.
constexpr size_t kStateBytes = 256;

std::string Nf4State(int64_t out, int64_t in, DType dtype, const NestedScales* nested) {
  Json state = {{"quant_type", "nf4"}, {"blocksize", kNf4Block}, {"dtype", TorchName(dtype)}, {"shape", {out, in}}};
  if (nested == nullptr) return state.dump();
  state["nested_blocksize"] = NestedScales::kBlock;
  state["nested_dtype"] = "float32";
  state["nested_offset"] = static_cast<double>(nested->offset);
  std::string text = state.dump();
  text.resize(kStateBytes, ' ');
  return text;
}

void AddNf4Scales(int64_t out, int64_t in, DType dtype, bool nests, std::vector<StoredPart>* parts) {
  const int64_t scales = out * in / kNf4Block, blocks = (scales + NestedScales::kBlock - 1) / NestedScales::kBlock;
  constexpr char kState[] = ".weight.quant_state.bitsandbytes__nf4";
  if (!nests) {
    const std::string text = Nf4State(out, in, dtype, nullptr);
    parts->push_back({".weight.absmax", {DType::kF32, {scales}}, [=](const Tensor& t) {
                        return ComponentOf(t, 1).Reshaped({scales});
                      }});
    parts->push_back(
        {kState, {DType::kU8, {static_cast<int64_t>(text.size())}}, [=](const Tensor&) { return TextTensor(text); }});
    return;
  }
  const auto add = [&](const char* suffix, DType type, int64_t count, std::function<Tensor(const NestedScales&)> of) {
    parts->push_back({suffix, {type, {count}}, nullptr, std::move(of)});
  };
  add(".weight.absmax", DType::kU8, scales, [](const NestedScales& nested) { return nested.codes; });
  add(".weight.nested_absmax", DType::kF32, blocks, [](const NestedScales& nested) { return nested.block_scale; });
  add(".weight.nested_quant_map", DType::kF32, 256,
      [](const NestedScales&) { return Tensor::FromValues(DType::kF32, {256}, NestedScaleMap()); });
  add(kState, DType::kU8, kStateBytes,
      [=](const NestedScales& nested) { return TextTensor(Nf4State(out, in, dtype, &nested)); });
}

// The first code of a byte lies in the high half.
std::vector<StoredPart> BitsAndBytesNf4(const Encoding& e, int64_t out, int64_t in, DType dtype, bool nests) {
  const float* const codebook = e.format->codebook;
  const auto swapped = [=](const Tensor& t) {
    Tensor bytes(DType::kU8, {out * in / 2, 1});
    const auto* from = reinterpret_cast<const uint8_t*>(t.raw());
    for (int64_t i = 0; i < bytes.size(); ++i) {
      bytes.mutable_data<uint8_t>()[i] = static_cast<uint8_t>(from[i] << 4 | from[i] >> 4);
    }
    return bytes;
  };
  std::vector<StoredPart> parts = {
      {".weight", {DType::kU8, {out * in / 2, 1}}, swapped},
      {".weight.quant_map",
       {DType::kF32, {16}},
       [=](const Tensor&) {
         return Tensor::FromValues(DType::kF32, {16}, std::vector<float>(codebook, codebook + 16));
       }},
  };
  AddNf4Scales(out, in, dtype, nests, &parts);
  return parts;
}

absl::string_view StrategyName(Granularity per) {
  switch (per) {
    case Granularity::kTensor:
      return "tensor";
    case Granularity::kChannel:
      return "channel";
    case Granularity::kToken:
      return "token";
    case Granularity::kGroup:
      return "group";
    case Granularity::kBlock:
      return "block";
  }
  return "";
}

absl::string_view FormatName(const Scheme& s) {
  if (s.format == "nvfp4") return "nvfp4-pack-quantized";
  if (s.format == "mxfp4") return "mxfp4-pack-quantized";
  if (s.format == "f8e4m3") return s.activations.has_value() ? "float-quantized" : "naive-quantized";
  return s.activations.has_value() ? "int-quantized" : "pack-quantized";
}

// Where it is not that of the weights.
const char* ScaleTypeOf(const Scheme& s) {
  return s.format == "nvfp4" ? "torch.float8_e4m3fn" : s.format == "mxfp4" ? "torch.uint8" : nullptr;
}

Json WeightArgs(const Scheme& s) {
  const bool is_float = s.format != "int8" && s.format != "int4";
  Json args = {{"num_bits", s.bits()},
               {"type", is_float ? "float" : "int"},
               {"symmetric", s.symmetric},
               {"strategy", s.format == "nvfp4" ? "tensor_group" : StrategyName(s.per)},
               {"dynamic", false}};
  if (s.group > 0) args["group_size"] = s.group;
  if (s.per == Granularity::kBlock) args["block_structure"] = {128, 128};
  if (const char* scale = ScaleTypeOf(s)) args["scale_dtype"] = scale;
  if (s.act_order) args["actorder"] = "weight";
  return args;
}

Json ActivationArgs(const Scheme& s) {
  if (!s.activations.has_value()) return nullptr;
  const ActivationScheme& a = *s.activations;
  Json args = {{"num_bits", s.bits()},
               {"type", a.is_float ? "float" : "int"},
               {"symmetric", true},
               {"strategy", a.has_outer ? "tensor_group" : StrategyName(a.per)},
               {"dynamic", a.is_dynamic}};
  if (a.has_outer) args["dynamic"] = "local";
  if (a.group > 0) args["group_size"] = a.group;
  if (const char* scale = ScaleTypeOf(s)) args["scale_dtype"] = scale;
  return args;
}

Json CompressedTensorsConfig(const QuantizedNames& names) {
  std::map<std::string, std::vector<std::string>> targets;  // by scheme
  std::map<std::string, const Scheme*> schemes;
  std::map<absl::string_view, int> formats;
  for (const auto& [module, scheme] : names.modules) {
    targets[scheme->text].push_back(module);
    schemes[scheme->text] = scheme;
    formats[FormatName(*scheme)] = 1;
  }
  Json groups = Json::object();
  for (const auto& [text, modules] : targets) {
    const Scheme& scheme = *schemes[text];
    // Of several the names say which one is whose, as patterns of one may match what is another's.
    const std::vector<std::string> of = targets.size() == 1 ? std::vector<std::string>{"Linear"} : modules;
    groups[absl::StrCat("group_", groups.size())] = {{"format", FormatName(scheme)},
                                                     {"targets", of},
                                                     {"weights", WeightArgs(scheme)},
                                                     {"input_activations", ActivationArgs(scheme)},
                                                     {"output_activations", nullptr}};
  }
  Json config = {{"quant_method", "compressed-tensors"},
                 {"version", kVersion},
                 {"format", formats.size() == 1 ? formats.begin()->first : "mixed-precision"},
                 {"quantization_status", "compressed"},
                 {"config_groups", groups},
                 {"ignore", names.ignored},
                 {"kv_cache_scheme", nullptr}};
  if (names.has_kv_scales) {
    config["kv_cache_scheme"] = {
        {"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", "tensor"}, {"dynamic", false}};
  }
  return config;
}

Json BitsAndBytesConfig(const QuantizedNames& names, DType dtype) {
  const bool is_int8 = names.modules.begin()->second->format == "int8";
  return {{"quant_method", "bitsandbytes"},
          {"load_in_8bit", is_int8},
          {"load_in_4bit", !is_int8},
          {"llm_int8_threshold", kOutlierThreshold},
          {"llm_int8_skip_modules", names.ignored},
          {"llm_int8_enable_fp32_cpu_offload", false},
          {"llm_int8_has_fp16_weight", false},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", names.modules.begin()->second->nests_scales},
          {"bnb_4bit_quant_storage", "uint8"},
          {"bnb_4bit_compute_dtype", TorchName(dtype)}};
}

}  // namespace

absl::StatusOr<std::vector<StoredPart>> StoredParts(const Scheme& scheme, const Encoding& e, int64_t out, int64_t in,
                                                    DType dtype) {
  if (scheme.per == Granularity::kGroup && in % scheme.group != 0) {
    return absl::InvalidArgumentError(absl::StrCat("rows of ", in, " are no whole groups of ", scheme.group,
                                                   "; choose another group, or leave it out by --ignore"));
  }
  if (scheme.container == Container::kBitsAndBytes) {
    return scheme.format == "nf4" ? BitsAndBytesNf4(e, out, in, dtype, scheme.nests_scales) : BitsAndBytesInt8(out, in);
  }
  if (e.format->codebook != nullptr) return PackedFloats(e, out, in);
  if (e.format->is_integer() && !scheme.activations.has_value()) return PackedIntegers(scheme, e, out, in);
  return WholeCodes(e, out, in);
}

std::vector<StoredPart> StoredInputScale(const Scheme& scheme, DType dtype, float scale) {
  if (!scheme.activations.has_value()) return {};
  if (scheme.activations->has_outer) {
    // The reciprocal of what multiplies: amax / (6 * 448).
    return {{".input_global_scale", {DType::kF32, {1}}, [=](const Tensor&) { return F32(kLargestE2M1 / scale); }}};
  }
  if (scheme.activations->is_dynamic) return {};
  return {{".input_scale", {dtype, {1}}, [=](const Tensor&) {
             return Tensor::FromValues(dtype, {1}, std::vector<float>{scale});
           }}};
}

double BitsPerWeight(const std::vector<StoredPart>& parts, int64_t out, int64_t in) {
  double bits = 0;
  for (const StoredPart& part : parts) {
    bits += 8 * static_cast<double>(Tensor(part.entry.dtype, Shape(part.entry.shape), nullptr).bytes());
  }
  return bits / static_cast<double>(out * in);
}

absl::StatusOr<Json> QuantizationConfig(const QuantizedNames& names, DType dtype) {
  const Scheme* first = names.modules.begin()->second;
  for (const auto& [module, scheme] : names.modules) {
    const bool differs = scheme->container != first->container ||
                         (first->container == Container::kBitsAndBytes && scheme->text != first->text);
    if (!differs) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "one folder cannot hold both ", first->text, " and ", scheme->text,
        ": bitsandbytes has one scheme for all layers, and compressed-tensors none for its formats; choose "
        "schemes that one of them has, or --decoded=f32|f16|bf16, which writes plain weights"));
  }
  if (first->container == Container::kCompressedTensors) return CompressedTensorsConfig(names);
  if (names.has_kv_scales) {
    return absl::InvalidArgumentError("--kv: bitsandbytes has no scales for keys and values; choose another scheme");
  }
  return BitsAndBytesConfig(names, dtype);
}

}  // namespace llmc
