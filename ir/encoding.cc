#include "ir/encoding.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "ir/graph.h"
#include "ir/superblocks.h"

namespace llmc {
namespace {

constexpr size_t kMaxEncodingText = 200;
constexpr int64_t kMaxGroup = int64_t{1} << 31;

// FP4 of the OCP Microscaling specification: a sign, two bits of exponent, one of mantissa.
constexpr float kE2M1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
// FP4 of bitsandbytes (its functional.create_fp4_map): a sign, and 12 times these numbers 0, 1/16, 8, 12, 4, 6, 2, 3.
constexpr float kBnbFp4[16] = {0.0f,  0.005208333333f,  0.66666667f,  1.0f,  0.33333333f,  0.5f,  0.16666667f,  0.25f,
                               -0.0f, -0.005208333333f, -0.66666667f, -1.0f, -0.33333333f, -0.5f, -0.16666667f, -0.25f};
// NormalFloat4 (QLoRA, appendix E): quantiles of the normal distribution.
constexpr float kNf4[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// Those whose elements are stored one by one.
constexpr EncodingFormat kElementFormats[] = {
    {.name = "int8", .summary = "integers from -128 to 127", .codes = DType::kI8},
    {.name = "uint8", .summary = "integers from 0 to 255", .codes = DType::kU8},
    {.name = "int4", .summary = "integers from -8 to 7", .codes = DType::kI4},
    {.name = "uint4", .summary = "integers from 0 to 15", .codes = DType::kU4},
    {.name = "int2", .summary = "integers from -2 to 1, packed", .codes = DType::kI8, .packed_bits = 2},
    {.name = "uint2", .summary = "integers from 0 to 3, packed", .codes = DType::kU8, .packed_bits = 2},
    {.name = "int3", .summary = "integers from -4 to 3, packed", .codes = DType::kI8, .packed_bits = 3},
    {.name = "uint3", .summary = "integers from 0 to 7, packed", .codes = DType::kU8, .packed_bits = 3},
    {.name = "int5", .summary = "integers from -16 to 15, packed", .codes = DType::kI8, .packed_bits = 5},
    {.name = "uint5", .summary = "integers from 0 to 31, packed", .codes = DType::kU8, .packed_bits = 5},
    {.name = "int6", .summary = "integers from -32 to 31, packed", .codes = DType::kI8, .packed_bits = 6},
    {.name = "uint6", .summary = "integers from 0 to 63, packed", .codes = DType::kU8, .packed_bits = 6},
    {.name = "f8e4m3", .summary = "floats of 8 bits, 3 of them mantissa", .codes = DType::kF8E4M3},
    {.name = "f8e5m2", .summary = "floats of 8 bits, 2 of them mantissa", .codes = DType::kF8E5M2},
    {.name = "nf4", .summary = "quantiles of the normal distribution", .codes = DType::kU4, .codebook = kNf4},
    {.name = "bnb_fp4", .summary = "floats of 4 bits of bitsandbytes", .codes = DType::kU4, .codebook = kBnbFp4},
    {.name = "mxfp4",
     .summary = "e2m1, 32 of them with a power of two (OCP MX)",
     .codes = DType::kU4,
     .codebook = kE2M1,
     .group = 32,
     .scale = DType::kU8,
     .scale_is_exponent = true},
    {.name = "mxfp8",
     .summary = "f8e4m3, 32 of them with a power of two (OCP MX)",
     .codes = DType::kF8E4M3,
     .group = 32,
     .scale = DType::kU8,
     .scale_is_exponent = true},
    {.name = "nvfp4",
     .summary = "e2m1, 16 of them with a scale in f8e4m3, which one f32 scales",
     .codes = DType::kU4,
     .codebook = kE2M1,
     .group = 16,
     .scale = DType::kF8E4M3,
     .outer_scale = true},
};

constexpr std::pair<absl::string_view, Granularity> kPer[] = {
    {"tensor", Granularity::kTensor}, {"channel", Granularity::kChannel}, {"token", Granularity::kToken}};

template <class... Parts>
absl::Status BadEncoding(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("encoding: ", parts...));
}

std::string PerName(Granularity per) {
  for (const auto& [name, value] : kPer) {
    if (value == per) return std::string(name);
  }
  return "";
}

absl::StatusOr<Granularity> ParsePer(absl::string_view text) {
  for (const auto& [name, value] : kPer) {
    if (name == text) return value;
  }
  return BadEncoding("'", text, "' is not tensor, channel or token");
}

absl::StatusOr<int64_t> ParseCount(absl::string_view text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > kMaxGroup) {
    return BadEncoding("'", text, "' is not a number of elements from 1 to ", kMaxGroup);
  }
  return value;
}

const EncodingFormat* FindFormat(absl::string_view name) {
  for (const EncodingFormat& format : EncodingFormats()) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

// What a text says, one word after the other.
class EncodingParser {
 public:
  absl::StatusOr<Encoding> Run(absl::string_view text) {
    if (text.size() > kMaxEncodingText) return BadEncoding("more than ", kMaxEncodingText, " characters");
    const std::vector<absl::string_view> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
    e_.format = words.empty() ? nullptr : FindFormat(words[0]);
    if (e_.format == nullptr) {
      const auto name = [](std::string* out, const EncodingFormat& format) { absl::StrAppend(out, format.name); };
      return BadEncoding("unknown format '", words.empty() ? "" : words[0], "'; the formats are ",
                         absl::StrJoin(EncodingFormats(), ", ", name));
    }
    for (size_t i = 1; i < words.size(); ++i) {
      RETURN_IF_ERROR(ParseWord(words[i]));
    }
    return Finish();
  }

 private:
  absl::Status ParseWord(absl::string_view word) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(word, absl::MaxSplits('=', 1));
    const auto& [key, value] = parts;
    for (absl::string_view before : seen_) {
      if (before == key) return BadEncoding("'", key, "' stands twice");
    }
    seen_.push_back(key);
    if (key == "per" || key == "group" || key == "block") return ParseGranularity(key, value);
    if (key == "along") {
      if (value != "-1" && value != "-2") return BadEncoding("'", value, "' is not -1 or -2");
      e_.k_is_last = value == "-1";
      return absl::OkStatus();
    }
    if (key == "outer") {
      if (!e_.format->outer_scale || (value != "matrix" && value != "row")) {
        return BadEncoding("'", word, "' is for outer scales, of a matrix or a row");
      }
      e_.outer = value == "matrix" ? OuterScale::kOfMatrices : OuterScale::kOfRows;
      return absl::OkStatus();
    }
    if (key == "scale") return ParsePart(value, &e_.scale);
    if (key == "zero") return ParsePart(value, &e_.zero);
    return BadEncoding("unknown word '", word, "'");
  }

  absl::Status ParseGranularity(absl::string_view key, absl::string_view value) {
    if (per_.has_value()) return BadEncoding("'", key, "' beside another one of per, group and block");
    if (key == "per") {
      ASSIGN_OR_RETURN(per_, ParsePer(value));
      return absl::OkStatus();
    }
    if (key == "group") {
      per_ = Granularity::kGroup;
      ASSIGN_OR_RETURN(e_.group, ParseCount(value));
      return absl::OkStatus();
    }
    per_ = Granularity::kBlock;
    const std::pair<absl::string_view, absl::string_view> sizes = absl::StrSplit(value, absl::MaxSplits('x', 1));
    ASSIGN_OR_RETURN(e_.rows, ParseCount(sizes.first));
    ASSIGN_OR_RETURN(e_.columns, ParseCount(sizes.second));
    return absl::OkStatus();
  }

  // "f16" or "f16/tensor"
  absl::Status ParsePart(absl::string_view text, std::optional<Encoding::Part>* part) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('/', 1));
    part->emplace();
    ASSIGN_OR_RETURN((*part)->dtype, ParseDType(parts.first));
    auto& own = part == &e_.scale ? scale_per_ : zero_per_;
    if (absl::StrContains(text, '/')) {
      ASSIGN_OR_RETURN(own, ParsePer(parts.second));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Encoding> Finish() {
    const EncodingFormat& format = *e_.format;
    if (format.superblock > 0) {
      if (!seen_.empty()) return BadEncoding("'", seen_[0], "' is said by ", format.name, " itself");
      return e_;
    }
    if (format.group > 0) {
      if (per_.has_value() || e_.scale.has_value()) {
        return BadEncoding("scales are said by ", format.name,
                           " itself: ", *format.scale == DType::kU8 ? "e8m0" : "f8e4m3", " of groups of ",
                           format.group);
      }
      per_ = Granularity::kGroup;
      e_.group = format.group;
      e_.scale.emplace().dtype = *format.scale;
    }
    if (!per_.has_value())
      return BadEncoding(format.name, " needs per=tensor, per=channel, per=token, group=N or block=RxC");
    if (!e_.scale.has_value()) return BadEncoding(format.name, " needs scale=f32, f16, bf16 or f64");
    e_.scale->per = scale_per_.value_or(*per_);
    if (e_.zero.has_value()) e_.zero->per = zero_per_.value_or(*per_);
    return e_;
  }

  Encoding e_;
  std::vector<absl::string_view> seen_;
  std::optional<Granularity> per_, scale_per_, zero_per_;
};

// What most elements have a scale or zero point of their own.
Granularity FinestOf(const Encoding& e) {
  if (e.zero.has_value() && e.zero->per != Granularity::kTensor && e.scale->per != e.zero->per) {
    const bool scale_is_finer = e.scale->per == Granularity::kGroup || e.scale->per == Granularity::kBlock;
    if (!scale_is_finer) return e.zero->per;
  }
  return e.scale->per;
}

bool IsPartType(DType dtype) { return IsFloat(dtype) && DTypeBits(dtype) >= 16; }
bool IsZeroType(DType dtype) { return IsPartType(dtype) || (IsInteger(dtype) && dtype != DType::kI64); }

// Whether the parts of an encoding go with each other.
absl::Status CheckParts(const Encoding& e) {
  if (e.format->superblock > 0) return absl::OkStatus();
  if (e.format->group == 0 && !IsPartType(e.scale->dtype)) {
    return BadEncoding("a scale is f32, f16, bf16 or f64, not ", DTypeName(e.scale->dtype));
  }
  if (e.zero.has_value() && !e.format->is_integer()) return BadEncoding(e.format->name, " has no zero points");
  if (e.zero.has_value() && !IsZeroType(e.zero->dtype)) {
    return BadEncoding("a zero point is an integer of at most 32 bits or a float of at least 16, not ",
                       DTypeName(e.zero->dtype));
  }
  const Granularity finest = FinestOf(e);
  for (const std::optional<Encoding::Part>& part : {e.scale, e.zero}) {
    if (!part.has_value() || part->per == finest || part->per == Granularity::kTensor) continue;
    const bool coarser = part->per == Granularity::kChannel && finest == Granularity::kGroup;
    if (!coarser) return BadEncoding("parts per ", PerName(part->per), " and for other runs of elements");
  }
  const bool has_k = finest == Granularity::kGroup || finest == Granularity::kChannel;
  if (!e.k_is_last && !has_k) return BadEncoding("'along' is for channels and groups");
  if (!e.k_is_last && e.outer == OuterScale::kOfRows) return BadEncoding("outer scales of rows lie along k");
  return absl::OkStatus();
}

std::string TextOf(const Encoding& e) {
  std::string text(e.format->name);
  if (e.format->superblock > 0) return text;
  const Granularity finest = FinestOf(e);
  const auto part = [&](absl::string_view key, const Encoding::Part& p) {
    absl::StrAppend(&text, " ", key, "=", DTypeName(p.dtype), p.per == finest ? "" : "/",
                    p.per == finest ? "" : PerName(p.per));
  };
  if (e.format->group == 0) {
    if (finest == Granularity::kGroup) absl::StrAppend(&text, " group=", e.group);
    if (finest == Granularity::kBlock) absl::StrAppend(&text, " block=", e.rows, "x", e.columns);
    if (!PerName(finest).empty()) absl::StrAppend(&text, " per=", PerName(finest));
  }
  if (!e.k_is_last) absl::StrAppend(&text, " along=-2");
  if (e.outer != OuterScale::kOfTensor) {
    absl::StrAppend(&text, " outer=", e.outer == OuterScale::kOfMatrices ? "matrix" : "row");
  }
  if (e.format->group == 0) part("scale", *e.scale);
  if (e.zero.has_value()) part("zero", *e.zero);
  return text;
}

Dim RoundedUp(const Dim& size, int64_t run) { return run == 1 ? size : Dim::FloorDiv(size + Dim(run - 1), Dim(run)); }

// One number for each element of this shape.
Dims PartShape(const Encoding& e, Granularity per, const Dims& shape) {
  Dims out = shape;
  const size_t rank = shape.size();
  switch (per) {
    case Granularity::kTensor:
      return {};
    case Granularity::kChannel:
      return {e.k_is_last ? shape[rank - 2] : shape[rank - 1]};
    case Granularity::kToken:
      out.pop_back();
      return out;
    case Granularity::kGroup: {
      Dim& k = out[e.k_is_last ? rank - 1 : rank - 2];
      k = RoundedUp(k, e.group);
      return out;
    }
    case Granularity::kBlock:
      out[rank - 2] = RoundedUp(shape[rank - 2], e.rows);
      out[rank - 1] = RoundedUp(shape[rank - 1], e.columns);
      return out;
  }
  return out;
}

Size Aligned(const Size& bytes) {
  return Size::FloorDiv(bytes + Size(kComponentAlignment - 1), kComponentAlignment) * Size(kComponentAlignment);
}

}  // namespace

absl::Span<const EncodingFormat> EncodingFormats() {
  static const auto* const all = [] {
    auto* formats = new std::vector<EncodingFormat>(std::begin(kElementFormats), std::end(kElementFormats));
    const absl::Span<const EncodingFormat> superblocks = SuperblockFormats();
    formats->insert(formats->end(), superblocks.begin(), superblocks.end());
    return formats;
  }();
  return *all;
}

size_t Encoding::components() const {
  return 1 + (scale.has_value() ? 1 : 0) + (zero.has_value() ? 1 : 0) + (format->outer_scale ? 1 : 0);
}

absl::string_view Encoding::ComponentName(size_t i) const {
  if (i == 0) return "codes";
  if (i == 1) return "scale";
  return i == 2 && zero.has_value() ? "zero" : "outer_scale";
}

TensorType Encoding::ComponentType(size_t i, const Dims& shape) const {
  if (i == 0) {
    TensorType codes{format->codes, shape};
    if (format->run() > 0 && !codes.shape.empty()) {
      Dim& last = codes.shape.back();
      last = Dim::FloorDiv(last, Dim(format->run())) * Dim(format->run_bytes());
    }
    return codes;
  }
  if (i == 1) return {scale->dtype, PartShape(*this, scale->per, shape)};
  if (i == 2 && zero.has_value()) return {zero->dtype, PartShape(*this, zero->per, shape)};
  const size_t inner = outer == OuterScale::kOfRows ? 1 : 2;  // axes that share one
  if (outer == OuterScale::kOfTensor || shape.size() < inner) return {DType::kF32, {}};
  return {DType::kF32, Dims(shape.begin(), shape.end() - inner)};
}

bool Encoding::IsConstantAlongK() const {
  const auto is_constant = [](const std::optional<Part>& part) {
    return !part.has_value() || part->per == Granularity::kTensor || part->per == Granularity::kChannel;
  };
  return format->superblock == 0 && is_constant(scale) && is_constant(zero);
}

absl::StatusOr<const Encoding*> InternEncoding(const Encoding& encoding) {
  RETURN_IF_ERROR(CheckParts(encoding));
  static absl::Mutex mutex(absl::kConstInit);
  static auto* const all ABSL_GUARDED_BY(mutex) = new absl::flat_hash_map<std::string, std::unique_ptr<Encoding>>();
  std::string text = TextOf(encoding);
  absl::MutexLock lock(&mutex);
  std::unique_ptr<Encoding>& known = (*all)[text];
  if (known == nullptr) {
    known = std::make_unique<Encoding>(encoding);
    known->text = std::move(text);
  }
  return known.get();
}

absl::StatusOr<const Encoding*> ParseEncoding(absl::string_view text) {
  ASSIGN_OR_RETURN(const Encoding parsed, EncodingParser().Run(text));
  return InternEncoding(parsed);
}

const EncodingFormat& IntegerFormat(int bits, bool is_signed, int64_t columns) {
  const EncodingFormat* best = nullptr;
  for (const EncodingFormat& format : EncodingFormats()) {
    const bool fits = format.is_integer() && format.is_signed() == is_signed && format.bits() >= bits &&
                      (format.run() == 0 || columns % format.run() == 0);
    if (fits && (best == nullptr || format.bits() < best->bits())) best = &format;
  }
  return *best;
}

absl::StatusOr<const Encoding*> IntegerEncoding(DType codes, Encoding::Part scale, std::optional<Encoding::Part> zero,
                                                int64_t group, bool k_is_last) {
  for (const EncodingFormat& format : EncodingFormats()) {
    if (!format.is_integer() || format.packed_bits > 0 || format.codes != codes) continue;
    Encoding e = {.format = &format, .scale = scale, .zero = zero, .group = group};
    const Granularity finest = FinestOf(e);
    e.k_is_last = k_is_last || (finest != Granularity::kGroup && finest != Granularity::kChannel);
    return InternEncoding(e);
  }
  return BadEncoding("no format has codes of ", DTypeName(codes));
}

absl::Status CheckEncoding(const Encoding& encoding, const Dims& shape) {
  const EncodingFormat& format = *encoding.format;
  const Granularity finest = format.superblock > 0 ? Granularity::kToken : FinestOf(encoding);
  const bool is_along_last = finest == Granularity::kToken || (finest == Granularity::kGroup && encoding.k_is_last);
  const size_t rank = finest == Granularity::kTensor ? (format.run() > 0 ? 1 : 0) : is_along_last ? 1 : 2;
  if (shape.size() < rank) return BadEncoding(encoding.text, " is not for a tensor of ", shape.size(), " axes");
  if (format.run() > 0 && shape.back().is_constant() && shape.back().value() % format.run() != 0) {
    return BadEncoding(shape.back().value(), " elements are no whole ",
                       format.superblock > 0 ? "superblocks" : "bytes of codes", ", which hold ", format.run());
  }
  return absl::OkStatus();
}

Size ComponentOffset(const Encoding& encoding, const Dims& shape, size_t component) {
  Size offset = 0;
  for (size_t i = 0; i < component; ++i) offset = Aligned(offset + encoding.ComponentType(i, shape).Bytes());
  return offset;
}

Size EncodedBytes(const Encoding& encoding, const Dims& shape) {
  const size_t last = encoding.components() - 1;
  return ComponentOffset(encoding, shape, last) + encoding.ComponentType(last, shape).Bytes();
}

int64_t EncodedBytes(const Encoding& encoding, const Shape& shape) {
  return EncodedBytes(encoding, Dims(shape.begin(), shape.end())).number();
}

}  // namespace llmc
