// bitsandbytes. LLM.int8() (arXiv:2208.07339): MODULE.weight i8 [out, in], SCB f32 [out]: a number is code * SCB / 127.
// NF4 and FP4 (arXiv:2305.14314, section 3): weight u8 [out * in / 2, 1], two codes in a byte, the first in its high
// half; blocks of the weights one after the other, row by row, have an absmax, which multiplies the number that
// quant_map has for a code. With double quantization absmax is u8, an index into nested_quant_map, times the
// nested_absmax of its own block, plus an offset. Such scales are made f32 in `prepare`: 0.5 bits a weight in blocks of
// 64 in place of 0.13.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/formats/json_file.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

constexpr DType kU8Only[] = {DType::kU8};
constexpr DType kF32Only[] = {DType::kF32};

// What MODULE.weight.quant_state.bitsandbytes__nf4 says, a JSON text in bytes.
struct QuantState {
  int64_t block = 64, nested_block = 256;
  double nested_offset = 0;
};

class BitsAndBytes : public QuantizedScheme {
 public:
  bool is_int8 = false;
  std::string type = "nf4";
  std::vector<std::string> excluded;

  bool Covers(const LinearModule& module) const override { return !module.is_head && !IsListed(module.name, excluded); }
  std::string CodesOf(const LinearModule&) const override { return "weight"; }
  std::string Name() const override { return absl::StrCat("bitsandbytes, ", is_int8 ? "int8" : type); }
  std::optional<ActivationSpec> ActivationOf(const LinearModule&) const override {
    if (!is_int8) return std::nullopt;
    // Columns with a magnitude of 6 or more in any row of the call stay floats (arXiv:2208.07339, section 3.2).
    return ActivationSpec{.format = "int8",
                          .per = Granularity::kToken,
                          .limit = 127,
                          .unsupported =
                              "LLM.int8() chooses columns by all tokens of a step, so that what one sequence "
                              "gets would depend on the others"};
  }
  std::string EncodingOf(const LinearModule& module, DType) const override {
    return is_int8 ? "int8 per=channel scale=f32" : Text(std::gcd<int64_t>(64, module.in));
  }

  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    return is_int8 ? ReadInt8(module, reader) : Read4Bits(module, reader);
  }

 private:
  std::string Text(int64_t group) const {
    return absl::StrCat(type == "nf4" ? "nf4" : "bnb_fp4", " group=", group, " scale=f32");
  }

  EncodedParts ReadInt8(const LinearModule& module, PartReader& reader) const {
    const DType types[] = {DType::kI8};
    Value* codes = reader.Part("weight", types, {module.out, module.in});
    Value* scale = reader.Scale("SCB", {module.out}, " = [out]", kF32Only);
    const std::optional<double> layout = reader.Setting("weight_format");
    if (layout.value_or(0) != 0) {
      reader.Wrong("weight_format",
                   absl::StrCat(" is ", *layout, ": only 0 (rows) is supported, others are layouts of kernels"));
    }
    scale = reader.Add(Mul{.lhs = scale, .rhs = reader.Constant(1.0 / 127)}, "scale");
    return {.as = "int8 per=channel scale=f32", .components = {codes, scale}};
  }

  EncodedParts Read4Bits(const LinearModule& module, PartReader& reader) const {
    const std::optional<QuantState> state = ReadState(module, reader);
    const int64_t elements = module.out * module.in;
    const std::string why = absl::StrCat(" = [out ", module.out, " * in ", module.in, " / 2, 1]");
    Value* packed = reader.Part("weight", kU8Only, {(elements + 1) / 2, 1}, why);
    if (!state.has_value() || !CheckMap(reader)) {
      for (const char* part : {"quant_map", "absmax", "nested_absmax", "nested_quant_map"}) {
        reader.Use(absl::StrCat("weight.", part));  // there is a complaint
      }
      return {};
    }
    // Blocks do not end with rows: runs that divide both have one scale.
    const int64_t group = std::gcd(state->block, module.in);
    if (group < 8 || module.in % 2 != 0) {
      reader.Wrong("weight", absl::StrCat(": rows of ", module.in, " weights in blocks of ", state->block,
                                          " are not supported: too few have a scale in common"));
      return {};
    }
    const int64_t blocks = (elements + state->block - 1) / state->block;
    const bool is_nested = reader.Has("weight.nested_absmax") || reader.Has("weight.nested_quant_map");
    Value* scale =
        is_nested ? NestedScale(*state, blocks, reader) : reader.Scale("weight.absmax", {blocks}, "", kF32Only);
    const int64_t repeats = state->block / group, groups = elements / group;
    if (repeats > 1) scale = Repeated(scale, blocks, repeats, groups, reader);
    scale = reader.Reshaped(scale, {module.out, module.in / group});
    packed = reader.Reshaped(packed, {module.out, module.in / 2});
    Value* codes = reader.Add(Unpack{.x = packed, .axis = 1, .order = {1, 0}}, "codes");
    return {.as = Text(group), .components = {codes, scale}};
  }

  // Each element `repeats` times, `count` in all.
  static Value* Repeated(Value* x, int64_t size, int64_t repeats, int64_t count, PartReader& reader) {
    x = reader.Add(Expand{.x = reader.Reshaped(x, {size, 1}), .shape = {Dim(size), Dim(repeats)}});
    x = reader.Reshaped(x, {size * repeats});
    if (size * repeats == count) return x;
    return reader.Add(Slice{.x = x, .axis = 0, .start = {Dim(0)}, .end = {Dim(count)}});
  }

  static Value* NestedScale(const QuantState& state, int64_t blocks, PartReader& reader) {
    const int64_t outer = (blocks + state.nested_block - 1) / state.nested_block;
    Value* codes = reader.Part("weight.absmax", kU8Only, {blocks}, " = [blocks]");
    Value* map = reader.Scale("weight.nested_quant_map", {256}, "", kF32Only, PartReader::Zeros::kAllow);
    Value* absmax = reader.Scale("weight.nested_absmax", {outer}, "", kF32Only);
    Value* numbers = reader.Add(Gather{.x = map, .indices = reader.Add(Cast{.x = codes, .to = DType::kI32})});
    Value* product = nullptr;
    if (blocks == outer * state.nested_block) {
      numbers = reader.Reshaped(numbers, {outer, state.nested_block});
      product = reader.Add(Mul{.lhs = numbers, .rhs = reader.Reshaped(absmax, {outer, 1})});
      product = reader.Reshaped(product, {blocks});
    } else {
      absmax = Repeated(absmax, outer, state.nested_block, blocks, reader);
      product = reader.Add(Mul{.lhs = numbers, .rhs = absmax});
    }
    return reader.Add(Add{.lhs = product, .rhs = reader.Constant(state.nested_offset)}, "scale");
  }

  std::optional<QuantState> ReadState(const LinearModule& module, PartReader& reader) const {
    const std::string part = absl::StrCat("weight.quant_state.bitsandbytes__", type);
    const Tensor* text = reader.Find(part);
    if (text == nullptr || text->dtype() != DType::kU8) {
      reader.Part(part, kU8Only, {1}, " or longer: the JSON text of a state");
      return std::nullopt;
    }
    reader.Use(part);
    const absl::StatusOr<nlohmann::json> json =
        ParseJson(absl::string_view(text->raw(), static_cast<size_t>(text->bytes())), reader.NameOf(part));
    if (!json.ok() || !json->is_object()) {
      reader.Wrong(part, absl::StrCat(" is no JSON object", json.ok() ? "" : ": ", json.status().message()));
      return std::nullopt;
    }
    const JsonFields fields(&*json, reader.NameOf(part));
    QuantState state;
    const auto take = [&](const auto& value, auto* to) {
      if (value.ok()) *to = *value;
      if (!value.ok()) reader.Wrong(part, absl::StrCat(": ", value.status().message()));
      return value.ok();
    };
    std::string own;
    const bool fits = take(fields.Int("blocksize", 64, 1, 1 << 20), &state.block) &&
                      take(fields.Int("nested_blocksize", 256, 1, 1 << 20), &state.nested_block) &&
                      take(fields.Double("nested_offset", 0, -1e30, 1e30), &state.nested_offset) &&
                      take(fields.String("quant_type", type), &own);
    if (!fits) return std::nullopt;
    const nlohmann::json* shape = fields.Find("shape");
    const bool is_shape = shape == nullptr || *shape == nlohmann::json{module.out, module.in};
    if (own == type && is_shape) return state;
    reader.Wrong(part, is_shape ? absl::StrCat(" is of ", Quoted(own), ", config.json says ", type)
                                : absl::StrCat(" is of shape ", shape->dump(), ", config.json asks for [", module.out,
                                               ", ", module.in, "]"));
    return std::nullopt;
  }

  // Whether codes stand for the numbers of the format.
  bool CheckMap(PartReader& reader) const {
    const Tensor* map = reader.Find("weight.quant_map");
    if (map == nullptr || map->dtype() != DType::kF32 || map->size() != 16) {
      reader.Part("weight.quant_map", kF32Only, {16});
      return false;
    }
    reader.Use("weight.quant_map");
    const float* expected = nullptr;
    for (const EncodingFormat& format : EncodingFormats()) {
      if (format.name == (type == "nf4" ? "nf4" : "bnb_fp4")) expected = format.codebook;
    }
    for (int i = 0; i < 16; ++i) {
      if (std::abs(map->data<float>()[i] - expected[i]) <= 1e-6f) continue;
      reader.Wrong("weight.quant_map",
                   absl::StrCat("[", i, "] is ", map->data<float>()[i], ", not ", expected[i], " as of ", type));
      return false;
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<QuantizedScheme> ReadBitsAndBytes(ConfigReader& config) {
  auto scheme = std::make_unique<BitsAndBytes>();
  const bool in_8 = config.Flag("load_in_8bit", config.Flag("_load_in_8bit", false));
  const bool in_4 = config.Flag("load_in_4bit", config.Flag("_load_in_4bit", false));
  if (in_8 == in_4) config.Contradicts("bitsandbytes: one of load_in_8bit and load_in_4bit must be true");
  scheme->is_int8 = in_8;
  scheme->type = config.Text("bnb_4bit_quant_type", "fp4");
  if (in_4 && scheme->type != "nf4" && scheme->type != "fp4") {
    config.Refuse(absl::StrCat("bnb_4bit_quant_type ", Quoted(scheme->type), " is not supported; supported: nf4, fp4"));
  }
  const std::string storage = config.Text("bnb_4bit_quant_storage", "uint8");
  if (in_4 && storage != "uint8") {
    config.Refuse(absl::StrCat("bnb_4bit_quant_storage ", Quoted(storage), " is not supported; supported: uint8"));
  }
  if (config.Flag("llm_int8_has_fp16_weight", false)) config.Refuse("llm_int8_has_fp16_weight true is not supported");
  scheme->excluded = ReadNames(config, "llm_int8_skip_modules");
  config.Ignore({"quant_method", "_load_in_8bit", "_load_in_4bit", "bnb_4bit_compute_dtype",
                 "bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload", "llm_int8_threshold"});
  return scheme;
}

}  // namespace llmc::hf
