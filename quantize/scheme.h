// What weights are quantized to, and how: "--scheme".
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ir/encoding.h"

namespace llmc {

enum class QuantizeMethod : uint8_t { kRoundToNearest, kGptq, kAwq, kSmoothQuant };

// What is done with activations when the model runs, in front of the product with the weight.
struct ActivationScheme {
  bool is_float = false;
  Granularity per = Granularity::kToken;  // or kTensor, kGroup
  int64_t group = 0;
  bool is_dynamic = true;  // scales of the data; else they are in the checkpoint
  bool has_outer = false;  // one scale of those scales, which is in the checkpoint (nvfp4)
};

// Which programs' folders hold weights of a scheme.
enum class Container : uint8_t { kCompressedTensors, kBitsAndBytes };

struct Scheme {
  std::string text;    // as it is written in full: "int4:g128:sym:rtn"
  std::string format;  // a row of EncodingFormats()
  Granularity per = Granularity::kChannel;
  int64_t group = 0;  // of kGroup
  bool symmetric = true;
  bool restricted = false;  // QuantizeOptions
  QuantizeMethod method = QuantizeMethod::kRoundToNearest;
  bool act_order = false;     // of GPTQ
  bool nests_scales = false;  // NestedScales
  std::optional<ActivationScheme> activations;
  Container container = Container::kCompressedTensors;

  bool NeedsCalibration() const;
  int64_t bits() const;  // of a code
  // The encoding of a weight whose scales are of this type, where the format does not fix that.
  absl::StatusOr<const Encoding*> EncodingFor(DType scale) const;
};

// FORMAT[:OPTION…] or the name of a preset; the error lists both.
absl::StatusOr<Scheme> ParseScheme(absl::string_view text);
// For help: formats, presets and options, a line each.
std::string SchemeHelp();

// Modules whose names match get the scheme, or none ("none"): the first rule that matches decides.
struct SchemeRule {
  std::string pattern;
  std::optional<Scheme> scheme;
};
// SCHEME, or PATTERN=SCHEME,…: patterns are of MatchesModule.
absl::StatusOr<std::vector<SchemeRule>> ParseSchemeRules(absl::string_view text);

// Whether the name of a module, or what follows one of its dots, is one of the alternatives "a|b" in full, where *
// stands for any characters: "q_proj" and "layers.0.*" match "model.layers.0.self_attn.q_proj".
bool MatchesModule(absl::string_view pattern, absl::string_view module);

}  // namespace llmc
