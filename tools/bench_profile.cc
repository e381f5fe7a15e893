#include "tools/bench_profile.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/plan/plan_text.h"

namespace llmc {
namespace {

constexpr int kRuns = 10;
constexpr int kLeastLaunches = 64;  // in a graph, so that its own launch does not count

std::string NameOf(const plan::Manifest& manifest, const plan::Task& task, const StepDims& sizes) {
  if (task.has_kernel()) return manifest.kernels(static_cast<int>(task.kernel().kernel())).entry();
  if (task.has_copy()) return "copy";
  const plan::Gemm& gemm = task.gemm();
  std::string name = "cuBLASLt";
  for (const std::string* text : {&gemm.m(), &gemm.n(), &gemm.k()}) {
    const absl::StatusOr<DimExpression> size = DimExpression::Parse(*text);
    absl::StrAppend(&name, text == &gemm.m() ? " " : " x ", size.ok() ? size->Evaluate(sizes).value_or(0) : 0);
  }
  return absl::StrCat(name, " ", gemm.in_dtype(), PartsText(gemm));
}

bool ReadsInputs(const TimedProgram& step, const plan::Task& task) {
  return std::any_of(task.args().begin(), task.args().end(), [&](const plan::Arg& arg) {
    if (arg.what_case() != plan::Arg::kBuffer) return false;
    const std::string& name = step.program().buffers(static_cast<int>(arg.buffer())).name();
    return absl::StartsWith(name, "%") && step.IsInput(name.substr(1));
  });
}

bool Writes(const plan::Task& task, uint32_t buffer) {
  return std::any_of(task.args().begin(), task.args().end(), [&](const plan::Arg& arg) {
    return arg.writes() && arg.what_case() == plan::Arg::kBuffer && arg.buffer() == buffer;
  });
}

// The tasks of the model that make what says where task `index` reads and writes, and what says that of them.
void AddMakers(const plan::Program& program, int index, std::set<int>* makers) {
  for (const plan::Arg& arg : program.tasks(index).args()) {
    if (!arg.directs() || arg.what_case() != plan::Arg::kBuffer) continue;
    for (int before = 0; before < index; ++before) {
      const plan::Task& task = program.tasks(before);
      if (PartOf(task) != StepPart::kModel || !Writes(task, arg.buffer())) continue;
      if (makers->insert(before).second) AddMakers(program, before, makers);
    }
  }
}

}  // namespace

double ProfileRow::Share(const DeviceRates& rates) const {
  return seconds == 0 ? 0 : std::max(cost.bytes() / rates.read_bytes, cost.flops / rates.flops) / seconds;
}

ProfileRow RestOf(const StepProfile& profile) {
  ProfileRow rest = {.count = 1, .seconds = profile.seconds};
  for (const ProfileRow& row : profile.rows) rest.seconds -= row.seconds;
  rest.name = rest.seconds >= 0 ? "gaps between kernels" : "overlap of kernels";
  return rest;
}

namespace {

// The kernels of a step, without their times.
std::map<std::string, ProfileRow> CountKernels(const TimedProgram& step) {
  const plan::Program& program = step.program();
  std::map<std::string, ProfileRow> rows;
  for (int i = 0; i < program.tasks_size(); ++i) {
    const plan::Task& task = program.tasks(i);
    if (PartOf(task) != StepPart::kModel) continue;
    const std::string name = NameOf(step.manifest(), task, step.sizes());
    ProfileRow& row = rows[name];
    if (row.count++ == 0) row.example = task.label();
    std::set<int> makers;
    AddMakers(program, i, &makers);
    row.makers.insert(row.makers.end(), makers.begin(), makers.end());
    row.tasks.insert(row.tasks.end(), makers.begin(), makers.end());
    row.tasks.push_back(i);
    makers.insert(i);
    for (const int each : makers) {
      row.reads_inputs = row.reads_inputs || ReadsInputs(step, program.tasks(each));
    }
    row.name = name;
    const StepCost cost = step.CostOf(task);
    row.cost.weight_bytes += cost.weight_bytes;
    row.cost.kv_bytes += cost.kv_bytes;
    row.cost.activation_bytes += cost.activation_bytes;
    row.cost.flops += cost.flops;
  }
  return rows;
}

}  // namespace

absl::StatusOr<StepProfile> ProfileStep(TimedProgram* step) {
  StepProfile profile;
  ASSIGN_OR_RETURN(const std::vector<double> whole, step->Time(kRuns, [&] { return step->Run(); }));
  profile.seconds = Median(whole);
  std::map<std::string, ProfileRow> kernels = CountKernels(*step);
  for (auto& [name, row] : kernels) {
    // What writes over inputs may run but once before they are set again.
    const int repeats = row.reads_inputs ? 1 : (kLeastLaunches + row.count - 1) / row.count;
    const auto seconds_of = [&](const std::vector<int>& tasks) -> absl::StatusOr<double> {
      ASSIGN_OR_RETURN(const DeviceGraph graph, step->CaptureTasks(tasks, repeats));
      // Numbers of a step, so that experts are chosen from these, not from what other kernels by themselves have left.
      RETURN_IF_ERROR(step->SetInputs());
      RETURN_IF_ERROR(step->Run());
      ASSIGN_OR_RETURN(const std::vector<double> times,
                       step->Time(kRuns, [&] { return step->device()->Launch(graph); }));
      return Median(times) / repeats;
    };
    ASSIGN_OR_RETURN(row.seconds, seconds_of(row.tasks));
    if (!row.makers.empty()) {
      ASSIGN_OR_RETURN(const double others, seconds_of(row.makers));
      row.seconds = std::max(row.seconds - others, 0.0);
    }
    profile.rows.push_back(row);
  }
  std::sort(profile.rows.begin(), profile.rows.end(),
            [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  return profile;
}

}  // namespace llmc
