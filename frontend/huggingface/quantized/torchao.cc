// torchao's tensors in safetensors, as torchao.prototype.safetensors flattens them: MODULE._weight_qdata, _weight_scale
// and _weight_zero_point. quant_type holds the configuration of torchao.quantization by the name of its class, or a
// FqnToConfig, which has one for each module.
// - integers one by one, i8 [out, in], and f8e4m3: a number is (code - zero) * scale, with a scale for the tensor, a
//   row, a group of columns or a block;
// - Int4WeightOnlyConfig, PLAIN: two signed integers of 4 bits a byte, the first in its low half, u8 or i8
//   [out, in / 2], scales and zero points [in / group, out]: a number is code * scale + zero.
#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/module_settings.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

constexpr char kCodes[] = "_weight_qdata", kScale[] = "_weight_scale", kZero[] = "_weight_zero_point";

// What a configuration says of the modules that it is for.
struct TorchaoForm {
  ByteForm bytes = {.is_float = false, .codes = kCodes, .scale = kScale, .zero = kZero, .per = Granularity::kChannel};
  int64_t bits = 8;
  bool is_packed = false;      // Int4WeightOnlyConfig
  bool is_asymmetric = false;  // there are zero points, if only 0
  std::optional<ActivationSpec> inputs;
};

// ---- weights ------------------------------------------------------------------------------------------------------

// Integers of up to 4 bits are stored as such.
std::string AsNarrow(const TorchaoForm& form, const std::string& as) {
  return form.bytes.is_float || form.bits > 4 ? as : absl::StrCat("int4", as.substr(4));
}

std::string PackedText(const TorchaoForm& form, DType scale) {
  return absl::StrCat("uint4 group=", form.bytes.group, " scale=", DTypeName(scale), " zero=f32");
}

void CheckCodes(int64_t bits, PartReader& reader) {
  const Tensor* codes = reader.Find(kCodes);
  if (codes == nullptr || codes->dtype() != DType::kI8) return;
  const int8_t* begin = codes->data<int8_t>();
  const int limit = 1 << (bits - 1);
  const bool fits = std::all_of(begin, begin + codes->size(), [&](int8_t c) { return c >= -limit && c < limit; });
  if (!fits) reader.Wrong(kCodes, absl::StrCat(" has numbers of more than ", bits, " bits"));
}

EncodedParts ReadElements(const TorchaoForm& form, const LinearModule& module, PartReader& reader) {
  ByteForm own = form.bytes;
  const Tensor* zeros = reader.Find(kZero);
  const std::vector<float> numbers = zeros == nullptr ? std::vector<float>() : zeros->ToFloats();
  // Experts are stored alike, whether zero points of some of them are 0 or not.
  const bool are_kept = form.is_asymmetric && module.is_expert;
  const bool are_zero = !std::any_of(numbers.begin(), numbers.end(), [](float zero) { return zero != 0; });
  if (own.is_float || (are_zero && !are_kept)) {
    own.zero = "";
    if (!own.is_float) reader.Ignore(kZero, "all zero points are 0");
  }
  EncodedParts parts = ReadBytes(own, module, reader);
  if (own.is_float || form.bits == 8) return parts;
  CheckCodes(form.bits, reader);
  if (form.bits > 4) return parts;
  parts.components[0] = reader.Add(Cast{.x = parts.components[0], .to = DType::kI4}, "codes");
  parts.as = AsNarrow(form, parts.as);
  return parts;
}

// Zero points in units of scales are numbers, too.
void CheckQuotients(PartReader& reader) {
  const Tensor *scale = reader.Find(kScale), *zero = reader.Find(kZero);
  if (scale == nullptr || zero == nullptr || scale->size() != zero->size()) return;
  const std::vector<float> scales = scale->ToFloats(), zeros = zero->ToFloats();
  for (size_t i = 0; i < scales.size(); ++i) {
    if (scales[i] == 0 || std::isfinite(zeros[i] / scales[i])) continue;
    return reader.Wrong(kScale, absl::StrCat(" has a scale (", scales[i], ") that is too small for its zero point"));
  }
}

EncodedParts ReadPacked(const TorchaoForm& form, const LinearModule& module, PartReader& reader) {
  const int64_t group = form.bytes.group;
  if (module.in % 2 != 0 || module.in % group != 0) {
    reader.Wrong(kCodes, absl::StrCat(": group_size ", group, " does not divide in_features ", module.in));
    return {};
  }
  const DType bytes[] = {DType::kU8, DType::kI8};
  Value* packed = reader.Part(kCodes, bytes, {module.out, module.in / 2},
                              absl::StrCat(" = [out ", module.out, ", in ", module.in, " / 2]"));
  const std::string why = absl::StrCat(" = [in ", module.in, " / group ", group, ", out ", module.out, "]");
  const auto by_rows = [&](const char* part, PartReader::Zeros zeros) {
    Value* columns = reader.Scale(part, {module.in / group, module.out}, why, kScaleTypes, zeros);
    return reader.Add(Transpose{.x = columns, .perm = {1, 0}});
  };
  CheckQuotients(reader);
  Value* scale = by_rows(kScale, PartReader::Zeros::kRefuse);
  Value* added = by_rows(kZero, PartReader::Zeros::kAllow);
  // Codes become 0 to 15, of which the one that stands for 0 lies between: 8 less what is added in units of the scale.
  const auto wide = [&](Value* x) {
    return x->type.dtype == DType::kF32 ? x : reader.Add(Cast{.x = x, .to = DType::kF32});
  };
  Value* units = reader.Add(Div{.lhs = wide(added), .rhs = wide(scale)});
  Value* zero = reader.Add(Sub{.lhs = reader.Constant(8), .rhs = units}, "zero");
  Value* codes = reader.Add(Unpack{.x = packed, .axis = 1, .add = 8, .to = DType::kU4}, "codes");
  return {.as = PackedText(form, scale->type.dtype), .components = {codes, scale, zero}};
}

class Torchao : public QuantizedScheme {
 public:
  struct OfModules {
    std::string name;                    // of a module, or the pattern as it is written
    std::optional<NamePattern> pattern;  // or of several
    std::optional<TorchaoForm> form;     // none: floats
    std::string text;                    // of the configuration, to compare
  };
  std::string name;
  std::optional<TorchaoForm> common;  // of all modules but those of `modules`
  std::vector<OfModules> modules;     // of FqnToConfig: names come before patterns
  std::vector<std::string> excluded;

  bool Covers(const LinearModule& module) const override {
    return !IsListed(module.name, excluded) && FormOf(module).has_value();
  }
  std::string CodesOf(const LinearModule&) const override { return kCodes; }
  std::string Name() const override { return absl::StrCat("torchao, ", name); }
  std::optional<ActivationSpec> ActivationOf(const LinearModule& module) const override {
    return FormOf(module)->inputs;
  }
  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    const TorchaoForm form = *FormOf(module);
    if (form.is_packed) return PackedText(form, scale);
    ByteForm own = form.bytes;
    if (!form.is_asymmetric) own.zero = "";
    return AsNarrow(form, hf::EncodingOf(own, scale));
  }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    // JSON's readers do not keep which pattern comes first.
    const OfModules* own = ModulesOf(module);
    for (const OfModules& other : modules) {
      if (own == nullptr || !own->pattern.has_value() || !IsOf(other, module) || other.text == own->text) continue;
      reader.Wrong(kCodes, absl::StrCat(" is of the patterns ", Quoted(own->name), " and ", Quoted(other.name),
                                        " of fqn_to_config, which say different things; name the module"));
      return {};
    }
    const TorchaoForm form = *FormOf(module);
    return form.is_packed ? ReadPacked(form, module, reader) : ReadElements(form, module, reader);
  }

 private:
  static bool IsOf(const OfModules& own, const LinearModule& module) {
    if (!own.pattern.has_value()) return own.name == module.name;
    return own.pattern->MatchesBeginning(module.name) || own.pattern->MatchesBeginning(module.name + ".weight");
  }
  const OfModules* ModulesOf(const LinearModule& module) const {
    const auto own =
        std::find_if(modules.begin(), modules.end(), [&](const OfModules& of) { return IsOf(of, module); });
    return own == modules.end() ? nullptr : &*own;
  }
  const std::optional<TorchaoForm>& FormOf(const LinearModule& module) const {
    const OfModules* own = ModulesOf(module);
    return own == nullptr ? common : own->form;
  }
};

// ---- configurations -----------------------------------------------------------------------------------------------

// {"_type": …, "_data": …} of an object of torchao; else the value itself.
const nlohmann::json& DataOf(const nlohmann::json& value) {
  return value.is_object() && value.contains("_data") ? value["_data"] : value;
}
std::string TypeName(const nlohmann::json& value) {
  const bool has = value.is_object() && value.contains("_type") && value["_type"].is_string();
  return has ? value["_type"].get<std::string>() : "";
}
nlohmann::json FieldOf(const nlohmann::json& data, const char* name) {
  return data.is_object() && data.contains(name) ? DataOf(data[name]) : nlohmann::json();
}

struct Runs {
  Granularity per = Granularity::kChannel;
  int64_t group = 0, rows = 0, columns = 0;
};

// Of a scale: {"_type": "PerGroup", "_data": {"group_size": 64}}.
Runs ReadGranularity(const nlohmann::json& granularity, ConfigReader& config) {
  const std::string name = TypeName(granularity);
  const auto size_of = [](const nlohmann::json& size) {
    return size.is_number_integer() && size > 0 && size <= kMaxSize ? size.get<int64_t>() : 0;
  };
  if (name == "PerTensor") return {Granularity::kTensor};
  if (name == "PerRow" || name == "PerAxis") return {Granularity::kChannel};
  if (name == "PerGroup") {
    const int64_t size = size_of(FieldOf(DataOf(granularity), "group_size"));
    if (size == 0) config.Wrong("quant_type", "a PerGroup with a group_size");
    return {Granularity::kGroup, std::max<int64_t>(size, 1)};
  }
  if (name == "PerBlock") {
    const nlohmann::json sizes = FieldOf(DataOf(granularity), "block_size");
    const bool are_two = sizes.is_array() && sizes.size() == 2;
    const int64_t rows = are_two ? size_of(sizes[0]) : 0, columns = are_two ? size_of(sizes[1]) : 0;
    if (rows == 0 || columns == 0) config.Wrong("quant_type", "a PerBlock with a block_size of two numbers");
    return {rows == 1 ? Granularity::kGroup : Granularity::kBlock, columns, rows, columns};
  }
  config.Refuse(absl::StrCat("granularity ", granularity.dump(),
                             " is not supported; supported: PerTensor, PerRow, PerAxis, PerGroup, PerBlock"));
  return {};
}

void SetRuns(const Runs& runs, TorchaoForm* form) {
  form->bytes.per = runs.per;
  form->bytes.group = runs.group;
  form->bytes.rows = runs.rows;
  form->bytes.columns = runs.columns;
}

// Choices that change how tensors are stored; each must be the one that is read.
void Require(const nlohmann::json& data, const char* field, const char* value, ConfigReader& config) {
  const nlohmann::json own = FieldOf(data, field);
  if (own.is_null() || own == value) return;
  config.Refuse(absl::StrCat(field, " ", own.dump(), " is not supported; supported: ", value));
}

void ReadIntegers(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  const nlohmann::json type = FieldOf(data, "weight_dtype");
  const std::string name = type.is_string() ? type.get<std::string>() : type.is_null() ? "int8" : "";
  constexpr std::array kTypes = {"int2", "int3", "int4", "int5", "int6", "int7", "int8"};
  if (std::find(kTypes.begin(), kTypes.end(), name) == kTypes.end()) {
    config.Refuse(
        absl::StrCat("weight_dtype ", type.dump(), " is not supported; supported: ", absl::StrJoin(kTypes, ", ")));
  } else {
    form->bits = name[3] - '0';
  }
  Require(data, "intx_packing_format", "UNPACKED_TO_INT8", config);
  Require(data, "packing_format", "UNPACKED_TO_INT8", config);  // its name before
  const char* const granularity = data.contains("weight_granularity") ? "weight_granularity" : "granularity";
  SetRuns(ReadGranularity(data.contains(granularity) ? data[granularity] : nlohmann::json(), config), form);
  form->is_asymmetric =
      FieldOf(data, data.contains("weight_mapping_type") ? "weight_mapping_type" : "mapping_type") == "ASYMMETRIC";
}

void ReadIntxWeights(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  ReadIntegers(data, config, form);
}
void ReadIntxWeightsAndInputs(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  ReadIntegers(data, config, form);
  form->inputs = {.format = "int8",
                  .per = Granularity::kToken,
                  .is_symmetric = false,
                  .unsupported = "torchao's Int8DynamicActivationIntxWeightConfig gives inputs zero points"};
}

void ReadInt8Weights(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  const nlohmann::json group = FieldOf(data, "group_size");
  if (!group.is_null()) config.Refuse("group_size of Int8WeightOnlyConfig is not supported; supported: granularity");
  if (data.contains("granularity")) SetRuns(ReadGranularity(data["granularity"], config), form);
}
void ReadInt8WeightsAndInputs(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  if (data.contains("granularity") && !data["granularity"].is_null()) {
    const nlohmann::json& of_both = data["granularity"];
    SetRuns(ReadGranularity(of_both.is_array() && of_both.size() == 2 ? of_both[1] : of_both, config), form);
  }
  const nlohmann::json mapping = FieldOf(data, "act_mapping_type");
  if (!mapping.is_null() && mapping != "SYMMETRIC" && mapping != "ASYMMETRIC") {
    config.Refuse(absl::StrCat("act_mapping_type ", mapping.dump(), " is not supported; supported: SYMMETRIC"));
  }
  form->inputs = {
      .format = "int8", .per = Granularity::kToken, .is_symmetric = mapping != "ASYMMETRIC", .limit = 127.5};
  const nlohmann::json reduces = FieldOf(data, "reduce_range");
  if (!form->inputs->is_symmetric) form->inputs->unsupported = "act_mapping_type ASYMMETRIC gives inputs zero points";
  if (!reduces.is_null() && reduces != false) form->inputs->unsupported = "reduce_range leaves inputs 7 of 8 bits";
}

void ReadFloatWeights(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  form->bytes.is_float = true;
  form->bytes.zero = "";
  Require(data, "weight_dtype", "float8_e4m3fn", config);
  Require(data, "packing_format", "PLAIN", config);
}
void ReadFloatWeightsAlone(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  ReadFloatWeights(data, config, form);
  if (data.contains("granularity")) SetRuns(ReadGranularity(data["granularity"], config), form);
}
// granularity: of inputs and of weights.
void ReadFloatWeightsAndInputs(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  ReadFloatWeights(data, config, form);
  Require(data, "activation_dtype", "float8_e4m3fn", config);
  const nlohmann::json of_both = data.contains("granularity") ? data["granularity"] : nlohmann::json();
  if (!of_both.is_array() || of_both.size() != 2) {
    return config.Wrong("quant_type", "a granularity of two, of inputs and of weights");
  }
  SetRuns(ReadGranularity(of_both[1], config), form);
  const Runs inputs = ReadGranularity(of_both[0], config);
  if (inputs.per == Granularity::kBlock) config.Refuse("granularity of inputs: blocks of several tokens");
  form->inputs = {.format = "f8e4m3", .per = inputs.per, .group = inputs.group};
  if (inputs.per == Granularity::kChannel) form->inputs->per = Granularity::kToken;  // a row of x
  if (!FieldOf(data, "activation_value_lb").is_null() || !FieldOf(data, "activation_value_ub").is_null()) {
    form->inputs->unsupported = "activation_value_lb and activation_value_ub bound what scales are made of";
  }
}

void ReadPackedWeights(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form) {
  form->is_packed = true;
  form->bits = 4;
  Require(data, "int4_packing_format", "PLAIN", config);
  const nlohmann::json group = FieldOf(data, "group_size");
  const bool fits = group.is_number_integer() && group > 0 && group <= kMaxSize;
  if (!group.is_null() && !fits) config.Wrong("quant_type", "an Int4WeightOnlyConfig with a group_size");
  form->bytes.group = fits ? group.get<int64_t>() : 128;
}

struct TorchaoClass {
  absl::string_view name;
  void (*read)(const nlohmann::json& data, ConfigReader& config, TorchaoForm* form);
};
constexpr TorchaoClass kClasses[] = {
    {"Int8WeightOnlyConfig", ReadInt8Weights},
    {"Int8DynamicActivationInt8WeightConfig", ReadInt8WeightsAndInputs},
    {"IntxWeightOnlyConfig", ReadIntxWeights},
    {"Int8DynamicActivationIntxWeightConfig", ReadIntxWeightsAndInputs},
    {"Int4WeightOnlyConfig", ReadPackedWeights},
    {"Float8WeightOnlyConfig", ReadFloatWeightsAlone},
    {"Float8DynamicActivationFloat8WeightConfig", ReadFloatWeightsAndInputs},
};

// Null: floats.
std::optional<TorchaoForm> ReadForm(const nlohmann::json& type, ConfigReader& config) {
  if (type.is_null()) return std::nullopt;
  TorchaoForm form;
  const std::string name = TypeName(type);
  const auto* own =
      std::find_if(std::begin(kClasses), std::end(kClasses), [&](const TorchaoClass& of) { return of.name == name; });
  if (own == std::end(kClasses)) {
    const auto name_of = [](std::string* out, const TorchaoClass& of) { absl::StrAppend(out, of.name); };
    config.Refuse(absl::StrCat("quant_type ", Quoted(name), " is not supported; supported: ",
                               absl::StrJoin(kClasses, ", ", name_of), ", FqnToConfig of these"));
    return form;
  }
  const nlohmann::json data = type.contains("_data") ? type["_data"] : nlohmann::json::object();
  if (!data.is_object()) {
    config.Wrong("quant_type", absl::StrCat("a ", name, " with an object _data"));
  } else {
    own->read(data, config, &form);
  }
  return form;
}

// {name, "re:" and a pattern of whole names, or "_default": a configuration, or null}. Names are of modules or of their
// parameter weight, which comes before its module; patterns come last.
void ReadModules(const nlohmann::json& data, ConfigReader& config, Torchao* scheme) {
  const nlohmann::json of_all = FieldOf(data, "fqn_to_config");
  const nlohmann::json modules = of_all.is_object() && !of_all.empty() ? of_all : FieldOf(data, "module_fqn_to_config");
  if (!modules.is_object()) return config.Wrong("quant_type", "a FqnToConfig with an object fqn_to_config");
  std::vector<Torchao::OfModules> of_modules, of_patterns;
  PatternReader patterns;
  for (const auto& [key, type] : modules.items()) {
    const std::optional<TorchaoForm> form = ReadForm(type, config);
    absl::string_view name = key;
    if (name == "_default") {
      scheme->common = form;
    } else if (absl::ConsumePrefix(&name, "re:")) {
      std::optional<NamePattern> pattern = patterns.Parse(absl::StrCat("(", name, ")$"), "fqn_to_config", config);
      if (pattern.has_value()) of_patterns.push_back({key, std::move(pattern), form, type.dump()});
    } else {
      const bool is_parameter = absl::ConsumeSuffix(&name, ".weight");
      auto& of = is_parameter ? scheme->modules : of_modules;
      of.push_back({std::string(name), std::nullopt, form, type.dump()});
    }
  }
  for (auto* more : {&of_modules, &of_patterns}) {
    for (Torchao::OfModules& of : *more) scheme->modules.push_back(std::move(of));
  }
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadTorchao(ConfigReader& config) {
  auto scheme = std::make_unique<Torchao>();
  scheme->excluded = ReadNames(config, "modules_to_not_convert");
  // Embeddings and the head are quantized if they have codes.
  config.Ignore({"quant_method", "quant_type_kwargs", "untie_embedding_weights", "include_input_output_embeddings"});
  const nlohmann::json* types = config.Find("quant_type");
  if (types == nullptr || !types->is_object() || !types->contains("default") || types->size() != 1) {
    config.Wrong("quant_type", "an object with \"default\" alone");
    return scheme;
  }
  const nlohmann::json& type = (*types)["default"];
  scheme->name = TypeName(type);
  if (scheme->name == "FqnToConfig" || scheme->name == "ModuleFqnToConfig") {
    ReadModules(DataOf(type), config, scheme.get());
  } else {
    scheme->common = ReadForm(type, config);
  }
  return scheme;
}

}  // namespace llmc::hf
