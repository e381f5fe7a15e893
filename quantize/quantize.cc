#include "quantize/quantize.h"

#include <cmath>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/drop_pages.h"
#include "files/path_check.h"
#include "frontend/import_options.h"
#include "ir/ops_internal.h"
#include "ir/quantize.h"
#include "quantize/calibration.h"
#include "quantize/quantize_plan.h"

namespace llmc {
namespace {

// |a - b| / |b|, of matrices; 0 where both are 0.
double RelativeError(const Tensor& decoded, const Tensor& numbers) {
  const int64_t rows = numbers.shape()[0], columns = numbers.shape()[1];
  std::vector<double> errors(static_cast<size_t>(rows), 0), all(static_cast<size_t>(rows), 0);
  ops::ParallelFor(rows, 4.0 * static_cast<double>(numbers.size()), [&](int64_t first, int64_t last) {
    std::vector<float> a(static_cast<size_t>(columns)), b(static_cast<size_t>(columns));
    for (int64_t r = first; r < last; ++r) {
      ops::Load<float>(decoded, r * columns, columns, a.data());
      ops::Load<float>(numbers, r * columns, columns, b.data());
      double &error = errors[static_cast<size_t>(r)], &own = all[static_cast<size_t>(r)];
      for (size_t c = 0; c < a.size(); ++c) {
        error += (static_cast<double>(a[c]) - b[c]) * (static_cast<double>(a[c]) - b[c]);
        own += static_cast<double>(b[c]) * b[c];
      }
    }
  });
  const double error = std::accumulate(errors.begin(), errors.end(), 0.0);
  const double norm = std::accumulate(all.begin(), all.end(), 0.0);
  return norm == 0 ? 0 : std::sqrt(error / norm);
}

class FolderQuantizer {
 public:
  FolderQuantizer(const QuantizeRequest& request, QuantizePlan plan, ModelFolderWriter writer)
      : request_(request), plan_(std::move(plan)), writer_(std::move(writer)) {}

  absl::StatusOr<QuantizeReport> Run() {
    report_.left_out = plan_.left_out;
    RETURN_IF_ERROR(request_.samples.empty() ? RoundAll() : CalibrateAll());
    for (const auto& [name, tensor] : plan_.checkpoint) {
      report_.bytes_before += tensor.tensor.bytes();
      if (written_.contains(name)) continue;
      RETURN_IF_ERROR(Keep(name, tensor.tensor));
      Drop(tensor.tensor);
    }
    ASSIGN_OR_RETURN(const std::string config, PlannedConfig(plan_, request_.decoded));
    RETURN_IF_ERROR(writer_.WriteText("config.json", config));
    RETURN_IF_ERROR(writer_.CopySideFiles(request_.folder));
    RETURN_IF_ERROR(writer_.Commit());
    return std::move(report_);
  }

 private:
  void Progress(absl::string_view stage, int64_t done, int64_t total) const {
    if (request_.on_progress) request_.on_progress(stage, done, total);
  }

  absl::Status Write(const std::string& name, const Tensor& tensor) {
    report_.bytes_after += tensor.bytes();
    return writer_.Write(name, tensor);
  }

  // Of the checkpoint, which is mapped: not needed any more.
  static void Drop(const Tensor& tensor) { DropPages({tensor.raw(), static_cast<size_t>(tensor.bytes())}); }

  absl::Status Keep(const std::string& name, const Tensor& tensor) {
    if (!request_.decoded.has_value() || !IsFloat(tensor.dtype())) return Write(name, tensor);
    ASSIGN_OR_RETURN(const Tensor converted, ConvertedTensor(tensor, *request_.decoded));
    return Write(name, converted);
  }

  absl::Status RoundAll() {
    int64_t done = 0;
    for (const PlannedModule& module : plan_.modules) {
      RETURN_IF_ERROR(Round(module));
      Progress("quantize", ++done, static_cast<int64_t>(plan_.modules.size()));
    }
    return absl::OkStatus();
  }

  absl::Status CalibrateAll() {
    Progress("calibrate", 0, 1);
    ASSIGN_OR_RETURN(const std::unique_ptr<Calibration> calibration, Calibration::Create(&request_, &plan_));
    const auto total = static_cast<int64_t>(2 * calibration->batches() * calibration->parts());
    int64_t done = 0;
    for (size_t part = 0; part < calibration->parts(); ++part) {
      ASSIGN_OR_RETURN(const std::vector<Calibration::Result> results,
                       calibration->RunPart(part, [&] { Progress("calibrate", ++done, total); }));
      for (const Calibration::Result& result : results) RETURN_IF_ERROR(WriteResult(result));
    }
    for (const auto& [weight, tensor] : calibration->changed()) {
      const std::string name = SplitWeightSource(weight->source)->second;
      written_.insert(name);
      RETURN_IF_ERROR(Keep(name, tensor));
    }
    if (request_.decoded.has_value()) return absl::OkStatus();
    for (const auto& [name, file] : plan_.kv_scales) {
      const auto amax = calibration->kv_amax().find(name);
      if (amax == calibration->kv_amax().end()) return absl::InternalError(absl::StrCat(name, " was not observed"));
      RETURN_IF_ERROR(Write(name, Number(DType::kF32, ScaleFor(amax->second))));
    }
    return absl::OkStatus();
  }

  absl::Status WriteResult(const Calibration::Result& result) {
    RETURN_IF_ERROR(WriteModule(*result.module, result.encoded, result.numbers));
    QuantizedModule& reported = report_.modules.back();
    reported.nearest_error = result.nearest_error;
    reported.output_error = result.output_error;
    reported.note = result.note;
    if (request_.decoded.has_value()) return absl::OkStatus();
    for (const StoredPart& part :
         StoredInputScale(*result.module->scheme, result.module->dtype, ScaleFor(result.input_amax))) {
      RETURN_IF_ERROR(Write(result.module->linear.name + part.suffix, part.contents(result.encoded)));
    }
    return absl::OkStatus();
  }

  // Of numbers in f8e4m3.
  static float ScaleFor(float amax) { return amax == 0 ? 1 : amax / 448; }
  static Tensor Number(DType dtype, float x) { return Tensor::FromValues(dtype, {1}, std::vector<float>{x}); }

  absl::Status Round(const PlannedModule& module) {
    const Tensor& numbers = plan_.checkpoint.at(module.linear.tensor).tensor;
    const absl::StatusOr<Tensor> encoded = RoundedToNearest(module, numbers);
    if (!encoded.ok()) {
      return absl::Status(encoded.status().code(),
                          absl::StrCat(request_.folder, ": ", module.linear.tensor, ": ", encoded.status().message()));
    }
    RETURN_IF_ERROR(WriteModule(module, *encoded, numbers));
    Drop(numbers);
    return absl::OkStatus();
  }

  absl::Status WriteModule(const PlannedModule& module, const Tensor& encoded, const Tensor& numbers) {
    const LinearModule& linear = module.linear;
    const Tensor decoded = Decoded(encoded, DType::kF32);
    report_.modules.push_back({.name = linear.name,
                               .scheme = module.scheme->text,
                               .bits = BitsPerWeight(module.parts, linear.out, linear.in),
                               .weight_error = RelativeError(decoded, numbers)});
    written_.insert(linear.tensor);
    if (request_.decoded.has_value()) return Keep(linear.tensor, decoded);
    return WriteStored(module, encoded, numbers,
                       [&](const std::string& name, const Tensor& tensor) { return Write(name, tensor); });
  }

  const QuantizeRequest& request_;
  QuantizePlan plan_;
  ModelFolderWriter writer_;
  QuantizeReport report_;
  std::set<std::string> written_;
};

}  // namespace

absl::StatusOr<QuantizeReport> QuantizeFolder(const QuantizeRequest& request) {
  ASSIGN_OR_RETURN(QuantizePlan plan, PlanQuantization(request));
  ASSIGN_OR_RETURN(ModelFolderWriter writer,
                   ModelFolderWriter::Create(request.output, PlannedEntries(plan, request.decoded)));
  return FolderQuantizer(request, std::move(plan), std::move(writer)).Run();
}

}  // namespace llmc
