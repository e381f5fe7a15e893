// Products through cuBLASLt with what they include, on a GPU, against the evaluator; and which algorithm computes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "ir/text.h"
#include "runtime/device/product_tuning.h"
#include "tests/gpu/device_check.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

// The evaluator rounds between the nodes that become one product, each time perhaps to the other neighbour.
double Tolerance(const std::string& type) { return type == "f32" ? 1e-5 : type == "f16" ? 3.0 / 1024 : 3.0 / 128; }

TEST(Products, WithBiasResidualAndActivation) {
  LLMC_NEEDS_GPU();
  struct Size {
    int64_t rows, n, k;
  };
  for (const std::string type : {"f32", "f16", "bf16"}) {
    for (const Size size : {Size{1, 64, 128}, Size{9, 67, 65}, Size{37, 1000, 48}, Size{130, 2, 2},
                            Size{130, 256, 1023}, Size{1, 131, 7}}) {
      for (const bool transposed : {true, false}) {
        SCOPED_TRACE(absl::StrCat(type, " ", size.rows, " x ", size.n, " x ", size.k, transposed ? " transposed" : ""));
        ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= 1000
weight @w: TYPE[WEIGHT] = "f#w"
weight @b: TYPE[N] = "f#b"
weight @n: TYPE[N] = "f#n"
step main(%x: TYPE[T, K], %y: TYPE[T, N]) {
  %p0 = matmul %x, @w {transpose_rhs = TRANSPOSED}
  %biased = add @b, %p0
  %p1 = matmul %x, @w {transpose_rhs = TRANSPOSED}
  %added = add %p1, %y
  %p2 = matmul %x, @w {transpose_rhs = TRANSPOSED}
  %a2 = add %p2, @b
  %both = add %a2, %y
  %p3 = matmul %x, @w {transpose_rhs = TRANSPOSED}
  %a3 = add %p3, @b
  %gelu = gelu_tanh %a3
  %p4 = matmul %x, @w {transpose_rhs = TRANSPOSED}
  %gelu_only = gelu_tanh %p4
  %p6 = matmul %x, @w {transpose_rhs = TRANSPOSED}
  %sum = add %y, %p6
  %normed = rms_norm %sum, @n
  %h = abs %y
  %p7 = matmul %x, @w {transpose_rhs = TRANSPOSED}
  %in_place = add %h, %p7
  return "biased" = %biased, "added" = %added, "both" = %both, "gelu" = %gelu, "gelu_only" = %gelu_only, "sum" = %sum, "normed" = %normed, "in_place" = %in_place
}
)",
                                                        {{"TYPE", type},
                                                         {"WEIGHT", transposed ? absl::StrCat(size.n, ", ", size.k)
                                                                               : absl::StrCat(size.k, ", ", size.n)},
                                                         {"TRANSPOSED", transposed ? "true" : "false"},
                                                         {"N", absl::StrCat(size.n)},
                                                         {"K", absl::StrCat(size.k)}}),
                            .dims = {{"T", size.rows}},
                            .tolerance = Tolerance(type)});
      }
    }
  }
}

// Of 16 bits, by the kernel that has gelu, whose tiles are of two sizes: with T rows of the larger ones there must be
// as many as multiprocessors.
TEST(Products, WithGelu) {
  LLMC_NEEDS_GPU();
  struct Size {
    int64_t rows, n, k;
  };
  const std::map<std::string, std::vector<Size>> kSizes = {
      {"f16", {{1, 64, 8}, {130, 200, 1096}, {2100, 3264, 64}, {2177, 2056, 72}}},
      {"bf16", {{197, 3072, 256}, {2100, 1160, 200}}}};
  for (const auto& [type, sizes] : kSizes) {
    for (const Size size : sizes) {
      SCOPED_TRACE(absl::StrCat(type, " ", size.rows, " x ", size.n, " x ", size.k));
      ExpectDeviceAgrees(
          {.text = absl::StrReplaceAll(R"(model m
dim T <= 5000
weight @w: TYPE[N, K] = "f#w"
weight @b: TYPE[N] = "f#b"
step main(%x: TYPE[T, K], %y: TYPE[T, N]) {
  %p0 = linear %x, @w {transpose_rhs = true}
  %a0 = add @b, %p0
  %biased = gelu %a0
  %p1 = linear %x, @w {transpose_rhs = true}
  %a1 = add %p1, @b
  %s1 = add %a1, %y
  %added = gelu %s1
  %p2 = linear %x, @w {transpose_rhs = true}
  %alone = gelu %p2
  return "biased" = %biased, "added" = %added, "alone" = %alone
}
)",
                                       {{"TYPE", type}, {"N", absl::StrCat(size.n)}, {"K", absl::StrCat(size.k)}}),
           .dims = {{"T", size.rows}},
           .tolerance = Tolerance(type)});
    }
  }
}

// Factors of 10 bits of mantissa, where somebody asked for it: whether the others are rounded or cut off, each product
// is off by 2^-9 of its size at the most.
TEST(Products, InTf32HaveShorterFactors) {
  LLMC_NEEDS_GPU();
  const auto model = ParseModel(R"(model m
weight @w: f32[256, 512] = "f#w"
weight @b: f32[256] = "f#b"
step main(%x: f32[130, 512]) {
  %p = matmul %x, @w {transpose_rhs = true}
  %y = add %p, @b
  return "y" = %y
}
)",
                                "m.lir");
  ASSERT_TRUE(model.ok()) << model.status();
  (*model)->data["@w"] = RandomFloats(DType::kF32, {256, 512}, 1);
  (*model)->data["@b"] = RandomFloats(DType::kF32, {256}, 2);
  const NamedTensors inputs = {{"x", RandomFloats(DType::kF32, {130, 512}, 3)}};
  const auto evaluator = Evaluator::Create(model->get());
  const std::vector<double> want = (*evaluator)->Run(*(*model)->steps.front(), inputs)->at("y").ToDoubles();
  const auto error_of = [&](const DevicePlanOptions& options) {
    const auto got = RunOnDevice(**model, inputs, TargetHere(), options);
    EXPECT_TRUE(got.ok()) << got.status();
    if (!got.ok()) return 0.0;
    const std::vector<double> values = got->at("y").ToDoubles();
    double most = 0;
    for (size_t i = 0; i < want.size(); ++i) most = std::max(most, std::abs(values[i] - want[i]));
    return most / std::sqrt(512.0);
  };
  EXPECT_LT(error_of({}), 1e-5);
  const double shorter = error_of({.tf32 = true});
  EXPECT_GT(shorter, 1e-4) << "factors have all of their bits";
  EXPECT_LT(shorter, 6e-3);
}

// An operand that is its own residual, which must not be overwritten while it is read, by either kind of product.
TEST(Products, OfWhatIsAdded) {
  LLMC_NEEDS_GPU();
  for (const char* most_rows : {"8", "1000"}) {
    ExpectDeviceAgrees({.text = absl::StrReplaceAll(R"(model m
dim T <= ROWS
weight @w: bf16[1024, 1024] = "f#w"
step main(%x: bf16[T, 1024]) {
  %h = abs %x
  %p = matmul %h, @w {transpose_rhs = true}
  %s = add %h, %p
  return "s" = %s
}
)",
                                                    {{"ROWS", most_rows}}),
                        .dims = {{"T", 8}},
                        .tolerance = Tolerance("bf16")});
  }
}

class Operands {
 public:
  Operands(Device* device, const MatrixProducts::Shape& s)
      : device_(device), x_(s.m * s.k), weight_(s.n * s.k), more_(s.m * s.n), out_(s.m * s.n) {
    uint32_t seed = 1;
    for (std::vector<uint16_t>* values : {&x_, &weight_, &more_}) {
      const Tensor random = RandomFloats(DType::kBF16, {static_cast<int64_t>(values->size())}, ++seed);
      std::memcpy(values->data(), random.raw(), 2 * values->size());
      memory_.push_back(Upload(*values));
    }
    memory_.push_back(Upload(out_));
  }

  MatrixProducts::Operands pointers() const {
    return {.out = memory_[3].data(),
            .x = memory_[0].data(),
            .weight = memory_[1].data(),
            .bias = memory_[2].data(),
            .residual = memory_[2].data()};
  }

  std::vector<double> Result() {
    const int64_t bytes = static_cast<int64_t>(2 * out_.size());
    EXPECT_TRUE(device_->CopyToHost(out_.data(), memory_[3].data(), bytes).ok());
    EXPECT_TRUE(device_->Synchronize().ok());
    Tensor result(DType::kBF16, {static_cast<int64_t>(out_.size())});
    std::memcpy(result.mutable_raw(), out_.data(), static_cast<size_t>(bytes));
    EXPECT_TRUE(device_->FillBytes(memory_[3].data(), 0xff, bytes).ok());
    return result.ToDoubles();
  }

 private:
  DeviceMemory Upload(const std::vector<uint16_t>& values) {
    absl::StatusOr<DeviceMemory> memory = device_->Allocate(static_cast<int64_t>(2 * values.size()));
    EXPECT_TRUE(memory.ok()) << memory.status();
    EXPECT_TRUE(device_->CopyToDevice(memory->data(), values.data(), memory->bytes()).ok());
    EXPECT_TRUE(device_->Synchronize().ok());
    return *std::move(memory);
  }

  Device* device_;
  std::vector<uint16_t> x_, weight_, more_, out_;
  std::vector<DeviceMemory> memory_;
};

TEST(Products, EveryProposalGivesTheSameNumbers) {
  LLMC_NEEDS_GPU();
  auto device = Device::Open();
  ASSERT_TRUE(device.ok()) << device.status();
  auto products = MatrixProducts::Create(device->get());
  ASSERT_TRUE(products.ok()) << products.status();
  for (const int64_t m : {16, 40, 200}) {
    for (const bool parts : {false, true}) {
      const MatrixProducts::Shape shape = {.m = m, .n = 320, .k = 4096, .bias = parts, .residual = parts};
      Operands operands(device->get(), shape);
      const absl::StatusOr<int> count = (*products)->CountProposals(shape);
      ASSERT_TRUE(count.ok()) << count.status();
      EXPECT_GT(*count, 1);
      std::vector<double> first;
      for (int i = 0; i < *count; ++i) {
        (*products)->Choose(shape, i);
        EXPECT_EQ((*products)->ProposalOf(shape).value_or(-1), i);
        const absl::Status done = (*products)->Multiply(shape, operands.pointers());
        ASSERT_TRUE(done.ok()) << done;
        const std::vector<double> result = operands.Result();
        if (first.empty()) first = result;
        for (size_t j = 0; j < result.size(); ++j) {
          // Numbers of about 64, which are rounded once.
          ASSERT_NEAR(result[j], first[j], std::max(std::abs(first[j]), 64.0) / 128) << "proposal " << i << ", " << j;
        }
      }
    }
  }
}

TEST(Products, TuningIsUsedWhereItWasMeasured) {
  LLMC_NEEDS_GPU();
  auto device = Device::Open();
  ASSERT_TRUE(device.ok()) << device.status();
  const MatrixProducts::Shape shape = {.m = 64, .n = 1024, .k = 1024, .residual = true};
  plan::TunedProducts tuned;
  plan::TunedProduct* product = tuned.add_products();
  product->set_m(64);
  product->set_n(1024);
  product->set_k(1024);
  product->set_in_dtype("bf16");
  product->set_out_dtype("bf16");
  product->set_transposed(true);
  product->set_residual(true);
  product->set_proposal(1);
  const auto proposal = [&](const MatrixProducts::Shape& s) {
    auto products = MatrixProducts::Create(device->get());
    EXPECT_TRUE(products.ok()) << products.status();
    if (tuned.library() == 1) tuned.set_library((*products)->version());
    UseTuning(tuned, **device, products->get());
    return (*products)->ProposalOf(s).value_or(-1);
  };
  tuned.set_gpu((*device)->name());
  tuned.set_library(1);  // becomes that of this machine
  EXPECT_EQ(proposal(shape), 1);
  MatrixProducts::Shape other = shape;
  other.residual = false;
  EXPECT_EQ(proposal(other), 0);
  product->set_proposal(15);
  EXPECT_EQ(proposal(shape), 0) << "there are not so many";
  product->set_proposal(1);
  tuned.set_gpu("another GPU");
  EXPECT_EQ(proposal(shape), 0);
  tuned.set_gpu((*device)->name());
  tuned.set_library(tuned.library() + 1);
  EXPECT_EQ(proposal(shape), 0);
}

// Compiled with and without, to plans that give the same tokens.
TEST(Products, TunedPlansGiveTheReferenceTokens) {
  LLMC_NEEDS_GPU();
  const std::string folder = ShippedModel(), target = "--target=" + TargetHere().name;
  const std::string tuned = TempFolder() + "/tuned.bin", plain = TempFolder() + "/plain.bin";
  const CommandResult compiled = RunLlmc({"compile", folder, "--dtype=f32", target, "--tune", "--json", "-o", tuned});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  EXPECT_GT(compiled.Json()["tuning"]["products"].get<int>(), 50);
  EXPECT_EQ(RunLlmc({"compile", folder, "--dtype=f32", target, "--no-tune", "-o", plain}).exit_code, 0);
  EXPECT_EQ(RunLlmc({"show", tuned, "--json"}).Json()["tuned"]["products"], compiled.Json()["tuning"]["products"]);
  EXPECT_FALSE(RunLlmc({"show", plain, "--json"}).Json().contains("tuned"));
  for (const std::string& plan : {tuned, plain}) {
    ExpectReferenceTokens(plan, folder + "/reference.json", 0.001, {"--device=cuda"});
  }
  const CommandResult other =
      RunLlmc({"compile", folder, "--target=" + std::string(TargetHere().name == "sm_80" ? "sm_90a" : "sm_80"),
               "--tune", "-o", TempFolder() + "/other.bin"});
  EXPECT_NE(other.exit_code, 0);
  EXPECT_NE(other.err.find("and not for the GPU that is here"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace llmc
