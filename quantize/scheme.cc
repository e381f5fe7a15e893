#include "quantize/scheme.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace llmc {
namespace {

constexpr int64_t kMostGroup = 1 << 16;
constexpr int64_t kFp8Block = 128;  // arXiv:2412.19437, section 3.3.2

struct FormatRow {
  absl::string_view name, format, summary;
  Granularity per;
  int64_t group;
  bool takes_group;  // else scales are where the format or its container has them
};
constexpr FormatRow kFormatRows[] = {
    {"int8", "int8", "integers of 8 bits, a scale for each channel", Granularity::kChannel, 0, true},
    {"int4", "int4", "integers of 4 bits, a scale for each 128", Granularity::kGroup, 128, true},
    {"fp8", "f8e4m3", "floats of 8 bits (e4m3), a scale for each channel; activations, too, for each token",
     Granularity::kChannel, 0, false},
    {"nf4", "nf4", "quantiles of the normal distribution, a scale for each 64 (bitsandbytes)", Granularity::kGroup, 64,
     false},
    {"mxfp4", "mxfp4", "floats of 4 bits (e2m1), a power of two for each 32 (OCP MX)", Granularity::kGroup, 32, false},
    {"nvfp4", "nvfp4", "floats of 4 bits (e2m1), a scale in e4m3 for each 16, and one for all", Granularity::kGroup, 16,
     false},
};

// What stands for other text.
struct Preset {
  absl::string_view name, text, summary;
};
constexpr Preset kPresets[] = {
    {"w8a8", "int8:channel:dynamic", "int8 weights and activations"},
    {"smoothquant", "int8:channel:dynamic:smooth", "the same, outliers moved from activations to weights"},
    {"llm.int8", "int8:channel:bitsandbytes", "int8 weights as bitsandbytes has them; it keeps outlier columns apart"},
    {"w4a16", "int4:g128", "int4 weights"},
    {"gptq", "int4:g128:gptq", "int4 weights by GPTQ"},
    {"awq", "int4:g128:asym:awq", "int4 weights by AWQ"},
    {"fp8-static", "fp8:static", "one scale for each weight and each input"},
    {"fp8-block", "fp8:block", "scales for 128x128 weights and 128 activations"},
};

template <class... Parts>
absl::Status BadScheme(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("scheme ", parts...));
}

// What an option of a scheme changes; an error says why it does not go with what stands before.
struct OptionRow {
  absl::string_view name, summary;
  absl::Status (*apply)(Scheme* scheme);
};

absl::Status SetMethod(QuantizeMethod method, Scheme* scheme) {
  scheme->method = method;
  return absl::OkStatus();
}

absl::Status RequireFormat(absl::string_view format, absl::string_view option, const Scheme& scheme) {
  if (scheme.format == format) return absl::OkStatus();
  return BadScheme("option '", option, "' is for ", format == "f8e4m3" ? "fp8" : format, ", not ", scheme.format);
}

absl::Status SetIntegers(absl::string_view option, const Scheme& scheme) {
  if (scheme.format == "int8" || scheme.format == "int4") return absl::OkStatus();
  return BadScheme("option '", option, "' is for int8 and int4, not ", scheme.format);
}

constexpr OptionRow kOptionRows[] = {
    {"channel", "a scale for each channel",
     [](Scheme* s) {
       RETURN_IF_ERROR(SetIntegers("channel", *s));
       s->per = Granularity::kChannel;
       s->group = 0;
       return absl::OkStatus();
     }},
    {"sym", "no zero points",
     [](Scheme* s) {
       RETURN_IF_ERROR(SetIntegers("sym", *s));
       s->symmetric = true;
       return absl::OkStatus();
     }},
    {"asym", "zero points",
     [](Scheme* s) {
       RETURN_IF_ERROR(SetIntegers("asym", *s));
       s->symmetric = false;
       return absl::OkStatus();
     }},
    {"rtn", "round to nearest", [](Scheme* s) { return SetMethod(QuantizeMethod::kRoundToNearest, s); }},
    {"gptq", "rounding errors are made up for by the weights that are not rounded yet (arXiv:2210.17323)",
     [](Scheme* s) { return SetMethod(QuantizeMethod::kGptq, s); }},
    {"actorder", "of gptq: columns with the largest activations first",
     [](Scheme* s) {
       s->act_order = true;
       return s->method == QuantizeMethod::kGptq ? absl::OkStatus() : BadScheme("option 'actorder' is behind 'gptq'");
     }},
    {"awq", "channels with large activations are scaled up before they are rounded (arXiv:2306.00978)",
     [](Scheme* s) { return SetMethod(QuantizeMethod::kAwq, s); }},
    {"smooth", "outliers of activations are moved to weights (arXiv:2211.10438)",
     [](Scheme* s) { return SetMethod(QuantizeMethod::kSmoothQuant, s); }},
    {"weight-only", "activations are not quantized",
     [](Scheme* s) {
       s->activations.reset();
       return absl::OkStatus();
     }},
    {"dynamic",
     "activations are quantized, with a scale for each token (of mxfp4 for each 32) that is found as they come",
     [](Scheme* s) {
       if (s->format == "mxfp4") {
         s->activations = ActivationScheme{.is_float = true, .per = Granularity::kGroup, .group = s->group};
         return absl::OkStatus();
       }
       if (s->format != "f8e4m3" && s->format != "int8") {
         return BadScheme("option 'dynamic' is for int8, fp8 and mxfp4, not ", s->format,
                          s->format == "nvfp4" ? ", which has 'local'" : "");
       }
       s->activations = ActivationScheme{.is_float = s->format != "int8"};
       return absl::OkStatus();
     }},
    {"local", "of nvfp4: activations, too: scales for each 16 as they come, and one for all of the calibration text",
     [](Scheme* s) {
       RETURN_IF_ERROR(RequireFormat("nvfp4", "local", *s));
       s->activations =
           ActivationScheme{.is_float = true, .per = Granularity::kGroup, .group = s->group, .has_outer = true};
       return absl::OkStatus();
     }},
    {"static", "of fp8: one scale for each weight, and one for its input, found on the calibration text",
     [](Scheme* s) {
       RETURN_IF_ERROR(RequireFormat("f8e4m3", "static", *s));
       s->per = Granularity::kTensor;
       s->activations = ActivationScheme{.is_float = true, .per = Granularity::kTensor, .is_dynamic = false};
       return absl::OkStatus();
     }},
    {"block", "of fp8: scales for 128x128 weights, and for 128 activations of a token (arXiv:2412.19437)",
     [](Scheme* s) {
       RETURN_IF_ERROR(RequireFormat("f8e4m3", "block", *s));
       s->per = Granularity::kBlock;
       s->activations = ActivationScheme{.is_float = true, .per = Granularity::kGroup, .group = kFp8Block};
       return absl::OkStatus();
     }},
    {"double", "of nf4: scales are quantized, too, 8 bits for each (arXiv:2305.14314)",
     [](Scheme* s) {
       RETURN_IF_ERROR(RequireFormat("nf4", "double", *s));
       s->nests_scales = true;
       return absl::OkStatus();
     }},
    {"bitsandbytes", "of int8: as bitsandbytes stores it",
     [](Scheme* s) {
       RETURN_IF_ERROR(RequireFormat("int8", "bitsandbytes", *s));
       s->restricted = true;
       s->container = Container::kBitsAndBytes;
       return absl::OkStatus();
     }},
};

absl::StatusOr<Scheme> BeginScheme(absl::string_view name) {
  for (const FormatRow& row : kFormatRows) {
    if (row.name != name) continue;
    Scheme scheme{.text = "", .format = std::string(row.format), .per = row.per, .group = row.group};
    if (row.name == "fp8") scheme.activations = ActivationScheme{.is_float = true};
    if (row.name == "nf4") scheme.container = Container::kBitsAndBytes;
    return scheme;
  }
  const auto names = [](const auto& rows) {
    return absl::StrJoin(rows, ", ", [](std::string* out, const auto& row) { absl::StrAppend(out, row.name); });
  };
  return BadScheme("'", name, "' is unknown; there are ", names(kFormatRows), ", and ", names(kPresets));
}

absl::Status ApplyOption(absl::string_view option, Scheme* scheme) {
  absl::string_view digits = option;
  if (int64_t group = 0; absl::ConsumePrefix(&digits, "g") && absl::SimpleAtoi(digits, &group)) {
    RETURN_IF_ERROR(SetIntegers(option, *scheme));
    if (group < 2 || group > kMostGroup) return BadScheme("'", option, "': a group has from 2 to ", kMostGroup);
    scheme->per = Granularity::kGroup;
    scheme->group = group;
    return absl::OkStatus();
  }
  for (const OptionRow& row : kOptionRows) {
    if (row.name == option) return row.apply(scheme);
  }
  return BadScheme(
      "option '", option, "' is unknown; there are gN, ",
      absl::StrJoin(kOptionRows, ", ", [](std::string* out, const auto& row) { absl::StrAppend(out, row.name); }));
}

absl::Status CheckScheme(const Scheme& s) {
  if (s.method == QuantizeMethod::kSmoothQuant && (!s.activations.has_value() || s.activations->is_float)) {
    return BadScheme(s.text, ": 'smooth' is for int8 activations; write int8:channel:dynamic:smooth");
  }
  if (s.container == Container::kBitsAndBytes && s.format == "int8" &&
      (s.per != Granularity::kChannel || !s.symmetric || s.activations.has_value())) {
    return BadScheme(s.text, ": bitsandbytes has int8 with a scale for each channel, and no more options");
  }
  if (s.nests_scales && s.method != QuantizeMethod::kRoundToNearest) {
    return BadScheme(s.text, ": 'double' is for weights that are rounded to nearest");
  }
  if (s.activations.has_value() && !s.symmetric) return BadScheme(s.text, ": products of int8 have no zero points");
  return absl::OkStatus();
}

bool Glob(absl::string_view pattern, absl::string_view text) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return pattern == text;
  if (text.substr(0, star) != pattern.substr(0, star) || text.size() < star) return false;
  for (size_t skipped = star; skipped <= text.size(); ++skipped) {
    if (Glob(pattern.substr(star + 1), text.substr(skipped))) return true;
  }
  return false;
}

}  // namespace

bool Scheme::NeedsCalibration() const {
  return method != QuantizeMethod::kRoundToNearest ||
         (activations.has_value() && (!activations->is_dynamic || activations->has_outer));
}

int64_t Scheme::bits() const { return format == "int8" || format == "f8e4m3" ? 8 : 4; }

absl::StatusOr<const Encoding*> Scheme::EncodingFor(DType scale) const {
  if (format == "mxfp4" || format == "nvfp4") return ParseEncoding(format);
  const std::string of = per == Granularity::kGroup     ? absl::StrCat("group=", group)
                         : per == Granularity::kBlock   ? absl::StrCat("block=", kFp8Block, "x", kFp8Block)
                         : per == Granularity::kChannel ? "per=channel"
                                                        : "per=tensor";
  const absl::string_view type = container == Container::kBitsAndBytes ? "f32" : DTypeName(scale);
  const absl::string_view zero = symmetric ? "" : format == "int4" ? " zero=i4" : " zero=i8";
  return ParseEncoding(absl::StrCat(format, " ", of, " scale=", type, zero));
}

absl::StatusOr<Scheme> ParseScheme(absl::string_view text) {
  std::vector<std::string> words = absl::StrSplit(text, ':');
  for (const Preset& preset : kPresets) {
    if (preset.name != words[0]) continue;
    const std::vector<std::string> full = absl::StrSplit(preset.text, ':');
    words.erase(words.begin());
    words.insert(words.begin(), full.begin(), full.end());
    break;
  }
  ASSIGN_OR_RETURN(Scheme scheme, BeginScheme(words[0]));
  scheme.text = absl::StrJoin(words, ":");
  for (size_t i = 1; i < words.size(); ++i) RETURN_IF_ERROR(ApplyOption(words[i], &scheme));
  RETURN_IF_ERROR(CheckScheme(scheme));
  return scheme;
}

std::string SchemeHelp() {
  std::string text = "Formats:\n";
  const auto add = [&](absl::string_view name, absl::string_view summary) {
    absl::StrAppend(&text, "  ", name, std::string(name.size() < 14 ? 14 - name.size() : 1, ' '), summary, "\n");
  };
  for (const FormatRow& row : kFormatRows) add(row.name, row.summary);
  absl::StrAppend(&text, "Names for a format with options:\n");
  for (const Preset& row : kPresets) add(row.name, absl::StrCat(row.summary, " (", row.text, ")"));
  absl::StrAppend(&text, "Options, behind a colon each:\n");
  add("gN", "of int8 and int4: a scale for N weights of a row");
  for (const OptionRow& row : kOptionRows) add(row.name, row.summary);
  return text;
}

absl::StatusOr<std::vector<SchemeRule>> ParseSchemeRules(absl::string_view text) {
  std::vector<SchemeRule> rules;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    SchemeRule rule{.pattern = "*"};
    const size_t equals = part.find('=');
    if (equals != absl::string_view::npos) {
      rule.pattern = std::string(part.substr(0, equals));
      part = part.substr(equals + 1);
    }
    if (rule.pattern.empty()) return BadScheme("'", text, "': a pattern is empty");
    if (part != "none") {
      ASSIGN_OR_RETURN(rule.scheme, ParseScheme(part));
    }
    const bool is_reached = std::none_of(rules.begin(), rules.end(), [](const auto& r) { return r.pattern == "*"; });
    if (!is_reached) return BadScheme("'", text, "': a rule behind one for all modules is never reached");
    rules.push_back(std::move(rule));
  }
  return rules;
}

bool MatchesModule(absl::string_view pattern, absl::string_view module) {
  for (const absl::string_view alternative : absl::StrSplit(pattern, '|')) {
    for (absl::string_view rest = module;;) {
      if (Glob(alternative, rest)) return true;
      const size_t dot = rest.find('.');
      if (dot == absl::string_view::npos) break;
      rest.remove_prefix(dot + 1);
    }
  }
  return false;
}

}  // namespace llmc
