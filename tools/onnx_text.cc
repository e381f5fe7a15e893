#include "tools/onnx_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/gpu_form.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

// Of a list in text; the JSON report has all.
constexpr size_t kShown = 8, kShownFindings = 3, kAll = SIZE_MAX;

int64_t CountNodes(const OnnxReport& report) {
  int64_t nodes = 0;
  for (const auto& [op, count] : report.nodes) nodes += count;
  return nodes;
}
size_t CountUnsupported(const OnnxReport& report) {
  size_t places = 0;
  for (const OnnxUnsupported& item : report.unsupported) places += item.places.size();
  return places;
}

std::string Line(absl::string_view name, absl::string_view text) { return absl::StrFormat("  %-10s %s\n", name, text); }

std::string Opsets(const OnnxReport& report) {
  return absl::StrJoin(report.domains, ", ", [](std::string* out, const auto& item) {
    absl::StrAppend(out, item.first.empty() ? "ai.onnx" : item.first, " ", item.second);
  });
}

std::string Values(absl::string_view title, const std::vector<OnnxDeclared>& values, size_t limit) {
  std::string text;
  for (size_t i = 0; i < values.size() && i < limit; ++i) {
    text += Line(i == 0 ? title : "", Shown(absl::StrCat(values[i].name, ": ", values[i].type)));
  }
  if (values.size() > limit) text += Line("", absl::StrCat("… ", values.size() - limit, " more (--all)"));
  return text;
}

// "wrong: …", one line for each.
std::string Listed(absl::string_view title, const std::vector<std::string>& items, size_t limit) {
  std::string text;
  for (size_t i = 0; i < items.size() && i < limit; ++i) absl::StrAppend(&text, title, ": ", items[i], "\n");
  if (items.size() > limit) absl::StrAppend(&text, title, ": … ", items.size() - limit, " more (--all)\n");
  return text;
}

// Operators in order of their names, the reasons of each together.
std::vector<OnnxUnsupported> Sorted(const OnnxReport& report) {
  std::vector<OnnxUnsupported> list = report.unsupported;
  std::stable_sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.op < b.op; });
  return list;
}

Json Declared(const std::vector<OnnxDeclared>& values) {
  Json list = Json::array();
  for (const OnnxDeclared& value : values) list.push_back({{"name", value.name}, {"type", value.type}});
  return list;
}

}  // namespace

absl::Status OnnxCheck::Verdict() const {
  if (!report.wrong.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": wrong in ", report.wrong.size(), report.wrong.size() == 1 ? " place" : " places"));
  }
  if (const size_t places = CountUnsupported(report); places > 0) {
    return absl::UnimplementedError(absl::StrCat(path, ": ", places, places == 1 ? " place is" : " places are",
                                                 " not supported, in ", CountNodes(report), " nodes"));
  }
  if (!examination.ok()) return examination.status();
  return files.generation.status();
}

std::string OnnxCheckText(const OnnxCheck& check, bool all) {
  const OnnxReport& report = check.report;
  const size_t limit = all ? kAll : kShown;
  std::string text = absl::StrCat(check.path, "\n");
  text += Line("exporter", report.exporter.name);
  if (!report.exporter.marks.empty()) text += Line("", Shown(absl::StrJoin(report.exporter.marks, "; ")));
  text += Line("producer", report.producer.empty() ? "not named" : Shown(report.producer));
  text += Line("format", absl::StrCat("IR version ", report.ir_version, ", opset ", Shown(Opsets(report)), ", ",
                                      CountNodes(report), " nodes of ", report.nodes.size(), " operators"));
  text += Values("inputs", report.inputs, limit);
  text += Values("outputs", report.outputs, limit);
  std::string remedy;
  for (const OnnxUnsupported& item : Sorted(report)) {
    if (remedy != item.remedy && !remedy.empty()) absl::StrAppend(&text, "  remedy: ", remedy, "\n");
    remedy = item.remedy;
    absl::StrAppend(&text, "not supported: ", Shown(item.op), " x", item.places.size(), ": ", Shown(item.reason),
                    "\n  at ", Shown(SomePlaces(item, limit), kAll), "\n");
  }
  if (!remedy.empty()) absl::StrAppend(&text, "  remedy: ", remedy, "\n");
  text += Listed("wrong", report.wrong, limit);
  text += Listed("warning", report.warnings, limit);
  if (check.examination.ok()) {
    if (!check.IsWhole()) text += "of what could be read:\n";
    text += ExaminationText(*check.examination, all ? kAll : kShownFindings);
  } else if (check.IsWhole()) {
    absl::StrAppend(&text, "the passes fail: ", std::string(check.examination.status().message()), "\n");
  }
  text += LanguageFilesText(check.files, "");
  if (check.IsWhole() && check.examination.ok()) text += GpuLine(check.gpu);
  const absl::Status verdict = check.Verdict();
  absl::StrAppend(
      &text, verdict.ok() ? "every node is supported: the model can be compiled\n" : "the model cannot be compiled\n");
  return text;
}

Json OnnxCheckJson(const OnnxCheck& check) {
  const OnnxReport& report = check.report;
  Json unsupported = Json::array();
  for (const OnnxUnsupported& item : Sorted(report)) {
    unsupported.push_back({{"op", item.op},
                           {"count", item.places.size()},
                           {"reason", item.reason},
                           {"remedy", item.remedy},
                           {"nodes", item.places}});
  }
  Json opsets = Json::object();
  for (const auto& [domain, version] : report.domains) opsets[domain.empty() ? "ai.onnx" : domain] = version;
  Json json = {
      {"ok", check.Verdict().ok()},
      {"exporter", {{"id", report.exporter.id}, {"name", report.exporter.name}, {"marks", report.exporter.marks}}},
      {"producer", {{"name", report.producer_name}, {"version", report.producer_version}}},
      {"ir_version", report.ir_version},
      {"opset", report.opset},
      {"opsets", opsets},
      {"inputs", Declared(report.inputs)},
      {"outputs", Declared(report.outputs)},
      {"nodes", Json(report.nodes)},
      {"unsupported", unsupported},
      {"wrong", report.wrong},
      {"warnings", report.warnings}};
  json.update(LanguageFilesJson(check.files));
  if (check.examination.ok()) {
    json.update(ExaminationJson(*check.examination));
    if (check.IsWhole()) {
      json["gpu"] = check.gpu.ok();
      json["gpu_reasons"] = GpuReasonsJson(check.gpu);
    }
  } else if (check.IsWhole()) {
    json["passes"] = std::string(check.examination.status().message());
  }
  return json;
}

}  // namespace llmc
