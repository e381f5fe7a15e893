// MLX (github.com/ml-explore/mlx, nn.quantize), as mlx-lm writes it: MODULE.weight U32 [out, in * bits / 32] holds
// codes along k from the lowest bits on, across words; a number is code * scale + bias, with MODULE.scales and .biases
// [out, in / group]. In mode mxfp4 codes are E2M1 and scales u8 exponents of groups of 32. Embeddings are quantized,
// too.
#include <map>

#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

struct MlxSetting {
  int64_t bits = 4, group = 64;
  bool is_mxfp4 = false;
};

class Mlx : public QuantizedScheme {
 public:
  MlxSetting common;
  std::map<std::string, std::optional<MlxSetting>> of_modules;  // nullopt: not quantized

  bool Covers(const LinearModule& module) const override {
    const auto own = of_modules.find(module.name);
    return own == of_modules.end() || own->second.has_value();
  }
  std::string CodesOf(const LinearModule&) const override { return "weight"; }
  std::string NameOfStacks() const override { return "switch_mlp"; }
  bool HasSignedScales() const override { return true; }
  std::string Name() const override { return absl::StrCat("MLX, ", common.bits, " bits"); }
  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    return Text(SettingOf(module), module.in, DTypeName(scale));
  }

  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    const MlxSetting s = SettingOf(module);
    const int64_t groups = module.in / s.group;
    if (module.in % s.group != 0 || module.in * s.bits % 32 != 0) {
      reader.Wrong("weight", absl::StrCat(": group_size ", s.group, " does not divide in_features ", module.in));
      return {};
    }
    const DType words[] = {DType::kI32};
    Value* packed = reader.Part("weight", words, module.Stacked({module.out, module.in * s.bits / 32}),
                                absl::StrCat(" = [out ", module.out, ", in ", module.in, " * ", s.bits, " / 32]"));
    const Shape of_groups = module.Stacked({module.out, groups});
    const std::string why = absl::StrCat(" = [out ", module.out, ", in ", module.in, " / group ", s.group, "]");
    Unpack op = {.x = packed, .bits = s.bits, .axis = module.experts > 0 ? 2 : 1, .across = 32 % s.bits != 0};
    StoreAs(IntegerFormat(static_cast<int>(s.bits), false, module.in), &op);
    Value* codes = reader.Add(op, "codes");
    if (s.is_mxfp4) {
      return {.as = "mxfp4", .components = {codes, reader.Exponents("scales", of_groups, why)}};
    }
    Value* scale = reader.Scale("scales", of_groups, why, kScaleTypes, PartReader::Zeros::kRefuse);
    Value* bias = reader.Scale("biases", of_groups, why, kScaleTypes, PartReader::Zeros::kAllow);
    // The code that stands for 0, between codes: what is added, in units of the scale.
    Value* zero = reader.Add(Neg{.x = reader.Add(Div{.lhs = reader.AsF32(bias), .rhs = reader.AsF32(scale)})}, "zero");
    return {.as = Text(s, module.in, DTypeName(DTypeOf(scale))), .components = {codes, scale, zero}};
  }

 private:
  MlxSetting SettingOf(const LinearModule& module) const {
    const auto own = of_modules.find(module.name);
    return own != of_modules.end() && own->second.has_value() ? *own->second : common;
  }
  static std::string Text(const MlxSetting& s, int64_t in, absl::string_view scale) {
    if (s.is_mxfp4) return "mxfp4";
    return absl::StrCat(IntegerFormat(static_cast<int>(s.bits), false, in).name, " group=", s.group, " scale=", scale,
                        " zero=f32");
  }
};

MlxSetting ReadMlxSetting(ConfigReader& config, const MlxSetting& common) {
  MlxSetting s;
  const std::string mode = config.Text("mode", common.is_mxfp4 ? "mxfp4" : "affine");
  s.is_mxfp4 = mode == "mxfp4";
  if (mode != "affine" && mode != "mxfp4") {
    config.Refuse(absl::StrCat("mode ", Quoted(mode), " is not supported; supported: affine, mxfp4"));
  }
  s.bits = config.Int("bits", common.bits, 1, 64);
  s.group = config.Int("group_size", common.group, 1, kMaxSize);
  if (s.bits < 2 || s.bits > 8 || s.bits == 7) {
    config.Refuse(absl::StrCat("MLX bits ", s.bits, " is not supported (2, 3, 4, 5, 6, 8)"));
    s.bits = 4;
  }
  if (s.is_mxfp4 && (s.bits != 4 || s.group != 32)) config.Contradicts("mode mxfp4 is of 4 bits in groups of 32");
  return s;
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadMlx(ConfigReader& config) {
  auto scheme = std::make_unique<Mlx>();
  scheme->common = ReadMlxSetting(config, {});
  config.Ignore({"quant_method"});
  // The other keys are modules.
  for (const std::string& key : config.fields().Unread()) {
    const nlohmann::json* value = config.Find(key);
    if (value == nullptr || *value == true) continue;
    if (*value == false) {
      scheme->of_modules[key] = std::nullopt;
    } else if (value->is_object()) {
      InnerConfig inner(config, value, key);
      scheme->of_modules[key] = ReadMlxSetting(*inner, scheme->common);
    } else {
      config.Wrong(key, "false, or an object with the bits and group_size of the module");
    }
  }
  return scheme;
}

}  // namespace llmc::hf
