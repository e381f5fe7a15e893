// What bench says of its measurements: entries of the report, and lines.
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "tools/bench_cost.h"
#include "tools/bench_device.h"
#include "tools/bench_profile.h"
#include "tools/bench_steps.h"

namespace llmc {

// "random numbers, drawn on the GPU" if a weight is, else "files".
std::string WeightsFrom(const plan::Manifest& manifest);

// Clock and power, with two spaces before; "" if they were not read. Into an entry, and of one, likewise.
std::string StateText(const GpuState& gpu);
void AddState(const GpuState& gpu, nlohmann::ordered_json* entry);
std::string StateText(const nlohmann::ordered_json& entry);

// Into the report itself.
void AddRates(const DeviceRates& rates, nlohmann::ordered_json* report);
std::string RatesText(const DeviceRates& rates);

// Of a decode step of `batch` sequences and what it must read. Into an entry that has batch and context.
void AddDecode(const DecodeTimes& times, const StepCost& cost, const DeviceRates& rates, nlohmann::ordered_json* entry);
std::string DecodeText(const nlohmann::ordered_json& entry);

// Into an entry that has the prompt's tokens; `flops` are those of the whole prompt.
void AddPrefill(const PrefillTimes& times, double flops, const DeviceRates& rates, nlohmann::ordered_json* entry);
std::string PrefillText(const nlohmann::ordered_json& entry);

// One entry a kernel and one for the rest; their times add up to the step.
nlohmann::ordered_json ProfileJson(const StepProfile& profile, const DeviceRates& rates);
std::string ProfileText(const nlohmann::ordered_json& rows);

}  // namespace llmc
