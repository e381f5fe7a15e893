#include "tools/examine.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "ir/op.h"
#include "ir/ops.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/rules/missed_patterns.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;
// As the finding's kind, and what pagination wants where a model has not the form of a decoder.
constexpr absl::string_view kPagination = "pagination", kDecoder = "a decoder";

constexpr absl::string_view kQuantizedProduct = "quantized product";

// What is recognized, as ops call the patterns that they stand for, and the rule that notes what is left.
struct Row {
  absl::string_view what, left;
};
constexpr Row kRaised[] = {{"attention", kLeftAttention},
                           {"rotary embedding", kLeftRotary},
                           {"norm", kLeftNorm},
                           {"gelu", kLeftGelu},
                           {kQuantizedProduct, kLeftQuantized}};

class Examiner {
 public:
  explicit Examiner(Model* model) : model_(model), collector_(&ledger_) {}

  absl::StatusOr<Examination> Run(PipelineOptions options, bool is_whole) {
    const bool was_paged = !model_->states.empty();
    options.pagination = is_whole ? Pagination::kWhereProven : Pagination::kNever;
    options.after = [this](const PassRun& run) { After(run.number, run.pass, *run.model); };
    RETURN_IF_ERROR(RunPipeline(model_, options, &ledger_));
    if (gates_.of > 0) out_.recognized.push_back(gates_);
    out_.findings = collector_.Take();
    if (!is_whole) {
      out_.cache.kind = CacheReport::Kind::kUnknown;
    } else if (was_paged) {
      out_.cache.kind = CacheReport::Kind::kPaged;
    } else if (ledger_.CountFired(kPaginate) > 0) {
      out_.cache.kind = CacheReport::Kind::kPaging;
    } else if (ledger_.CountRefused(kPaginate) > 0) {
      ReadRefusal();
    }
    return std::move(out_);
  }

 private:
  void After(int number, absl::string_view pass, const Model& model) {
    collector_.After(number, pass, model);
    if (pass == "raise") Raised(model);
    if (pass == "fuse") CountGates(model);
  }

  void Raised(const Model& model) {
    std::map<absl::string_view, int64_t> patterns;
    for (const auto& step : model.steps) {
      for (const auto& node : step->block.nodes) {
        const bool is_quantized = IsProduct(node.get()) && HasEncodedFactor(*node);
        ++patterns[is_quantized ? kQuantizedProduct : node->op->info.pattern];
      }
    }
    for (const Row& row : kRaised) {
      Recognized recognized{.what = std::string(row.what), .found = patterns[row.what]};
      recognized.of = recognized.found + ledger_.CountRefused(row.left);
      if (recognized.of > 0) out_.recognized.push_back(recognized);
    }
    for (const auto& step : model.steps) {
      for (const auto& node : step->block.nodes) Look(*node);
    }
  }

  void Look(const Node& node) {
    if (Is<Attention>(&node)) {
      const auto op = View<Attention>(node);
      ++out_.attention;
      out_.causal += op.causal && op.mask == nullptr ? 1 : 0;
      out_.masked += op.mask != nullptr ? 1 : 0;
    }
    if (!node.op->info.Has(kIsOftenPart)) return;
    Primitive& primitive = out_.primitives[std::string(node.op->info.name)];
    ++primitive.count;
    if (primitive.places.size() < Primitive::kMaxPlaces) primitive.places.push_back(LedgerPlaceOf(node));
  }

  // A gate of silu is one op with its product only after fuse. What is left of them is a silu with a product.
  void CountGates(const Model& model) {
    gates_ = {.what = "swiglu"};
    for (const auto& step : model.steps) {
      for (const auto& node : step->block.nodes) {
        const bool is_whole = Is<SiluMul>(node.get());
        const bool is_left =
            Is<Silu>(node.get()) && std::any_of(node->results[0]->users.begin(), node->results[0]->users.end(),
                                                [](const Node* user) { return Is<Mul>(user); });
        gates_.found += is_whole ? 1 : 0;
        gates_.of += is_whole || is_left ? 1 : 0;
      }
    }
  }

  // An encoder for classification has logits too, and that it is no decoder is no finding.
  void ReadRefusal() {
    const auto finding = std::find_if(out_.findings.begin(), out_.findings.end(),
                                      [](const Finding& f) { return f.kind == kPagination && !f.places.empty(); });
    if (finding == out_.findings.end()) return;
    if (ledger_.CountRefused(kLeftAttention) > 0) {
      finding->remedy = "an attention that is not recognized mixes tokens: see to that first";
    }
    const LedgerPlace& node = finding->places[0].node;
    const std::string why = absl::StrCat("found ", finding->actual, ", expected ", finding->expected);
    if (finding->expected == kDecoder) {
      out_.cache.why = why;
      out_.findings.erase(finding);
      return;
    }
    out_.cache = {
        CacheReport::Kind::kTensors,
        absl::StrCat(node.op, " ", node.value, node.loc.empty() ? "" : absl::StrCat(" (", node.loc, ")"), ": ", why)};
  }

  Model* model_;
  Ledger ledger_;
  FindingCollector collector_;
  Recognized gates_;
  Examination out_;
};

std::string CacheText(const CacheReport& cache) {
  switch (cache.kind) {
    case CacheReport::Kind::kNone:
      return absl::StrCat("none: the model is no decoder", cache.why.empty() ? "" : ": ", cache.why);
    case CacheReport::Kind::kPaged:
      return "paged";
    case CacheReport::Kind::kPaging:
      return "can be paged: every op but attention is proven to treat each token for itself";
    case CacheReport::Kind::kTensors:
      return "stays as tensors that go in and out";
    case CacheReport::Kind::kUnknown:
      return "not known, as long as a part of the model cannot be read";
  }
  return "";
}

}  // namespace

absl::string_view CacheKindName(CacheReport::Kind kind) {
  switch (kind) {
    case CacheReport::Kind::kNone:
      return "none";
    case CacheReport::Kind::kPaged:
      return "paged";
    case CacheReport::Kind::kPaging:
      return "can be paged";
    case CacheReport::Kind::kTensors:
      return "tensors";
    case CacheReport::Kind::kUnknown:
      return "unknown";
  }
  return "";
}

absl::StatusOr<Examination> Examine(Model* model, PipelineOptions options, bool is_whole) {
  return Examiner(model).Run(std::move(options), is_whole);
}

std::string ExaminationText(const Examination& examination, size_t max_places) {
  const bool is_paged = examination.cache.kind == CacheReport::Kind::kPaging;
  std::string text;
  if (!examination.recognized.empty()) text += "recognized\n";
  for (const Recognized& row : examination.recognized) {
    absl::StrAppendFormat(&text, "  %-18s %d of %d\n", row.what, row.found, row.of);
  }
  if (examination.attention > 0) {
    const int64_t free = examination.attention - examination.causal - examination.masked;
    std::vector<std::string> kinds;
    if (examination.causal > 0) kinds.push_back(absl::StrCat(examination.causal, " proven causal"));
    if (examination.masked > 0) {
      kinds.push_back(absl::StrCat(examination.masked, " explicit", is_paged ? " (none with a paged cache)" : ""));
    }
    if (free > 0) kinds.push_back(absl::StrCat(free, free == 1 ? " sees everything" : " see everything"));
    absl::StrAppendFormat(&text, "  %-18s %s\n", "masks", absl::StrJoin(kinds, ", "));
  }
  if (!examination.primitives.empty()) {
    absl::StrAppend(&text, "left as they were written: ",
                    absl::StrJoin(examination.primitives, ", ",
                                  [](std::string* out, const auto& item) {
                                    absl::StrAppend(out, item.first, " x", item.second.count);
                                  }),
                    "\n");
  }
  std::vector<Finding> pagination, others;
  for (const Finding& finding : examination.findings) {
    if (finding.kind == "mask" && is_paged) continue;  // a paged cache does without
    (finding.kind == kPagination ? pagination : others).push_back(finding);
  }
  return absl::StrCat(text, FindingsText(others, max_places), "cache: ", Shown(CacheText(examination.cache)), "\n",
                      FindingsText(pagination, max_places));
}

Json ExaminationJson(const Examination& examination) {
  Json recognized = Json::object();
  for (const Recognized& row : examination.recognized) recognized[row.what] = {{"found", row.found}, {"of", row.of}};
  Json primitives = Json::object();
  for (const auto& [op, primitive] : examination.primitives) {
    Json list = Json::array();
    for (const LedgerPlace& place : primitive.places) list.push_back({{"value", place.value}, {"loc", place.loc}});
    primitives[op] = {{"count", primitive.count}, {"places", list}};
  }
  return {{"recognized", recognized},
          {"masks",
           {{"causal", examination.causal},
            {"explicit", examination.masked},
            {"none", examination.attention - examination.causal - examination.masked}}},
          {"primitives", primitives},
          {"findings", FindingsJson(examination.findings)},
          {"cache", {{"kind", std::string(CacheKindName(examination.cache.kind))}, {"why", examination.cache.why}}}};
}

}  // namespace llmc
