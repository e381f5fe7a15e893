// FP8 with scales of blocks, as DeepSeek-V3 has it (arXiv:2412.19437, section 3.3) and transformers' "fp8":
// MODULE.weight f8e4m3, weight_scale_inv, which multiplies, for rectangles of weight_block_size; without that one
// weight_scale for all. And of FBGEMM: a scale for each output.
#include "absl/strings/str_cat.h"
#include "files/path_check.h"
#include "frontend/huggingface/quantized/forms.h"
#include "frontend/huggingface/quantized/name_pattern.h"
#include "frontend/huggingface/quantized/part_reader.h"
#include "frontend/huggingface/quantized/scheme.h"

namespace llmc::hf {
namespace {

class Fp8 : public QuantizedScheme {
 public:
  std::string name = "FP8";
  ByteForm form;
  std::vector<std::string> excluded;
  std::optional<ActivationSpec> activations;
  std::optional<KvCacheSpec> kv_cache;

  bool Covers(const LinearModule& module) const override { return !IsListed(module.name, excluded); }
  std::string CodesOf(const LinearModule&) const override { return "weight"; }
  std::string Name() const override { return name; }
  std::optional<ActivationSpec> ActivationOf(const LinearModule&) const override { return activations; }
  std::optional<KvCacheSpec> KvCache() const override { return kv_cache; }
  std::string EncodingOf(const LinearModule&, DType scale) const override {
    return hf::EncodingOf(form, form.per == Granularity::kBlock ? DType::kF32 : scale);
  }
  EncodedParts Read(const LinearModule& module, PartReader& reader) const override {
    reader.IgnoreActivationScale("input_scale");
    reader.IgnoreActivationScale("input_scale_ub", "scales of inputs are those of their largest magnitudes, unbounded");
    ByteForm own = form;
    // Some files of one scale for all call it so, too.
    if (own.per == Granularity::kTensor && reader.Has("weight_scale_inv")) own.scale = "weight_scale_inv";
    return ReadBytes(own, module, reader);
  }
};

// What AutoRound says again in its own words; modules with other settings are plain floats.
void IgnoreAutoRound(ConfigReader& config) {
  if (config.Int("bits", 8, 1, 64) != 8) config.Refuse("bits: fp8 is of 8 bits");
  config.Ignore({"autoround_version",
                 "bits",
                 "group_size",
                 "sym",
                 "data_type",
                 "act_bits",
                 "act_data_type",
                 "act_dynamic",
                 "act_group_size",
                 "act_sym",
                 "amp",
                 "block_name_to_quantize",
                 "enable_quanted_input",
                 "extra_config",
                 "iters",
                 "nsamples",
                 "seqlen",
                 "lr",
                 "batch_size",
                 "low_gpu_mem_usage",
                 "packing_format",
                 "gradient_accumulate_steps",
                 "enable_minmax_tuning",
                 "scale_dtype"});
}

}  // namespace

std::unique_ptr<QuantizedScheme> ReadFp8(ConfigReader& config) {
  auto scheme = std::make_unique<Fp8>();
  const std::string format = config.Text("fmt", "e4m3");
  if (format != "e4m3") config.Refuse(absl::StrCat("fmt ", Quoted(format), " is not supported; supported: e4m3"));
  if (const auto block = config.Ints("weight_block_size")) {
    const bool fits =
        block->size() == 2 && std::min((*block)[0], (*block)[1]) > 0 && std::max((*block)[0], (*block)[1]) <= kMaxSize;
    if (!fits) config.Wrong("weight_block_size", "a list of the two sizes of a block");
    scheme->form.per = Granularity::kBlock;
    scheme->form.rows = fits ? (*block)[0] : 1;
    scheme->form.columns = fits ? (*block)[1] : 1;
    scheme->form.scale = "weight_scale_inv";
    scheme->name = absl::StrCat("FP8, blocks of ", scheme->form.rows, "x", scheme->form.columns);
  }
  constexpr absl::string_view kSchemes[] = {"dynamic", "static"};
  const bool is_dynamic = config.Choice("activation_scheme", "dynamic", kSchemes) == 0;
  // Static scales, and those of weights without blocks, are of the whole tensor.
  const bool has_blocks = scheme->form.per == Granularity::kBlock;
  scheme->activations = {.format = "f8e4m3",
                         .per = has_blocks && is_dynamic ? Granularity::kGroup : Granularity::kTensor,
                         .group = has_blocks && is_dynamic ? scheme->form.columns : 0,
                         .is_dynamic = is_dynamic,
                         .inverse = has_blocks && is_dynamic,  // as vLLM's scaled_quantize
                         .scale = is_dynamic ? "" : "input_scale"};
  const std::string scales = config.Text("scale_fmt", "");
  if (!scales.empty() && scales != "ue8m0" && scales != "float") {
    config.Refuse(absl::StrCat("scale_fmt ", Quoted(scales), " is not supported; supported: float, ue8m0"));
  }
  scheme->excluded = ReadNames(config, "modules_to_not_convert");
  for (const std::string& more : ReadNames(config, "ignored_layers")) scheme->excluded.push_back(more);
  // Of Quark, whose "export" says how it has packed what is packed.
  if (config.Has("kv_cache_scheme")) {
    const bool is_cache_dynamic = config.Choice("kv_cache_scheme", "static", kSchemes) == 0;
    scheme->kv_cache = {.format = "f8e4m3", .is_dynamic = is_cache_dynamic};
  }
  config.Ignore({"quant_method", "dequantize", "export"});
  if (config.Has("autoround_version")) IgnoreAutoRound(config);
  return scheme;
}

std::unique_ptr<QuantizedScheme> ReadFbgemmFp8(ConfigReader& config) {
  auto scheme = std::make_unique<Fp8>();
  scheme->name = "FBGEMM FP8";
  scheme->form.per = Granularity::kChannel;
  scheme->activations = {.format = "f8e4m3", .per = Granularity::kToken};
  scheme->excluded = ReadNames(config, "modules_to_not_convert");
  config.Ignore({"quant_method", "activation_scale_ub"});
  return scheme;
}

}  // namespace llmc::hf
