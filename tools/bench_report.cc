#include "tools/bench_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace llmc {
namespace {

using Json = nlohmann::ordered_json;

Json HotJson(const HotRate& hot, const char* unit, double scale) {
  Json json = {{unit, hot.rate * scale}, {"after_s", hot.seconds}, {"settled", hot.settled}};
  AddState(hot.gpu, &json);
  return json;
}

double NumberAt(const Json& json, const char* key) { return json.at(key).get<double>(); }

}  // namespace

std::string WeightsFrom(const plan::Manifest& manifest) {
  const bool random = std::any_of(manifest.weights().begin(), manifest.weights().end(),
                                  [](const plan::Weight& weight) { return weight.has_random(); });
  return random ? "random numbers, drawn on the GPU" : "files";
}

void AddState(const GpuState& gpu, Json* json) {
  if (gpu.readings == 0) return;
  json->update({{"sm_mhz", gpu.sm_mhz}, {"least_sm_mhz", gpu.least_sm_mhz}, {"watts", gpu.watts}});
}

std::string StateText(const Json& json) {
  if (!json.contains("sm_mhz")) return "";
  return absl::StrFormat("  %.0f MHz %.0f W", json["sm_mhz"].get<double>(), json["watts"].get<double>());
}

std::string StateText(const GpuState& gpu) {
  Json json;
  AddState(gpu, &json);
  return StateText(json);
}

void AddRates(const DeviceRates& rates, Json* report) {
  (*report)["read_gb_per_s"] = rates.read_bytes * 1e-9;
  (*report)["matrix_tflops"] = rates.flops * 1e-12;
  (*report)["hot_read"] = HotJson(rates.hot_read, "gb_per_s", 1e-9);
  (*report)["hot_matrix"] = HotJson(rates.hot_flops, "tflops", 1e-12);
}

std::string RatesText(const DeviceRates& rates) {
  return absl::StrFormat(
      "reads %.0f GB/s cold, %.0f GB/s after %.1f s%s\n"
      "multiplies bf16 matrices at %.0f TFLOP/s cold, %.0f TFLOP/s after %.1f s%s\n",
      rates.read_bytes * 1e-9, rates.hot_read.rate * 1e-9, rates.hot_read.seconds, StateText(rates.hot_read.gpu),
      rates.flops * 1e-12, rates.hot_flops.rate * 1e-12, rates.hot_flops.seconds, StateText(rates.hot_flops.gpu));
}

void AddDecode(const DecodeTimes& times, const StepCost& cost, const DeviceRates& rates, Json* entry) {
  const double floor = (cost.weight_bytes + cost.kv_bytes) / rates.read_bytes;
  entry->update({{"median_us", times.step.median * 1e6},
                 {"fastest_us", times.step.fastest * 1e6},
                 {"greedy_us", times.greedy.median * 1e6},
                 {"drawn_us", times.drawn.median * 1e6},
                 {"runs", times.step.runs},
                 {"weight_bytes", cost.weight_bytes},
                 {"kv_bytes", cost.kv_bytes},
                 {"floor_us", floor * 1e6},
                 {"of_floor", floor / times.step.median},
                 {"graph_bytes", times.graph_bytes},
                 {"tokens_per_s", NumberAt(*entry, "batch") / times.greedy.median}});
  AddState(times.step.gpu, entry);
}

std::string DecodeText(const Json& entry) {
  return absl::StrFormat("%6.0f %8.0f %9.1f us %9.1f us %9.1f us %8.3f GB %6.0f us %7.1f%%%s\n",
                         NumberAt(entry, "batch"), NumberAt(entry, "context"), NumberAt(entry, "median_us"),
                         NumberAt(entry, "greedy_us"), NumberAt(entry, "drawn_us"),
                         (NumberAt(entry, "weight_bytes") + NumberAt(entry, "kv_bytes")) * 1e-9,
                         NumberAt(entry, "floor_us"), 100 * NumberAt(entry, "of_floor"), StateText(entry));
}

void AddPrefill(const PrefillTimes& times, double flops, const DeviceRates& rates, Json* entry) {
  const double cold = flops / times.cold.median, hot = flops / times.hot.median;
  entry->update({{"median_ms", times.cold.median * 1e3},
                 {"fastest_ms", times.cold.fastest * 1e3},
                 {"tflop", flops * 1e-12},
                 {"tflops", cold * 1e-12},
                 {"of_matrix_rate", cold / rates.flops}});
  AddState(times.cold.gpu, entry);
  Json json = {{"after_s", times.hot_seconds},
               {"median_ms", times.hot.median * 1e3},
               {"tflops", hot * 1e-12},
               {"of_matrix_rate", hot / rates.hot_flops.rate},
               {"tokens_per_s", NumberAt(*entry, "prompt") / times.hot.median}};
  AddState(times.hot.gpu, &json);
  (*entry)["hot"] = json;
}

std::string PrefillText(const Json& entry) {
  const Json& hot = entry.at("hot");
  return absl::StrFormat("%8.0f %9.2f ms %9.0f %8.1f%% %9.2f ms %9.0f %8.1f%%%s\n", NumberAt(entry, "prompt"),
                         NumberAt(entry, "median_ms"), NumberAt(entry, "tflops"),
                         100 * NumberAt(entry, "of_matrix_rate"), NumberAt(hot, "median_ms"), NumberAt(hot, "tflops"),
                         100 * NumberAt(hot, "of_matrix_rate"), StateText(hot));
}

Json ProfileJson(const StepProfile& profile, const DeviceRates& rates) {
  Json rows = Json::array();
  for (const ProfileRow& row : profile.rows) {
    rows.push_back({{"kernel", row.name},
                    {"count", row.count},
                    {"us", row.seconds * 1e6},
                    {"share", row.seconds / profile.seconds},
                    {"bytes", row.cost.bytes()},
                    {"flops", row.cost.flops},
                    {"bound_by", row.IsBoundByBytes(rates) ? "bytes" : "flops"},
                    {"of_roof", row.Share(rates)},
                    {"first", row.example}});
  }
  const ProfileRow rest = RestOf(profile);
  rows.push_back({{"kernel", rest.name}, {"us", rest.seconds * 1e6}, {"share", rest.seconds / profile.seconds}});
  return rows;
}

std::string ProfileText(const Json& rows) {
  std::string text = absl::StrFormat("  %-34s %6s %11s %7s %10s %9s %8s\n", "kernel", "count", "time", "share", "GB/s",
                                     "TFLOP/s", "of roof");
  for (const Json& row : rows) {
    const double us = NumberAt(row, "us");
    const bool is_kernel = row.contains("count");
    absl::StrAppendFormat(&text, "  %-34s %6s %8.1f us %6.1f%%", row["kernel"].get<std::string>(),
                          is_kernel ? absl::StrCat(row["count"].get<int>()) : "", us, 100 * NumberAt(row, "share"));
    if (is_kernel) {
      absl::StrAppendFormat(&text, " %10.0f %9.1f %7.1f%%", NumberAt(row, "bytes") / us * 1e-3,
                            NumberAt(row, "flops") / us * 1e-6, 100 * NumberAt(row, "of_roof"));
    }
    text += "\n";
  }
  return text;
}

}  // namespace llmc
