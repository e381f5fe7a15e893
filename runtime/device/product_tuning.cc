#include "runtime/device/product_tuning.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "runtime/device/device_model.h"
#include "runtime/device/graph_buckets.h"
#include "runtime/plan/dim_expression.h"
#include "runtime/plan/plan_check.h"
#include "runtime/plan/step_programs.h"

namespace llmc {
namespace {

using Shape = MatrixProducts::Shape;

constexpr int64_t kLeastPrompt = 512;
constexpr double kLeastGain = 0.02;

// ---- which products ----------------------------------------------------------------------------------------------
// A step of a language model: its dims, and whether it is one token of each sequence; or a run of another model.
struct KnownStep {
  StepDims dims;
  bool decodes = false;
};

std::vector<KnownStep> KnownSteps(const TargetCode& code, absl::Span<const StepDims> sizes) {
  const absl::StatusOr<StepContract> contract = PagedContractOf(code.manifest());
  if (code.programs_size() == 0) return {};
  if (!contract.ok()) {
    std::vector<KnownStep> runs;
    for (const StepDims& each : sizes) runs.push_back({.dims = each});
    return runs;
  }
  const std::string &tokens = contract->SizeOf(StepAxis::kToken), &sequences = contract->SizeOf(StepAxis::kSequence),
                    &rows = contract->SizeOf(StepAxis::kRow);
  StepDims most;
  for (const plan::DimBound& bound : code.programs().back()->bounds()) {
    most[bound.name()] = bound.max();
  }
  std::vector<KnownStep> steps;
  const int64_t batches = std::min({kLargestGraph, most[tokens], most[sequences], most[rows]});
  for (int64_t batch = 1; batch <= batches; batch = GraphBucketOf(batch) + 1) {
    const int64_t size = std::min(GraphBucketOf(batch), batches);
    steps.push_back({.dims = {{tokens, size}, {sequences, size}, {rows, size}}, .decodes = true});
  }
  for (int64_t prompt = kLeastPrompt;; prompt *= 2) {
    steps.push_back({.dims = {{tokens, std::min(prompt, most[tokens])}, {sequences, 1}, {rows, 1}}});
    if (prompt >= most[tokens]) return steps;
  }
}

// 0: it cannot be known.
int64_t SizeOf(const std::string& text, const StepDims& dims) {
  const absl::StatusOr<DimExpression> size = DimExpression::Parse(text);
  return size.ok() ? size->Evaluate(dims).value_or(0) : 0;
}

// ---- timing ------------------------------------------------------------------------------------------------------
constexpr int64_t kWeightBytes = int64_t{512} << 20;  // many times the L2 cache: a weight that comes again is gone
constexpr int64_t kRandomNumbers = int64_t{4} << 20;  // that are made; memory repeats them
constexpr double kRunSeconds = 400e-6;                // of a graph, at least: its own launch must not count
constexpr double kMostInGraph = 64;
constexpr int kRuns = 2;         // that choose the best
constexpr int kContestRuns = 7;  // of the best and the first

int64_t Bytes(int64_t elements, DType type) { return elements * DTypeBits(type) / 8; }

// Uniform in [-1, 1): what a GPU draws for a product, and so its clock, depends on the numbers.
std::string RandomNumbersOf(DType type) {
  std::mt19937 random(1);
  std::string bytes(static_cast<size_t>(Bytes(kRandomNumbers, type)), '\0');
  const size_t element = static_cast<size_t>(DTypeBits(type) / 8);
  for (size_t at = 0; at < bytes.size(); at += element) {
    const float number = static_cast<float>(random() >> 8) / static_cast<float>(1 << 23) - 1;
    uint32_t bits = 0;
    std::memcpy(&bits, &number, sizeof(bits));
    if (type == DType::kBF16) bits >>= 16;
    if (type == DType::kF8E4M3) bits = FloatToF8E4M3(number);
    if (type == DType::kF8E5M2) bits = FloatToF8E5M2(number);
    if (type == DType::kF16) {  // a sign, an exponent of 2^-1 to 2^-4, and a fraction
      const uint32_t draw = random();
      bits = (draw & 0x83ffu) | ((11 + (draw >> 16) % 4) << 10);
    }
    std::memcpy(&bytes[at], &bits, element);
  }
  return bytes;
}

class Tuner {
 public:
  explicit Tuner(Device* device) : device_(device) {}

  absl::Status Start(const std::vector<Shape>& shapes) {
    ASSIGN_OR_RETURN(std::unique_ptr<MatrixProducts> products, MatrixProducts::Create(device_));
    products_ = std::move(products);
    int64_t x = 0, out = 0, weight = kWeightBytes, vector = 0;  // a vector: a bias, or scales
    for (const Shape& s : shapes) {
      x = std::max(x, Bytes(s.m * s.k, s.in));
      out = std::max(out, Bytes(s.m * s.n, s.out));
      weight = std::max(weight, Bytes(s.n * s.k, s.in));
      vector = std::max({vector, Bytes(s.n, DType::kF32), Bytes(s.m, DType::kF32)});
    }
    const std::pair<DeviceMemory*, int64_t> allocations[] = {
        {&x_, x}, {&out_, out}, {&weights_, weight}, {&bias_, vector}};
    for (const auto& [memory, bytes] : allocations) {
      ASSIGN_OR_RETURN(DeviceMemory allocated, device_->Allocate(bytes));
      *memory = std::move(allocated);
    }
    return absl::OkStatus();
  }

  uint64_t version() const { return products_->version(); }

  // The proposal to use.
  absl::StatusOr<int> Tune(const Shape& shape) {
    RETURN_IF_ERROR(Fill(shape.in));
    ASSIGN_OR_RETURN(const int count, products_->CountProposals(shape));
    std::vector<Candidate> candidates;
    int repeats = 0;
    for (int i = 0; i < count; ++i) {
      products_->Choose(shape, i);
      // Outside of the capture first: kernels are loaded when they are first needed. Some proposals do not work.
      const absl::StatusOr<double> once = TimeOnce(shape);
      if (!once.ok() && i > 0) continue;
      if (!once.ok()) return once.status();
      if (i == 0) repeats = static_cast<int>(std::clamp(kRunSeconds / *once, 1.0, kMostInGraph));
      ASSIGN_OR_RETURN(DeviceGraph graph, Capture(shape, repeats));
      Candidate candidate{.proposal = i, .graph = std::move(graph), .seconds = {}};
      for (int run = 0; run < kRuns; ++run) {
        RETURN_IF_ERROR(Time(&candidate));
      }
      candidates.push_back(std::move(candidate));
    }
    return BestOf(&candidates);
  }

 private:
  struct Candidate {
    int proposal = 0;
    DeviceGraph graph;
    std::vector<double> seconds;
  };

  // All operands, with numbers of the type; a bias or residual of another type gets what these bytes are to it.
  absl::Status Fill(DType type) {
    if (filled_ && type == type_) return absl::OkStatus();
    const std::string random = RandomNumbersOf(type);
    for (DeviceMemory* memory : {&x_, &out_, &weights_, &bias_}) {
      int64_t done = std::min<int64_t>(memory->bytes(), static_cast<int64_t>(random.size()));
      absl::Status status = device_->CopyToDevice(memory->data(), random.data(), done);
      for (; status.ok() && done < memory->bytes(); done = std::min(2 * done, memory->bytes())) {
        status = device_->CopyOnDevice(memory->data() + static_cast<DevicePointer>(done), memory->data(),
                                       std::min(done, memory->bytes() - done));
      }
      if (!status.ok()) return status;
    }
    filled_ = true;
    type_ = type;
    return device_->Synchronize();
  }

  // Each time with a weight in another place.
  absl::Status Multiply(const Shape& shape, int run) {
    const int64_t bytes = (Bytes(shape.n * shape.k, shape.in) + 255) / 256 * 256;
    const int64_t places = std::max<int64_t>(weights_.bytes() / bytes, 1);
    return products_->Multiply(shape, {.out = out_.data(),
                                       .x = x_.data(),
                                       .weight = weights_.data() + static_cast<DevicePointer>(run % places * bytes),
                                       .bias = bias_.data(),
                                       .residual = out_.data(),
                                       .x_scale = bias_.data(),
                                       .weight_scale = bias_.data()});
  }

  absl::StatusOr<double> TimeOnce(const Shape& shape) {
    absl::Status status = Multiply(shape, 0);
    if (!status.ok()) return status;
    ASSIGN_OR_RETURN(DeviceEvent begin, device_->Mark());
    status = Multiply(shape, 1);
    absl::StatusOr<DeviceEvent> end = device_->Mark();
    if (!status.ok()) return status;
    if (!end.ok()) return end.status();
    ASSIGN_OR_RETURN(const double seconds, device_->SecondsBetween(begin, *end));
    return std::max(seconds, 1e-6);
  }

  // Something else runs between two products, as it does in a step: some begin early behind their own kind.
  absl::StatusOr<DeviceGraph> Capture(const Shape& shape, int repeats) {
    RETURN_IF_ERROR(device_->BeginCapture());
    absl::Status enqueued;
    for (int i = 0; i < repeats && enqueued.ok(); ++i) {
      enqueued = device_->FillBytes(bias_.data(), 0, 4);
      if (enqueued.ok()) enqueued = Multiply(shape, i);
    }
    absl::StatusOr<DeviceGraph> graph = device_->EndCapture();
    if (!enqueued.ok()) return enqueued;
    return graph;
  }

  absl::Status Time(Candidate* candidate) {
    ASSIGN_OR_RETURN(DeviceEvent begin, device_->Mark());
    RETURN_IF_ERROR(device_->Launch(candidate->graph));
    ASSIGN_OR_RETURN(DeviceEvent end, device_->Mark());
    ASSIGN_OR_RETURN(const double seconds, device_->SecondsBetween(begin, end));
    candidate->seconds.push_back(seconds);
    return absl::OkStatus();
  }

  // The clock changes with heat and power, so the best and the first run in turn before one is believed.
  absl::StatusOr<int> BestOf(std::vector<Candidate>* candidates) {
    const auto least = [](const Candidate& c) { return *std::min_element(c.seconds.begin(), c.seconds.end()); };
    const auto best = std::min_element(candidates->begin(), candidates->end(),
                                       [&](const auto& a, const auto& b) { return least(a) < least(b); });
    Candidate& first = candidates->front();
    if (best == candidates->begin() || least(*best) > (1 - kLeastGain) * least(first)) return 0;
    const auto median = [](Candidate* c) {
      std::sort(c->seconds.begin(), c->seconds.end());
      return c->seconds[c->seconds.size() / 2];
    };
    best->seconds.clear();
    first.seconds.clear();
    for (int run = 0; run < kContestRuns; ++run) {
      for (Candidate* candidate : {&first, &*best}) {
        RETURN_IF_ERROR(Time(candidate));
      }
    }
    return median(&*best) <= (1 - kLeastGain) * median(&first) ? best->proposal : 0;
  }

  Device* device_;
  std::unique_ptr<MatrixProducts> products_;
  DeviceMemory x_, out_, weights_, bias_;
  bool filled_ = false;
  DType type_ = DType::kBF16;
};

plan::TunedProduct Describe(const Shape& shape, int proposal) {
  plan::TunedProduct product;
  product.set_m(shape.m);
  product.set_n(shape.n);
  product.set_k(shape.k);
  product.set_in_dtype(std::string(DTypeName(shape.in)));
  product.set_out_dtype(std::string(DTypeName(shape.out)));
  product.set_transposed(shape.transposed);
  product.set_bias(shape.bias);
  product.set_residual(shape.residual);
  product.set_gelu_tanh(shape.gelu_tanh);
  product.set_scales(static_cast<plan::FactorScales>(shape.scales));
  product.set_tf32(shape.tf32);
  product.set_proposal(static_cast<uint32_t>(proposal));
  return product;
}

// Of a Gemm or a TunedProduct.
template <class Message>
absl::StatusOr<Shape> MakeShape(const Message& product, int64_t m, int64_t n, int64_t k) {
  const absl::StatusOr<DType> in = ParseDType(product.in_dtype());
  const absl::StatusOr<DType> out = ParseDType(product.out_dtype());
  if (!in.ok()) return in.status();
  if (!out.ok()) return out.status();
  return Shape{.m = m,
               .n = n,
               .k = k,
               .in = *in,
               .out = *out,
               .transposed = product.transposed(),
               .bias = product.bias(),
               .residual = product.residual(),
               .gelu_tanh = product.gelu_tanh(),
               .scales = static_cast<Shape::Scales>(product.scales()),
               .tf32 = product.tf32()};
}

}  // namespace

static_assert(static_cast<int>(Shape::Scales::kOfAll) == plan::SCALE_OF_ALL &&
                  static_cast<int>(Shape::Scales::kOfRows) == plan::SCALES_OF_ROWS,
              "the numbers of a plan");
static_assert(MatrixProducts::kMaxProposals == plan::kMaxProposals, "a plan names one of the proposals");

absl::StatusOr<Shape> ShapeOf(const plan::Gemm& gemm, int64_t m, int64_t n, int64_t k) {
  return MakeShape(gemm, m, n, k);
}

std::vector<Shape> ProductsToTune(const TargetCode& code, absl::Span<const StepDims> sizes) {
  std::set<Shape> shapes;
  const std::vector<const plan::Program*> programs = code.programs();
  for (const KnownStep& known : KnownSteps(code, sizes)) {
    for (const plan::Task& step : programs[ChooseProgram(programs, known.dims, known.decodes)]->tasks()) {
      if (!step.has_gemm() || step.gemm().batch() != "1") continue;
      const plan::Gemm& gemm = step.gemm();
      const absl::StatusOr<Shape> shape =
          ShapeOf(gemm, SizeOf(gemm.m(), known.dims), SizeOf(gemm.n(), known.dims), SizeOf(gemm.k(), known.dims));
      if (shape.ok() && shape->m > 0 && shape->n > 0 && shape->k > 0) shapes.insert(*shape);
    }
  }
  return {shapes.begin(), shapes.end()};
}

absl::StatusOr<plan::TunedProducts> TuneProducts(const TargetCode& code, absl::Span<const StepDims> sizes,
                                                 Device* device, absl::FunctionRef<void(int64_t, int64_t)> on_product) {
  std::vector<Shape> shapes = ProductsToTune(code, sizes);
  if (shapes.size() > plan::kMaxTunedProducts) shapes.resize(plan::kMaxTunedProducts);
  std::stable_sort(shapes.begin(), shapes.end(), [](const Shape& a, const Shape& b) { return a.in < b.in; });
  plan::TunedProducts tuned;
  tuned.set_gpu(device->name());
  Tuner tuner(device);
  RETURN_IF_ERROR(tuner.Start(shapes));
  tuned.set_library(tuner.version());
  tuned.set_timed(static_cast<uint32_t>(shapes.size()));
  for (size_t i = 0; i < shapes.size(); ++i) {
    ASSIGN_OR_RETURN(const int best, tuner.Tune(shapes[i]));
    if (best > 0) *tuned.add_products() = Describe(shapes[i], best);
    on_product(static_cast<int64_t>(i) + 1, static_cast<int64_t>(shapes.size()));
  }
  return tuned;
}

void UseTuning(const plan::TunedProducts& tuned, const Device& device, MatrixProducts* products) {
  if (tuned.gpu() != device.name() || tuned.library() != products->version()) return;
  for (const plan::TunedProduct& product : tuned.products()) {
    const absl::StatusOr<Shape> shape = MakeShape(product, product.m(), product.n(), product.k());
    if (shape.ok()) products->Choose(*shape, static_cast<int>(product.proposal()));
  }
}

}  // namespace llmc
