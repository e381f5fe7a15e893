// HQQ (mobiusml.github.io/hqq_blog): with W_q [out * in / group, group] of codes, whose first half of rows is in the
// high halves of MODULE.W_q's bytes and the other in the low ones (quarters at 2 bits; tenths of words of 32 bits
// at 3, of which two bits are left), a number is (code - zero) * scale, with a scale and zero point in floats for each
// row.
#include <algorithm>
#include <map>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

struct HqqForm {
  int64_t bits = 4, group = 64;  // 0: a row is a group
};

// What is the same in all layers of the names of a module: "self_attn.q_proj".
std::string TagOf(absl::string_view module) {
  std::vector<absl::string_view> parts;
  for (const absl::string_view part : absl::StrSplit(module, '.')) {
    const bool is_number = !part.empty() && std::all_of(part.begin(), part.end(), absl::ascii_isdigit);
    if (part != "model" && part != "layers" && !is_number) parts.push_back(part);
  }
  return absl::StrJoin(parts, ".");
}

class Hqq : public QuantizedScheme {
 public:
  std::optional<HqqForm> common;
  std::map<std::string, HqqForm> of_tags;  // where there is no `common`
  std::vector<std::string> excluded;

  bool Covers(const LinearModule& module) const override {
    return !IsListed(module.name, excluded) && FormOf(module).has_value();
  }
  std::string CodesOf(const LinearModule&) const override { return "W_q"; }
  std::string Name() const override {
    return common.has_value() ? absl::StrCat("HQQ, ", common->bits, " bits") : "HQQ, settings of single modules";
  }
  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    const HqqForm form = *FormOf(module);
    return Text(form.bits, RunOf(form, module), DTypeName(scale), DTypeName(scale));
  }

  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    const HqqForm form = *FormOf(module);
    const auto [bits, group] = form;
    CheckSettings(form, module, reader);
    const int64_t planes = bits == 3 ? 10 : 8 / bits;  // 3 bits: in words of 32
    // Groups may end within rows: runs that divide both have one scale.
    const int64_t run = RunOf(form, module), rows = module.out * module.in / group;
    if (module.out * module.in % group != 0 || (run < group && run < 8)) {
      reader.Wrong("W_q", absl::StrCat(": group_size ", group, " does not divide in_features ", module.in));
      for (const char* part : {"scale", "zero"}) reader.Use(part);  // there is a complaint
      return {};
    }
    if (bits != 3 && rows % planes != 0) {
      reader.Wrong("W_q", absl::StrCat(": ", planes, " codes of a byte do not divide the ", rows, " groups"));
      return {};
    }
    const DType words[] = {bits == 3 ? DType::kI32 : DType::kU8};
    const std::string why = absl::StrCat(" = [out ", module.out, " * in ", module.in, " / group ", group);
    Value* packed =
        reader.Part("W_q", words, {(rows + planes - 1) / planes, group}, absl::StrCat(why, " / ", planes, ", group]"));
    Value* scale = reader.Scale("scale", {rows, 1}, why + ", 1]");
    Value* zero = reader.Scale("zero", {rows, 1}, why + ", 1]", kScaleTypes, PartReader::Zeros::kAllow);
    // The first codes are in the highest bits.
    std::vector<int64_t> order;
    for (int64_t plane = planes - 1; plane >= 0; --plane) order.push_back(plane);
    Unpack op = {.x = packed, .bits = bits, .axis = 0, .order = order, .planes = true, .count = rows};
    const EncodingFormat& format = Format(form.bits, run);
    StoreAs(format, &op);
    const int64_t in_row = op.packed ? module.in / format.run() * format.run_bytes() : module.in;
    Value* codes = reader.Reshaped(reader.Add(op, "rows"), {module.out, in_row});
    const auto of_runs = [&](Value* x) {
      if (run < group) x = reader.Add(Expand{.x = x, .shape = {Dim(rows), Dim(group / run)}});
      return reader.Reshaped(x, {module.out, module.in / run});
    };
    return {.as = Text(form.bits, run, DTypeName(DTypeOf(scale)), DTypeName(DTypeOf(zero))),
            .components = {codes, of_runs(scale), of_runs(zero)}};
  }

 private:
  std::optional<HqqForm> FormOf(const LinearModule& module) const {
    const auto own = of_tags.find(TagOf(module.name));
    std::optional<HqqForm> form = own == of_tags.end() ? common : own->second;
    if (form.has_value() && form->group == 0) form->group = module.in;
    return form;
  }
  static int64_t RunOf(const HqqForm& form, const LinearModule& module) { return std::gcd(form.group, module.in); }
  static const EncodingFormat& Format(int64_t bits, int64_t run) {
    return IntegerFormat(static_cast<int>(bits), false, run);
  }
  static std::string Text(int64_t bits, int64_t run, absl::string_view scale, absl::string_view zero) {
    return absl::StrCat(Format(bits, run).name, " group=", run, " scale=", scale, " zero=", zero);
  }

  // Each module says again how it is stored.
  static void CheckSettings(const HqqForm& form, const LinearModule& module, PartReader& reader) {
    const std::pair<const char*, int64_t> settings[] = {
        {"nbits", form.bits}, {"group_size", form.group}, {"axis", 1},        {"quant_scale", 0},
        {"quant_zero", 0},    {"view_as_float", 0},       {"channel_wise", 1}};
    for (const auto& [part, expected] : settings) {
      const std::optional<double> found = reader.Setting(part);
      if (!found.has_value() || *found == static_cast<double>(expected)) continue;
      reader.Wrong(part,
                   absl::StrCat(" is ", *found, ", expected ", expected, " as config.json says or as is supported"));
    }
    if (const Tensor* shape = reader.Find("shape"); shape != nullptr) {
      reader.Use("shape");
      const bool fits = IsInteger(shape->dtype()) && shape->ToInts() == std::vector<int64_t>{module.out, module.in};
      if (!fits) reader.Wrong("shape", absl::StrCat(" is not [", module.out, ", ", module.in, "]"));
    }
    for (const char* part : {"packing", "compute_dtype", "encoded_state_dict", "offload_meta", "optimize", "round_zero",
                             "stores_quant_config", "unpack_view_dtype"}) {
      reader.Ignore(part, "says how the others were made");
    }
  }
};

std::optional<HqqForm> ReadHqqForm(ConfigReader& outer, const nlohmann::json* object, const std::string& path) {
  InnerConfig inner(outer, object, path);
  for (const char* key : {"scale_quant_params", "zero_quant_params"}) {
    if (inner->Find(key) != nullptr) inner->Refuse(absl::StrCat(key, ": quantized scales are not supported"));
  }
  inner->Ignore({"offload_meta"});
  const nlohmann::json* weights = inner->Find("weight_quant_params");
  if (weights == nullptr || !weights->is_object()) {
    inner->Wrong("weight_quant_params", "an object");
    return std::nullopt;
  }
  InnerConfig own(*inner, weights, "weight_quant_params");
  HqqForm form = {.bits = own->Int("nbits", 4, 1, 64), .group = own->Int("group_size", 64, 1, kMaxSize)};
  if (form.bits != 2 && form.bits != 3 && form.bits != 4 && form.bits != 8) {
    own->Refuse(absl::StrCat("HQQ nbits ", form.bits, " is not supported (2, 3, 4, 8)"));
    form.bits = 4;
  }
  if (weights->contains("group_size") && (*weights)["group_size"].is_null()) form.group = 0;
  if (own->Int("axis", 1, 0, 1) != 1) own->Refuse("axis 0 is not supported: groups must lie along the inputs (axis 1)");
  if (own->Flag("view_as_float", false)) own->Refuse("view_as_float true is not supported");
  if (!own->Flag("channel_wise", true)) own->Refuse("channel_wise false is not supported");
  own->Ignore({"optimize", "round_zero"});
  return form;
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadHqq(ConfigReader& config) {
  auto scheme = std::make_unique<Hqq>();
  scheme->excluded = ReadNames(config, "skip_modules");
  config.Ignore({"quant_method"});
  const nlohmann::json* object = config.Find("quant_config");
  if (object == nullptr || !object->is_object()) {
    config.Wrong("quant_config", "an object");
    return scheme;
  }
  if (object->contains("weight_quant_params")) {
    scheme->common = ReadHqqForm(config, object, "quant_config");
    return scheme;
  }
  for (const auto& [tag, settings] : object->items()) {
    if (!settings.is_object()) {
      config.Wrong("quant_config", "an object with weight_quant_params, or of modules with such objects");
      break;
    }
    const std::optional<HqqForm> form = ReadHqqForm(config, &settings, absl::StrCat("quant_config.", tag));
    if (form.has_value()) scheme->of_tags[tag] = *form;
  }
  return scheme;
}

}  // namespace llmc::hf
