#include "tests/passes/paginate_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "ir/text.h"
#include "passes/driver/numerics.h"
#include "passes/pipeline.h"
#include "runtime/host/host_model.h"
#include "runtime/host/host_tensors.h"
#include "runtime/llmc.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

// MASK, ROTATE and MIX stand for what a test puts there.
constexpr char kDecoder[] = R"(model m
dim B <= 8
dim S <= 64
dim P <= 64
weight @embed: f32[32, 16] = "f#e"
weight @wq: f32[16, 16] = "f#q"
weight @wk: f32[16, 8] = "f#k"
weight @wv: f32[16, 8] = "f#v"
weight @wo: f32[16, 16] = "f#o"
weight @norm: f32[16] = "f#n"
weight @freq: f32[1, 4, 1] = "f#f"
weight @head: f32[32, 16] = "f#h"
WEIGHTSstep main(%input_ids: i64[B, S]POSITIONPAST) {
  %x = gather @embed, %input_ids
  %n = rms_norm %x, @norm
  %q0 = matmul %n, @wq
  %k0 = matmul %n, @wk
  %v0 = matmul %n, @wv
  %q1 = reshape %q0 {shape = [B, S, 2, 8]}
  %k1 = reshape %k0 {shape = [B, S, 1, 8]}
  %v1 = reshape %v0 {shape = [B, S, 1, 8]}
  %q2 = transpose %q1 {perm = [0, 2, 1, 3]}
  %k2 = transpose %k1 {perm = [0, 2, 1, 3]}
  %v = transpose %v1 {perm = [0, 2, 1, 3]}
  %zero = constant {value = 0} : i64[]
  %one = constant {value = 1} : i64[]
  %length = dims {values = [S], scalar = true}
  %past = dims {values = [PAST_LENGTH], scalar = true}
  %all = dims {values = [PAST_LENGTH + S], scalar = true}
  %count = range %zero, %length, %one
  PLACES
  %keys = range %zero, %all, %one
ROTATE
  %i = reshape %pos {shape = [1, 1, S, 1]}
  %j = reshape %keys {shape = [1, 1, 1, PAST_LENGTH + S]}
MASK
CACHE
ATTEND
  %a1 = transpose %a {perm = [0, 2, 1, 3]}
  %a2 = reshape %a1 {shape = [B, S, 16]}
  %o = matmul %a2, @wo
MIX
  %y = add %x, %mixed
TAIL
  return "logits" = %logitsPRESENTOUTPUT
}
)";

}  // namespace

std::unique_ptr<Model> Parse(const Decoder& d) {
  const char* past =
      ", %attention_mask: i64[B, P + S], %past_key_values.0.key: f32[B, 1, P, 8], %past_key_values.0.value: f32[B, 1, "
      "P, 8]";
  const char* cache =
      "  %present.0.key = concat %past_key_values.0.key, %k {axis = 2}\n"
      "  %present.0.value = concat %past_key_values.0.value, %v {axis = 2}";
  const char* present = ", \"present.0.key\" = %present.0.key, \"present.0.value\" = %present.0.value";
  const char* other = ", \"present.0.key\" = %k, \"present.0.value\" = %v";
  const std::string whole = absl::StrReplaceAll(kDecoder, {{"ROTATE", d.rotate}, {"ATTEND", d.attend}});
  const std::string places =
      d.positions
          ? "%first = slice %position_ids {axis = 0, start = [0], end = [1]}\n  %pos = reshape %first {shape = [S]}"
          : "%pos = add %count, %past";
  const std::string text = absl::StrReplaceAll(whole, {{"PLACES", places},
                                                       {"POSITION", d.positions ? ", %position_ids: i64[B, S]" : ""},
                                                       {"PAST_LENGTH", d.cache ? "P" : "0"},
                                                       {"PAST", d.cache ? past : ""},
                                                       {"CACHE", !d.cache           ? ""
                                                                 : d.caches.empty() ? cache
                                                                                    : d.caches},
                                                       {"KEYS", d.cache ? "%present.0.key" : "%k"},
                                                       {"VALUES", d.cache ? "%present.0.value" : "%v"},
                                                       {"PRESENT", !d.cache    ? ""
                                                                   : d.renamed ? other
                                                                               : present},
                                                       {"MASK", d.mask},
                                                       {"MIX", d.mix},
                                                       {"TAIL", d.tail},
                                                       {"WEIGHTS", d.weights},
                                                       {"OUTPUT", d.output}});
  absl::StatusOr<std::unique_ptr<Model>> model = ParseModel(text, "m.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  EXPECT_TRUE(FillRandomWeights(model->get(), 3).ok());
  // As small as those of trained models: logits are about 1, and products that sum in another order differ little.
  for (auto& [name, tensor] : (*model)->data) {
    std::vector<double> values = tensor.ToDoubles();
    for (double& value : values) value /= 4;
    // Tables that hold each angle twice.
    for (size_t i = 0; name.find("twice") != std::string::npos && i < values.size(); ++i) {
      if (i % 8 >= 4) values[i] = values[i - 4];
    }
    tensor = Tensor::FromValues(tensor.dtype(), tensor.shape(), values);
  }
  return *std::move(model);
}

std::string Paginated(Model* model) {
  Ledger ledger;
  const absl::Status status = RunPipeline(model, {.pagination = Pagination::kWhereProven}, &ledger);
  EXPECT_TRUE(status.ok()) << status;
  return ledger.ToString();
}

absl::StatusOr<std::unique_ptr<LoadedPlan>> Load(std::unique_ptr<Model> model) {
  auto parts = PartsOfModel("m", std::move(model));
  if (!parts.ok()) return parts.status();
  parts->max_context = 64;
  return LoadedPlan::FromParts(*std::move(parts), {});
}

Tensor LogitsOf(std::unique_ptr<Model> model, bool cache) {
  auto plan = Load(std::move(model));
  EXPECT_TRUE(plan.ok()) << plan.status();
  const std::vector<int64_t> ids = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
  NamedHostTensors inputs = {{"input_ids", ToHostTensor(Tensor::FromValues(DType::kI64, {2, 8}, ids))}};
  if (cache) {
    inputs["attention_mask"] = ToHostTensor(Tensor::FromValues(DType::kI64, {2, 8}, std::vector<int64_t>(16, 1)));
    for (const char* name : {"past_key_values.0.key", "past_key_values.0.value"}) {
      inputs[name] = ToHostTensor(Tensor(DType::kF32, {2, 1, 0, 8}));
    }
  }
  const auto outputs = (*plan)->Run(inputs);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return *FromHostTensor(outputs->at("logits"));
}

absl::StatusOr<Tensor> LogitsAt(std::unique_ptr<Model> model, const std::vector<int64_t>& positions) {
  auto plan = Load(std::move(model));
  if (!plan.ok()) return plan.status();
  const Shape shape = {1, static_cast<int64_t>(positions.size())};
  std::vector<int64_t> ids;
  for (size_t i = 0; i < positions.size(); ++i) ids.push_back(static_cast<int64_t>(3 + 7 * i) % 32);
  const auto outputs =
      (*plan)->Run({{"input_ids", ToHostTensor(Tensor::FromValues(DType::kI64, shape, ids))},
                    {"position_ids", ToHostTensor(Tensor::FromValues(DType::kI64, shape, positions))}});
  if (!outputs.ok()) return outputs.status();
  return FromHostTensor(outputs->at("logits"));
}

void ExpectSameLogits(const Decoder& d) {
  std::unique_ptr<Model> model = Parse(d);
  const std::string did = Paginated(model.get());
  ASSERT_EQ(model->states.size(), 1u) << did;
  EXPECT_THAT(did, HasSubstr("paginate: fired 1"));
  const std::vector<double> want = LogitsOf(Parse(d), d.cache).ToDoubles();
  const std::vector<double> got = LogitsOf(std::move(model), false).ToDoubles();
  ASSERT_EQ(want.size(), got.size());
  for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(want[i], got[i], 1e-5) << i;
}

void ExpectRefused(const Decoder& d, const std::string& why) {
  std::unique_ptr<Model> model = Parse(d);
  EXPECT_THAT(Paginated(model.get()), HasSubstr(why));
  ASSERT_TRUE(model->states.empty());
  EXPECT_EQ(model->steps[0]->params[0]->name, "%input_ids");
  EXPECT_EQ(LogitsOf(std::move(model), d.cache).shape(), (Shape{2, 8, 32})) << "it still runs";
}

}  // namespace llmc
