// torchao's tensors in safetensors: integers one by one, MODULE._weight_qdata i8 [out, in], with _weight_scale and
// _weight_zero_point for each row or group of columns. A number is (code - zero) * scale.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

class Torchao : public QuantizedScheme {
 public:
  int64_t bits = 8;
  ByteForm form = {.is_float = false,
                   .codes = "_weight_qdata",
                   .scale = "_weight_scale",
                   .zero = "_weight_zero_point",
                   .per = Granularity::kChannel};
  std::vector<std::string> excluded;

  bool Covers(const LinearModule& module) const override { return !IsListed(module.name, excluded); }
  std::string CodesOf(const LinearModule&) const override { return form.codes; }
  std::string Name() const override { return absl::StrCat("torchao, integers of ", bits, " bits"); }
  std::string EncodingOf(const LinearModule&, DType scale) const override {
    ByteForm own = form;
    own.zero = "";
    return Narrow(hf::EncodingOf(own, scale));
  }

  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    ByteForm own = form;
    const Tensor* zeros = reader.Find(form.zero);
    const std::vector<float> numbers = zeros == nullptr ? std::vector<float>() : zeros->ToFloats();
    if (!std::any_of(numbers.begin(), numbers.end(), [](float zero) { return zero != 0; })) {
      own.zero = "";
      reader.Ignore(form.zero, "all zero points are 0");
    }
    EncodedParts parts = ReadBytes(own, module, reader);
    if (bits > 4) return parts;
    CheckCodes(reader);
    parts.components[0] = reader.Add(Cast{.x = parts.components[0], .to = DType::kI4}, "codes");
    parts.as = Narrow(parts.as);
    return parts;
  }

 private:
  std::string Narrow(const std::string& as) const { return bits > 4 ? as : absl::StrCat("int4", as.substr(4)); }

  void CheckCodes(PartReader& reader) const {
    const Tensor* codes = reader.Find(form.codes);
    if (codes == nullptr || codes->dtype() != DType::kI8) return;
    const int8_t* begin = codes->data<int8_t>();
    const int limit = 1 << (bits - 1);
    const bool fits = std::all_of(begin, begin + codes->size(), [&](int8_t c) { return c >= -limit && c < limit; });
    if (!fits) reader.Wrong(form.codes, absl::StrCat(" has numbers of more than ", bits, " bits"));
  }
};

// {"_type": …, "_data": …} of an object of torchao; else the value itself.
const nlohmann::json& DataOf(const nlohmann::json& value) {
  return value.is_object() && value.contains("_data") ? value["_data"] : value;
}
std::string TypeName(const nlohmann::json& value) {
  const bool has = value.is_object() && value.contains("_type") && value["_type"].is_string();
  return has ? value["_type"].get<std::string>() : "";
}

void ReadTorchaoGroups(const nlohmann::json& data, ConfigReader& config, Torchao* scheme) {
  const nlohmann::json type = data.contains("weight_dtype") ? DataOf(data["weight_dtype"]) : nlohmann::json("int8");
  const std::string name = type.is_string() ? type.get<std::string>() : "";
  if (name != "int8" && name != "int4" && name != "int2" && name != "int3") {
    config.Refuse(absl::StrCat("weight_dtype ", type.dump(), " is not supported; supported: int2, int3, int4, int8"));
  } else {
    scheme->bits = name[3] - '0';
  }
  const nlohmann::json granularity = data.contains("granularity") ? data["granularity"] : nlohmann::json();
  if (TypeName(granularity) == "PerGroup") {
    const nlohmann::json& size = DataOf(granularity);
    const bool fits = size.is_object() && size.contains("group_size") && size["group_size"].is_number_integer() &&
                      size["group_size"] > 0 && size["group_size"] <= kMaxSize;
    if (!fits) return config.Wrong("quant_type", "a PerGroup with a group_size");
    scheme->form.per = Granularity::kGroup;
    scheme->form.group = size["group_size"].get<int64_t>();
  } else if (TypeName(granularity) != "PerAxis" && TypeName(granularity) != "PerRow") {
    config.Refuse(absl::StrCat("granularity ", granularity.dump(), " is not supported; supported: PerGroup, PerAxis"));
  }
  if (data.contains("intx_packing_format") && DataOf(data["intx_packing_format"]) != "UNPACKED_TO_INT8") {
    config.Refuse(absl::StrCat("intx_packing_format ", DataOf(data["intx_packing_format"]).dump(),
                               " is a layout of kernels; supported: UNPACKED_TO_INT8"));
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
  const std::string name = TypeName(type);
  if (name == "IntxWeightOnlyConfig" && DataOf(type).is_object()) {
    ReadTorchaoGroups(DataOf(type), config, scheme.get());
  } else if (name != "Int8WeightOnlyConfig") {
    config.Refuse(absl::StrCat("quant_type ", Quoted(name),
                               " is not supported; supported: Int8WeightOnlyConfig, IntxWeightOnlyConfig"));
  } else if (DataOf(type).is_object() && DataOf(type).contains("group_size") && !DataOf(type)["group_size"].is_null()) {
    config.Refuse("Int8WeightOnlyConfig with a group_size is not supported");
  }
  return scheme;
}

}  // namespace llmc::hf
