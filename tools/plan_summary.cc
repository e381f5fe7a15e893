#include "tools/plan_summary.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/summary.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

double Ratio(const plan::Program& program) {
  return program.lower_bound_bytes() == 0
             ? 1.0
             : static_cast<double>(program.arena_bytes()) / static_cast<double>(program.lower_bound_bytes());
}

}  // namespace

Json PlanJson(const Plan& plan, const Model& model) {
  const plan::Manifest& manifest = plan.manifest();
  Json json = SummaryJson(model);
  json["compiler_version"] = manifest.compiler_version();
  json["target"] = manifest.target();
  json["flags"] = std::vector<std::string>(manifest.flags().begin(), manifest.flags().end());
  json["files"] = Json::array();
  for (const plan::File& file : manifest.files()) {
    json["files"].push_back({{"path", file.path()},
                             {"bytes", file.bytes()},
                             {"sha256", absl::BytesToHexString(file.sha256())},
                             {"external", file.external()}});
  }
  if (manifest.has_language_model()) {
    const plan::LanguageModel& lm = manifest.language_model();
    json["language_model"] = {{"vocab_size", lm.vocab_size()},
                              {"page_size", lm.page_size()},
                              {"max_context", lm.max_context()},
                              {"num_layers", lm.num_layers()}};
  }
  json["memory"] = Json::array();
  for (const plan::Program& program : manifest.programs()) {
    json["memory"].push_back({{"step", program.entry_point()},
                              {"buffers", program.buffers_size()},
                              {"arena_bytes", program.arena_bytes()},
                              {"lower_bound_bytes", program.lower_bound_bytes()},
                              {"unplanned", program.unplanned()}});
  }
  return json;
}

std::string PlanText(const Plan& plan, const Model& model) {
  const plan::Manifest& manifest = plan.manifest();
  std::string out = SummaryText(model, absl::StrCat("plan of ", manifest.model_name(), ", for ", manifest.target(),
                                                    ", by llmc ", manifest.compiler_version()));
  for (const plan::File& file : manifest.files()) {
    absl::StrAppend(&out, "  from     ", file.path(), ", ", HumanBytes(static_cast<int64_t>(file.bytes())),
                    file.external() ? ", needed to run" : "", "\n");
  }
  if (manifest.has_language_model()) {
    const plan::LanguageModel& lm = manifest.language_model();
    absl::StrAppend(&out, "  language model: vocabulary ", lm.vocab_size(), ", context ", lm.max_context(), ", ",
                    lm.num_layers(), " layers, pages of ", lm.page_size(), " tokens\n");
  }
  for (const plan::Program& program : manifest.programs()) {
    if (!program.unplanned().empty()) {
      absl::StrAppend(&out, "  memory of ", program.entry_point(), ": not planned: ", program.unplanned(), "\n");
      continue;
    }
    absl::StrAppendFormat(&out, "  memory of %s: %d buffers, peak %s, %.3f of the lower bound\n", program.entry_point(),
                          program.buffers_size(), HumanBytes(static_cast<int64_t>(program.arena_bytes())),
                          Ratio(program));
  }
  return out;
}

}  // namespace llmc
