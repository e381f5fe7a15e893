// compressed-tensors, as llm-compressor writes it (github.com/vllm-project/compressed-tensors): groups of modules, each
// with a format. Integers of 2 to 8 bits are packed along k in words of 32 after 2^(bits - 1) was added,
// MODULE.weight_packed [out, in * bits / 32]; their zero points, likewise, along the outputs, or one i8 for all.
#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/module_settings.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

using nlohmann::json;

enum class Format { kPackedIntegers, kIntegers, kFloats, kNvfp4, kMxfp4, kMxfp8 };
constexpr std::pair<absl::string_view, Format> kFormats[] = {
    {"pack-quantized", Format::kPackedIntegers}, {"int-quantized", Format::kIntegers},
    {"float-quantized", Format::kFloats},        {"naive-quantized", Format::kIntegers},
    {"nvfp4-pack-quantized", Format::kNvfp4},    {"mxfp4-pack-quantized", Format::kMxfp4},
    {"mxfp8-quantized", Format::kMxfp8},
};

// QuantizationArgs of the library.
struct Arguments {
  int64_t bits = 8;
  bool is_float = false, is_symmetric = true, is_dynamic = false, has_order = false;
  Granularity per = Granularity::kTensor;
  bool is_nested = false;  // "tensor_group": groups whose scales one for all scales
  bool has_exponents = false;
  int64_t group = 0, rows = 0, columns = 0;
};

// A name, "re:" and a pattern, or a class of modules.
struct Selector {
  std::string name;
  std::optional<NamePattern> pattern;
  bool Names(const LinearModule& module) const {
    return pattern.has_value() ? pattern->MatchesBeginning(module.name) : name == module.name;
  }
  bool IsClassOf(const LinearModule& module) const {
    return !pattern.has_value() && name == (module.is_embedding ? "Embedding" : "Linear");
  }
};

struct Group {
  std::vector<Selector> targets;
  Format format = Format::kPackedIntegers;
  std::optional<Arguments> weights;  // none: only inputs of attention were quantized, say, and weights are floats
  std::optional<ActivationSpec> activations;
};

class CompressedTensors : public QuantizedScheme {
 public:
  std::vector<Group> groups;
  std::vector<Selector> ignored;
  std::optional<KvCacheSpec> kv_cache;
  std::string format;

  bool Covers(const LinearModule& module) const override { return GroupOf(module) != nullptr; }
  bool HasSignedScales() const override { return true; }
  std::string Name() const override { return absl::StrCat("compressed-tensors, ", format); }
  std::optional<KvCacheSpec> KvCache() const override { return kv_cache; }
  std::optional<ActivationSpec> ActivationOf(const LinearModule& module) const override {
    const Group* group = GroupOf(module);
    return group == nullptr ? std::nullopt : group->activations;
  }
  std::string CodesOf(const LinearModule& module) const override {
    const Group* group = GroupOf(module);
    const bool is_packed = group != nullptr && group->format != Format::kIntegers && group->format != Format::kFloats &&
                           group->format != Format::kMxfp8;
    return is_packed ? "weight_packed" : "weight";
  }

  std::string EncodingOf(const LinearModule& module, DType scale) const override {
    const Group& group = *GroupOf(module);
    if (group.format == Format::kNvfp4) return "nvfp4";
    if (group.format == Format::kMxfp4) return "mxfp4";
    if (group.format == Format::kMxfp8) return kMxfp8;
    if (group.format == Format::kPackedIntegers) {
      const Arguments& w = *group.weights;
      const bool is_one = w.per == Granularity::kTensor;
      const std::string zero =
          w.is_symmetric ? "" : absl::StrCat(" zero=", is_one ? "i8" : DTypeName(ZeroType(w, module)));
      return absl::StrCat(PackedText(w, module, w.is_symmetric || is_one), " scale=", DTypeName(scale), zero);
    }
    return hf::EncodingOf(FormOf(*group.weights), scale);
  }

  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    const Group& group = *GroupOf(module);
    for (const char* part : {"input_scale", "input_global_scale"}) reader.IgnoreActivationScale(part);
    const bool has_input_zeros = !group.activations.has_value() || !group.activations->is_symmetric;
    IgnoreZeros("input_zero_point", reader, has_input_zeros);
    switch (group.format) {
      case Format::kNvfp4:
        return ReadNvfp4({.codes = "weight_packed", .outer = "weight_global_scale", .outer_divides = true}, module,
                         reader);
      case Format::kMxfp4:
        return ReadMxfp4("weight_packed", "weight_scale", module, reader);
      case Format::kMxfp8:
        return ReadMxfp8("weight", "weight_scale", module, reader);
      case Format::kPackedIntegers:
        return ReadPacked(*group.weights, module, reader);
      default:
        if (group.weights->is_symmetric) IgnoreZeros("weight_zero_point", reader);
        return ReadBytes(FormOf(*group.weights), module, reader);
    }
  }

 private:
  // A name or pattern counts before a class, whatever the order of the groups is (match_targets of the library).
  const Group* GroupOf(const LinearModule& module) const {
    const Group* group = TargetOf(module);
    return group == nullptr || !group->weights.has_value() ? nullptr : group;
  }
  const Group* TargetOf(const LinearModule& module) const {
    const auto names = [&](const Selector& selector) { return selector.Names(module); };
    const auto is_class = [&](const Selector& selector) { return selector.IsClassOf(module); };
    if (std::any_of(ignored.begin(), ignored.end(), [&](const Selector& s) { return names(s) || is_class(s); })) {
      return nullptr;
    }
    for (const Group& group : groups) {
      if (std::any_of(group.targets.begin(), group.targets.end(), names)) return &group;
    }
    for (const Group& group : groups) {
      if (std::any_of(group.targets.begin(), group.targets.end(), is_class)) return &group;
    }
    return nullptr;
  }

  static ByteForm FormOf(const Arguments& w) {
    return {.is_float = w.is_float,
            .zero = w.is_symmetric ? "" : "weight_zero_point",
            .per = w.per,
            .group = w.group,
            .rows = w.rows,
            .columns = w.columns,
            .order = "weight_g_idx",
            .needs_order = w.has_order};
  }

  static int64_t GroupsOf(const Arguments& w, const LinearModule& module) {
    return w.per == Granularity::kGroup ? (module.in + w.group - 1) / w.group : 1;
  }
  // What packed zero points are unpacked to.
  static DType ZeroType(const Arguments& w, const LinearModule& module) {
    const int64_t groups = GroupsOf(w, module);
    return w.bits > 4 || (groups > 1 && groups % 2 != 0) ? DType::kU8 : DType::kU4;
  }
  // The encoding, without its components' types.
  static std::string PackedText(const Arguments& w, const LinearModule& module, bool is_signed) {
    const std::string how = w.per == Granularity::kGroup    ? absl::StrCat("group=", w.group)
                            : w.per == Granularity::kTensor ? "per=tensor"
                                                            : "per=channel";
    return absl::StrCat(IntegerFormat(static_cast<int>(w.bits), is_signed, module.in).name, " ", how);
  }

  // How `count` codes lie along an axis of MODULE.PART. Up to 0.17 of the library words have 32 / bits whole codes, and
  // from 0.18 on codes follow each other from one word to the next, which is the same where bits divide 32, and as many
  // words for some small sizes: then bits are 0 that whole codes leave free, and not in all rows otherwise.
  struct Packing {
    bool across = false;
    int64_t words = 0;
    std::string why;  // the size, for errors: "in 128 / 10"
  };
  static Packing PackingOf(const std::string& part, size_t axis, const std::string& of, int64_t count, int64_t bits,
                           const PartReader& reader) {
    const int64_t of_word = 32 / bits;
    const Packing whole = {.words = (count + of_word - 1) / of_word, .why = absl::StrCat(of, " / ", of_word)};
    const Packing across = {
        .across = true, .words = (count * bits + 31) / 32, .why = absl::StrCat(of, " * ", bits, " / 32")};
    const Tensor* found = reader.Find(part);
    if (32 % bits == 0 || found == nullptr || found->dtype() != DType::kI32 || found->rank() != 2) return whole;
    if (whole.words != across.words) return found->shape()[axis] == across.words ? across : whole;
    const auto* begin = found->data<int32_t>();
    const bool has_more = std::any_of(begin, begin + found->size(), [&](int32_t word) {
      return static_cast<uint32_t>(word) >> (of_word * bits) != 0;
    });
    return has_more ? across : whole;
  }

  static EncodedParts ReadPacked(const Arguments& w, const LinearModule& module, PartReader& reader) {
    const DType types[] = {DType::kI32};
    const int bits = static_cast<int>(w.bits);
    const Packing packing = PackingOf("weight_packed", 1, absl::StrCat("in ", module.in), module.in, w.bits, reader);
    CheckShape(module, reader);
    Value* packed = reader.Part("weight_packed", types, {module.out, packing.words},
                                absl::StrCat(" = [out ", module.out, ", ", packing.why, "]"));
    EncodedParts parts;
    const ByteForm runs = FormOf(w);
    Value* scale = ReadRuns(runs, "weight_scale", false, module, reader);
    parts.order = OrderOf(runs, module, reader);
    // One zero point for all is not packed, but stored as it is, from -2^(bits - 1) on.
    const Tensor* zeros = w.is_symmetric ? nullptr : reader.Find("weight_zero_point");
    const bool has_plain_zeros =
        !w.is_symmetric && (w.per == Granularity::kTensor || (zeros != nullptr && zeros->dtype() == DType::kI8));
    const bool is_signed = w.is_symmetric || has_plain_zeros;
    Unpack codes = {.x = packed, .index = parts.order, .bits = w.bits, .axis = 1, .across = packing.across};
    codes.count = module.in;
    if (is_signed) codes.add = int64_t{1} << (bits - 1);
    StoreAs(IntegerFormat(bits, is_signed, module.in), &codes);
    parts.components = {reader.Add(codes, "codes"), scale};
    parts.as = absl::StrCat(PackedText(w, module, is_signed), " scale=", DTypeName(DTypeOf(scale)));
    if (w.is_symmetric) {
      IgnoreZeros("weight_zero_point", reader);
    } else {
      parts.components.push_back(has_plain_zeros ? ReadRuns(runs, "weight_zero_point", true, module, reader)
                                                 : ReadPackedZeros(w, module, reader));
      absl::StrAppend(&parts.as, " zero=", has_plain_zeros ? "i8" : DTypeName(ZeroType(w, module)));
    }
    return parts;
  }

  // Along the outputs.
  static Value* ReadPackedZeros(const Arguments& w, const LinearModule& module, PartReader& reader) {
    const int64_t groups = GroupsOf(w, module);
    const DType types[] = {DType::kI32};
    const Packing packing =
        PackingOf("weight_zero_point", 0, absl::StrCat("out ", module.out), module.out, w.bits, reader);
    Value* zeros = reader.Part("weight_zero_point", types, {packing.words, groups},
                               absl::StrCat(" = [", packing.why, ", groups ", groups, "]"));
    Unpack op = {.x = zeros, .bits = w.bits, .axis = 0, .across = packing.across, .count = module.out};
    op.to = ZeroType(w, module);
    zeros = reader.Add(op, "zero");
    return w.per == Granularity::kChannel ? reader.Reshaped(zeros, {module.out}) : zeros;
  }

  static void CheckShape(const LinearModule& module, PartReader& reader) {
    const Tensor* shape = reader.Find("weight_shape");
    if (shape == nullptr) return;
    const bool fits = IsInteger(shape->dtype()) && shape->ToInts() == std::vector<int64_t>{module.out, module.in};
    if (fits) return reader.Use("weight_shape");
    reader.Wrong("weight_shape", absl::StrCat(" is not [", module.out, ", ", module.in, "], as config.json asks for"));
  }
};

std::vector<Selector> ReadSelectors(ConfigReader& config, const std::string& key, PatternReader& patterns) {
  std::vector<Selector> selectors;
  for (const std::string& name : ReadNames(config, key)) {
    absl::string_view text = name;
    Selector selector = {.name = name, .pattern = std::nullopt};
    if (absl::ConsumePrefix(&text, "re:")) {
      selector.pattern = patterns.Parse(text, key, config);
      if (!selector.pattern.has_value()) continue;
    }
    selectors.push_back(std::move(selector));
  }
  return selectors;
}

// [128, 128] or "128x128".
void ReadBlock(const json* block, ConfigReader& config, Arguments* a) {
  std::vector<int64_t> sizes;
  if (block != nullptr && block->is_string()) {
    for (const absl::string_view part : absl::StrSplit(block->get_ref<const std::string&>(), 'x')) {
      int64_t size = 0;
      sizes.push_back(absl::SimpleAtoi(part, &size) ? size : 0);
    }
  } else if (block != nullptr && block->is_array()) {
    for (const json& size : *block) sizes.push_back(size.is_number_integer() ? size.get<int64_t>() : 0);
  }
  const bool fits = sizes.size() == 2 && std::min(sizes[0], sizes[1]) > 0 && std::max(sizes[0], sizes[1]) <= kMaxSize;
  if (!fits) config.Wrong("block_structure", "a list of the two sizes of a block");
  a->rows = fits ? sizes[0] : 1;
  a->columns = fits ? sizes[1] : 1;
}

// Whether groups may lie across columns. "weight" and "static": columns were chosen in an order, and lie as they did.
bool ReadOrder(ConfigReader& config) {
  const json* found = config.Find("actorder");
  if (found != nullptr && found->is_boolean()) return found->get<bool>();
  const std::string order = absl::AsciiStrToLower(config.Text("actorder", ""));
  if (order.empty()) return config.Flag("actorder_group", false);
  if (order == "group" || order == "dynamic") return true;
  if (order != "weight" && order != "static") {
    config.Refuse(absl::StrCat("actorder ", Quoted(order), " is not supported"));
  }
  return false;
}

Arguments ReadArguments(ConfigReader& outer, const json& object, const std::string& path) {
  InnerConfig config(outer, &object, path);
  Arguments a;
  a.bits = config->Int("num_bits", 8, 1, 64);
  const std::string type = absl::AsciiStrToLower(config->Text("type", "int"));
  a.is_float = type == "float";
  if (type != "int" && type != "float") config->Refuse(absl::StrCat("type ", Quoted(type), " is not int or float"));
  a.is_symmetric = config->Flag("symmetric", true);
  const json* dynamic = config->Find("dynamic");
  a.is_dynamic = dynamic != nullptr && *dynamic != false;  // true, or "local" for the inner scales
  a.group = config->Int("group_size", -1, -1, kMaxSize);
  const std::string strategy =
      absl::AsciiStrToLower(config->Text("strategy", a.group > 0                                ? "group"
                                                     : a.group < 0 && config->Has("group_size") ? "channel"
                                                                                                : "tensor"));
  constexpr std::pair<absl::string_view, Granularity> kStrategies[] = {
      {"tensor", Granularity::kTensor},  {"channel", Granularity::kChannel},    {"group", Granularity::kGroup},
      {"block", Granularity::kBlock},    {"tensor_group", Granularity::kGroup}, {"token", Granularity::kToken},
      {"attn_head", Granularity::kToken}};
  const auto known = std::find_if(std::begin(kStrategies), std::end(kStrategies),
                                  [&](const auto& row) { return row.first == strategy; });
  if (known == std::end(kStrategies)) {
    config->Refuse(absl::StrCat("strategy ", Quoted(strategy),
                                " is not supported; supported: tensor, channel, token, group, tensor_group, block"));
  } else {
    a.per = known->second;
  }
  a.is_nested = strategy == "tensor_group";
  if (a.per != Granularity::kGroup && a.group > 0 && config->Has("strategy")) {
    config->Contradicts(absl::StrCat("strategy ", strategy, " with group_size ", a.group));
  }
  if (a.per == Granularity::kGroup && a.group < 1) {
    config->Contradicts(absl::StrCat("strategy ", strategy, " with group_size ", a.group));
    a.group = 1;
  }
  const json* block = config->Find("block_structure");
  if (a.per == Granularity::kBlock) ReadBlock(block, *config, &a);
  a.has_order = ReadOrder(*config);
  a.has_exponents = config->Text("scale_dtype", "") == "torch.uint8";
  config->Ignore({"observer", "observer_kwargs", "scale_dtype", "zp_dtype"});
  return a;
}

void CheckWeights(const Group& group, const std::string& path, ConfigReader& config) {
  const Arguments& w = *group.weights;
  const auto refuse = [&](const std::string& what) { config.Refuse(absl::StrCat(path, ": ", what)); };
  if (w.is_dynamic) refuse("weights with dynamic scales");
  if (w.per == Granularity::kToken) refuse("weights with scales of tokens or heads");
  const bool is_four_bits = w.is_float && w.bits == 4 && w.is_symmetric && w.per == Granularity::kGroup;
  switch (group.format) {
    case Format::kPackedIntegers:
      if (w.is_float || w.bits < 2 || w.bits > 8 || w.per == Granularity::kBlock || w.is_nested) {
        refuse(absl::StrCat("pack-quantized weights of ", w.bits, w.is_float ? " bits in floats" : " bits",
                            ": supported are integers of 2 to 8 bits with strategy tensor, channel or group"));
      }
      break;
    case Format::kIntegers:
    case Format::kFloats:
      if (w.bits != 8 && (w.is_float || w.bits > 8)) refuse(absl::StrCat("weights of ", w.bits, " bits, expected 8"));
      if (w.is_float && !w.is_symmetric) refuse("floats with zero points");
      if (w.is_nested) refuse("strategy tensor_group of numbers of 8 bits");
      break;
    case Format::kNvfp4:
      if (!is_four_bits || w.group != 16) refuse("nvfp4 is of floats of 4 bits in groups of 16");
      break;
    case Format::kMxfp8:
      if (!w.is_float || w.bits != 8 || w.per != Granularity::kGroup || w.group != 32 || w.is_nested) {
        refuse("mxfp8 is of floats of 8 bits in groups of 32");
      }
      break;
    case Format::kMxfp4:
      if (!is_four_bits || w.group != 32) refuse("mxfp4 is of floats of 4 bits in groups of 32");
      break;
  }
}

std::optional<ActivationSpec> ActivationsOf(const Arguments& a) {
  ActivationSpec spec = {.per = a.per, .group = a.group, .is_dynamic = a.is_dynamic, .is_symmetric = a.is_symmetric};
  if (!a.is_float) {
    spec.format = absl::StrCat("int", a.bits);
    // Half of the range of codes, which is 127.5 for 8 bits (compressed_tensors, calculate_qparams).
    spec.limit = (std::ldexp(1.0, static_cast<int>(std::min<int64_t>(a.bits, 8))) - 1) / 2;
  } else if (a.bits != 4) {
    spec.format = "f8e4m3";
    if (a.has_exponents) spec.unsupported = "inputs in mxfp8 are not supported";
  } else if (a.is_nested && a.group == 16) {
    spec.format = "nvfp4";
    spec.limit = 6;
  } else if (!a.is_nested && a.per == Granularity::kGroup && a.group == 32) {
    spec.format = "mxfp4";
    // Exponents of scales grow where the fraction of the largest magnitude is 1.75 (its round_to_power_2).
    spec.limit = 7;
  } else {
    spec.format = "e2m1";
    spec.unsupported = "floats of 4 bits with scales of neither nvfp4 nor mxfp4 are not supported";
  }
  spec.scale_divides = a.is_nested;
  if (a.is_nested) spec.scale = "input_global_scale";
  if (!a.is_dynamic && !a.is_nested) spec.scale = "input_scale";
  if (!a.is_dynamic && !a.is_symmetric) spec.zero = "input_zero_point";
  return spec;
}

void ReadGroup(ConfigReader& config, const std::string& name, const json& object, PatternReader& patterns,
               CompressedTensors* scheme) {
  const std::string path = absl::StrCat("config_groups.", name);
  InnerConfig inner(config, &object, path);
  Group group;
  group.targets = ReadSelectors(*inner, "targets", patterns);
  const std::string format = inner->Text("format", scheme->format);
  const auto known =
      std::find_if(std::begin(kFormats), std::end(kFormats), [&](const auto& row) { return row.first == format; });
  const json *weights = inner->Find("weights"), *inputs = inner->Find("input_activations");
  if (const json* outputs = inner->Find("output_activations"); outputs != nullptr) {
    inner->Refuse("output_activations are not supported");
  }
  if (weights == nullptr) return scheme->groups.push_back(std::move(group));
  if (!weights->is_object()) return inner->Wrong("weights", "an object");
  if (known == std::end(kFormats)) {
    const auto name_of = [](std::string* out, const auto& row) { absl::StrAppend(out, row.first); };
    return inner->Refuse(absl::StrCat("format ", Quoted(format),
                                      " is not supported; supported: ", absl::StrJoin(kFormats, ", ", name_of)));
  }
  group.format = known->second;
  group.weights = ReadArguments(*inner, *weights, "weights");
  if (group.format == Format::kIntegers && group.weights->is_float) group.format = Format::kFloats;
  CheckWeights(group, "weights", *inner);
  if (inputs != nullptr && inputs->is_object()) {
    group.activations = ActivationsOf(ReadArguments(*inner, *inputs, "input_activations"));
  }
  scheme->groups.push_back(std::move(group));
}

// Rotations of weights are a part of what is stored; those of inputs, queries and caches would have to be computed.
void CheckTransforms(ConfigReader& config) {
  const json* transform = config.Find("transform_config");
  if (transform == nullptr || transform->empty()) return;
  const json groups = transform->is_object() ? transform->value("config_groups", json()) : json();
  if (!groups.is_object()) return config.Wrong("transform_config", "an object of config_groups");
  for (const auto& [name, group] : groups.items()) {
    const json apply = group.is_object() ? group.value("apply", json()) : json();
    if (!apply.is_array()) return config.Wrong("transform_config", "an object of groups, each with a list \"apply\"");
    for (const json& one : apply) {
      const json location = one.is_object() ? one.value("location", json()) : json();
      if (location == "weight_input" || location == "weight_output") continue;
      return config.Refuse(absl::StrCat("transform_config: rotations at ", location.dump(),
                                        " are not supported; supported: weight_input, weight_output"));
    }
  }
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadCompressedTensors(ConfigReader& config) {
  auto scheme = std::make_unique<CompressedTensors>();
  scheme->format = config.Text("format", "dense");
  PatternReader patterns;
  scheme->ignored = ReadSelectors(config, "ignore", patterns);
  const std::string status = config.Text("quantization_status", "compressed");
  if (status != "compressed" && status != "frozen") {
    config.Refuse(absl::StrCat("quantization_status ", Quoted(status), " is not supported; save the model compressed"));
  }
  const json* sparsity = config.Find("sparsity_config");
  const bool is_dense = sparsity == nullptr || (sparsity->is_object() &&
                                                (sparsity->empty() || sparsity->value("format", json("")) == "dense"));
  if (!is_dense) config.Refuse("sparsity_config: sparse weights are not supported");
  CheckTransforms(config);
  const json* cache = config.Find("kv_cache_scheme");
  if (cache != nullptr && !cache->is_null() && !cache->is_object()) config.Wrong("kv_cache_scheme", "an object");
  if (cache != nullptr && cache->is_object()) {
    const Arguments a = ReadArguments(config, *cache, "kv_cache_scheme");
    scheme->kv_cache = {.format = a.is_float ? "f8e4m3" : absl::StrCat("int", a.bits),
                        .per = a.per,
                        .is_dynamic = a.is_dynamic,
                        .is_symmetric = a.is_symmetric};
  }
  config.Ignore({"quant_method", "global_compression_ratio", "version", "provider", "run_compressed", "dequantize",
                 "use_optimized_inference"});
  const json* groups = config.Find("config_groups");
  if (groups == nullptr && scheme->kv_cache.has_value()) return scheme;
  if (groups == nullptr || !groups->is_object()) {
    config.Wrong("config_groups", "an object of groups of modules");
    return scheme;
  }
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) {
      config.Wrong("config_groups", "an object of groups, each an object");
      continue;
    }
    ReadGroup(config, name, group, patterns, scheme.get());
  }
  return scheme;
}

}  // namespace llmc::hf
