#include "tools/plan_summary.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/plan/step_programs.h"
#include "runtime/plan/target_code.h"
#include "tools/summary.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

double Ratio(const plan::Program& program) {
  return program.lower_bound_bytes() == 0
             ? 1.0
             : static_cast<double>(program.arena_bytes()) / static_cast<double>(program.lower_bound_bytes());
}

Json BoundsJson(const plan::Program& program) {
  Json json = Json::object();
  for (const plan::DimBound& bound : program.bounds()) json[bound.name()] = bound.max();
  return json;
}

int64_t SampleBound(const plan::Program& program) {
  int64_t most = 0;
  for (const plan::DimBound& bound : program.bounds()) most = std::max(most, bound.max());
  return most;
}

bool HasRandomWeights(const plan::Manifest& manifest) {
  return std::any_of(manifest.weights().begin(), manifest.weights().end(),
                     [](const plan::Weight& weight) { return weight.has_random(); });
}

struct ListedProgram {
  const plan::Program* plan = nullptr;
  std::vector<std::string> targets;  // that run it
};

// Of the steps, each once, with all its targets.
std::vector<ListedProgram> ProgramsOf(const plan::Manifest& manifest) {
  std::vector<ListedProgram> programs;
  for (const plan::Program& program : manifest.programs()) {
    if (manifest.targets().empty()) programs.push_back({.plan = &program, .targets = {}});
  }
  for (int target = 0; target < manifest.targets_size(); ++target) {
    for (const plan::Program* program : TargetCode(manifest, target).programs()) {
      auto listed = std::find_if(programs.begin(), programs.end(), [&](const auto& p) { return p.plan == program; });
      if (listed == programs.end()) listed = programs.insert(listed, {.plan = program, .targets = {}});
      listed->targets.push_back(manifest.targets(target).target());
    }
  }
  return programs;
}

// What tells it from the other programs of its step.
std::string ProgramName(const ListedProgram& listed, const plan::Manifest& manifest) {
  const plan::Program& program = *listed.plan;
  if (manifest.targets().empty()) return program.entry_point();
  std::string name = program.decode() ? absl::StrCat(program.entry_point(), ", decode") : program.entry_point();
  for (const plan::DimBound& bound : program.bounds()) {
    const bool narrower = std::any_of(manifest.dims().begin(), manifest.dims().end(), [&](const plan::DimBound& dim) {
      return dim.name() == bound.name() && bound.max() < dim.max();
    });
    if (narrower) absl::StrAppend(&name, ", ", bound.name(), " <= ", bound.max());
  }
  if (manifest.targets_size() > 1) absl::StrAppend(&name, ", for ", absl::StrJoin(listed.targets, " and "));
  return name;
}

std::string LanguageModelText(const plan::LanguageModel& lm) {
  const std::string context =
      lm.max_context() == 0 ? "of any length" : absl::StrCat("of ", lm.max_context(), " tokens");
  if (lm.pools().empty()) return absl::StrCat("context ", context, ", cache through inputs and outputs");
  const int64_t page_size = lm.pools(0).page_size();
  std::string text = absl::StrCat("vocabulary ", lm.vocab_size(), ", context ", context, ", ", lm.num_layers(),
                                  " layers, pages of ", page_size, " tokens");
  for (const plan::LanguageModel::Pool& pool : lm.pools()) {
    if (pool.window() > 0) absl::StrAppend(&text, ", a window of ", pool.window());
    if (pool.page_size() != page_size) absl::StrAppend(&text, " in pages of ", pool.page_size());
  }
  return text;
}

}  // namespace

std::vector<std::string> TargetsOf(const plan::Manifest& manifest) {
  std::vector<std::string> targets;
  for (const plan::TargetPrograms& target : manifest.targets()) targets.push_back(target.target());
  return targets;
}

Json PlanJson(const Plan& plan, const Model& model) {
  const plan::Manifest& manifest = plan.manifest();
  Json json = SummaryJson(model);
  json["compiler_version"] = manifest.compiler_version();
  json["targets"] = TargetsOf(manifest);
  json["flags"] = std::vector<std::string>(manifest.flags().begin(), manifest.flags().end());
  json["random_weights"] = HasRandomWeights(manifest);
  json["files"] = Json::array();
  for (const plan::File& file : manifest.files()) {
    Json entry = {{"path", file.path()}, {"bytes", file.bytes()}, {"external", file.external()}};
    entry[file.external() ? "pieces_sha256" : "sha256"] =
        absl::BytesToHexString(file.external() ? file.pieces_sha256() : file.sha256());
    json["files"].push_back(entry);
  }
  if (manifest.has_language_model()) {
    const plan::LanguageModel& lm = manifest.language_model();
    json["language_model"] = {{"vocab_size", lm.vocab_size()},
                              {"max_context", lm.max_context()},
                              {"num_layers", lm.num_layers()},
                              {"pools", Json::array()}};
    for (const plan::LanguageModel::Pool& pool : lm.pools()) {
      json["language_model"]["pools"].push_back(
          {{"pages", pool.dim()}, {"window", pool.window()}, {"page_size", pool.page_size()}});
    }
  }
  json["memory"] = Json::array();
  for (const ListedProgram& listed : ProgramsOf(manifest)) {
    const plan::Program& program = *listed.plan;
    json["memory"].push_back({{"step", program.entry_point()},
                              {"targets", listed.targets},
                              {"buffers", program.buffers_size()},
                              {"arena_bytes", program.arena_bytes()},
                              {"lower_bound_bytes", program.lower_bound_bytes()},
                              {"bounds", BoundsJson(program)},
                              {"sample", program.sample()},
                              {"unplanned", program.unplanned()}});
  }
  if (manifest.has_tuned()) {
    json["tuned"] = {{"gpu", manifest.tuned().gpu()},
                     {"cublaslt", manifest.tuned().library()},
                     {"products", manifest.tuned().timed()},
                     {"kept", manifest.tuned().products_size()}};
  }
  return json;
}

std::string PlanText(const Plan& plan, const Model& model) {
  const plan::Manifest& manifest = plan.manifest();
  const std::string targets = manifest.targets().empty() ? "host" : absl::StrJoin(TargetsOf(manifest), ",");
  std::string out = SummaryText(model, absl::StrCat("plan of ", manifest.model_name(), ", for ", targets, ", by llmc ",
                                                    manifest.compiler_version()));
  for (const plan::File& file : manifest.files()) {
    absl::StrAppend(&out, "  from     ", file.path(), ", ", HumanBytes(static_cast<int64_t>(file.bytes())),
                    file.external() ? ", needed to run" : "", "\n");
  }
  if (HasRandomWeights(manifest)) absl::StrAppend(&out, "  weights are random numbers, drawn at load\n");
  if (manifest.has_language_model()) {
    const plan::LanguageModel& lm = manifest.language_model();
    absl::StrAppend(&out, "  language model: ", LanguageModelText(lm), "\n");
  }
  if (manifest.has_tuned()) {
    const plan::TunedProducts& tuned = manifest.tuned();
    absl::StrAppend(&out, "  products timed on ", tuned.gpu(), " with cuBLASLt ", tuned.library(), ": ",
                    tuned.products_size(), " of ", tuned.timed(), " use another algorithm than its first\n");
  }
  for (const ListedProgram& listed : ProgramsOf(manifest)) {
    const plan::Program& program = *listed.plan;
    if (!program.unplanned().empty()) {
      absl::StrAppend(&out, "  memory of ", program.entry_point(), ": not planned: ", program.unplanned(), "\n");
      continue;
    }
    absl::StrAppendFormat(&out, "  memory of %s: %d buffers, peak %s, lower bound %s, ratio %.3f\n",
                          ProgramName(listed, manifest), program.buffers_size(),
                          HumanBytes(static_cast<int64_t>(program.arena_bytes())),
                          HumanBytes(static_cast<int64_t>(program.lower_bound_bytes())), Ratio(program));
    if (!program.sample().empty()) {
      absl::StrAppend(&out, "   a sample with dims of ", SampleBound(program), " at most: ", program.sample(), "\n");
    }
  }
  return out;
}

}  // namespace llmc
