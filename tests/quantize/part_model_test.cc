// Parts as models of their own, run here by the evaluator in place of a device: all must come out as when the nodes are
// evaluated one by one.
#include "quantize/part_model.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "files/temporary_folder.h"
#include "frontend/formats/safetensors.h"
#include "ir/text.h"
#include "quantize/quantize.h"
#include "tests/shared_data.h"

namespace llmc {
namespace {

class EvaluatedSteps : public StepRunner {
 public:
  absl::StatusOr<NamedTensors> Run(const Model& model, const NamedTensors& inputs) override {
    texts_.insert(PrintModel(model));
    // As a device does it: from the text alone.
    const std::unique_ptr<Model> parsed = ParseModel(PrintModel(model), "part").value();
    const std::unique_ptr<Evaluator> evaluator = Evaluator::Create(parsed.get()).value();
    if (const absl::Status allocated = evaluator->AllocateStates({}); !allocated.ok()) return allocated;
    return evaluator->Run(*parsed->steps.front(), inputs);
  }
  Matrices* matrices() override { return matrices_.get(); }
  size_t models() const { return texts_.size(); }

 private:
  const std::unique_ptr<Matrices> matrices_ = NewHostMatrices();
  std::set<std::string> texts_;
};

std::vector<int32_t> SampleIds(int64_t count, int32_t seed) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>((i * i * 37 + i * 11 + seed) % 4000 + 20));
  return ids;
}

// The folder that a request gives, run by `device` or on the host.
struct Outcome {
  QuantizeReport report;
  Checkpoint checkpoint;
};
Outcome QuantizedBy(const std::string& scheme, const std::string& folder, const std::string& output,
                    StepRunner* device) {
  QuantizeRequest request{.folder = folder, .output = output};
  request.rules = ParseSchemeRules(scheme).value();
  // Of three lengths, so that a device gets a batch of sequences that differ.
  request.samples = {SampleIds(64, 5), SampleIds(40, 1000), SampleIds(17, 300)};
  request.kv_scales = true;
  request.device = device;
  Outcome outcome{.report = QuantizeFolder(request).value()};
  outcome.checkpoint = ReadCheckpoint(output).value();
  return outcome;
}

// `tolerance`: of errors and scales. Sums of products are added in another order, which moves what GPTQ and AWQ round.
void ExpectAlike(const Outcome& host, const Outcome& device, double tolerance) {
  ASSERT_EQ(host.report.modules.size(), device.report.modules.size());
  for (size_t i = 0; i < host.report.modules.size(); ++i) {
    const QuantizedModule &a = host.report.modules[i], &b = device.report.modules[i];
    EXPECT_EQ(a.note, b.note) << a.name;
    ASSERT_EQ(a.output_error.has_value(), b.output_error.has_value()) << a.name;
    if (!a.output_error.has_value()) continue;
    EXPECT_NEAR(*a.nearest_error, *b.nearest_error, tolerance * *a.nearest_error) << a.name;
    EXPECT_NEAR(*a.output_error, *b.output_error, tolerance * *a.output_error) << a.name;
  }
  ASSERT_EQ(host.checkpoint.size(), device.checkpoint.size());
  for (const auto& [name, tensor] : host.checkpoint) {
    if (!name.ends_with("k_scale") && !name.ends_with("v_scale")) continue;
    const double scale = tensor.tensor.GetFloat(0);
    EXPECT_NEAR(device.checkpoint.at(name).tensor.GetFloat(0), scale, 2 * tolerance * scale) << name;
  }
}

class PartModelTest : public testing::Test {
 protected:
  size_t ExpectAlikeOnBoth(const std::string& scheme, const std::string& model, double tolerance) {
    EvaluatedSteps steps;
    ExpectAlike(QuantizedBy(scheme, model, folder_.PathOf("host-" + scheme), nullptr),
                QuantizedBy(scheme, model, folder_.PathOf("device-" + scheme), &steps), tolerance);
    return steps.models();
  }
  const TemporaryFolder folder_ = TemporaryFolder::Create().value();
};

const std::string kShipped = LLMC_TEST_DATA "/tale-7m";

TEST_F(PartModelTest, PartsComputeWhatTheModelDoes) {
  // Rounding to nearest is the same to the bit, so all that is learned of the inputs is, but for the order of sums.
  const size_t models = ExpectAlikeOnBoth("layers.0.*|layers.1.*=int4", kShipped, 1e-5);
  // The first part embeds the tokens, and behind layer 1 nothing but the cache is observed; other attentions and MLPs
  // are alike. Each runs with taps and without. Two more multiply with X^T X of 256 and of 768 channels.
  EXPECT_LE(models, 13u);
}

TEST_F(PartModelTest, MethodsAreLedByTheSameStatistics) {
  ExpectAlikeOnBoth("layers.0.*|layers.1.*=gptq", kShipped, 3e-2);
  ExpectAlikeOnBoth("layers.0.*|layers.1.*=smoothquant", kShipped, 3e-2);
  ExpectAlikeOnBoth("layers.0.*=awq", kShipped, 3e-2);
}

// A device whose memory is full from its n-th run on.
class FullDevice : public EvaluatedSteps {
 public:
  explicit FullDevice(int runs) : runs_(runs) {}
  absl::StatusOr<NamedTensors> Run(const Model& model, const NamedTensors& inputs) override {
    if (runs_-- == 0) return absl::ResourceExhaustedError("3.0 GiB do not fit");
    return EvaluatedSteps::Run(model, inputs);
  }

 private:
  int runs_;
};

TEST_F(PartModelTest, AFullDeviceIsAnErrorThatLeavesNothing) {
  for (const int runs : {0, 3}) {
    FullDevice device(runs);
    QuantizeRequest request{.folder = kShipped, .output = folder_.PathOf("full"), .device = &device};
    request.rules = ParseSchemeRules("layers.0.*=int4").value();
    request.samples = {SampleIds(64, 5)};
    const absl::Status status = QuantizeFolder(request).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  }
}

TEST_F(PartModelTest, ExpertsGetTheTokensThatGoToThem) {
  const std::string model = SharedData("tale-moe-qwen3");
  if (model.empty()) GTEST_SKIP() << "the shared test data is not there";
  ExpectAlikeOnBoth("layers.0.*=int4", model, 1e-5);
  ExpectAlikeOnBoth("layers.0.*=gptq", model, 3e-2);
}

}  // namespace
}  // namespace llmc
