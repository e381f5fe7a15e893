#include "codegen/memory/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "ir/ops.h"
#include "runtime/plan/plan_text.h"

namespace llmc {
namespace {

using ::testing::HasSubstr;

struct Fixture {
  Model model;
  Step* step;
  DimEnv bounds;
  Fixture() {
    model.dims["T"] = 100;
    model.dims["U"] = 50;
    bounds = {{"T", 100}, {"U", 50}};
    model.steps.push_back(std::make_unique<Step>());
    step = model.steps[0].get();
  }
};
const Dim kT = Dim::Symbol("T");
const Dim kU = Dim::Symbol("U");

plan::Program Planned(const Step& step, const DimEnv& bounds) {
  absl::StatusOr<plan::Program> program = PlanMemory(step, bounds, UnitsOf(step));
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? *std::move(program) : plan::Program();
}

// -1 if a dim is negative there: the run would be an error.
int64_t BytesAt(const TensorType& type, const DimEnv& sizes) {
  int64_t bytes = DTypeBits(type.dtype) / 8;
  for (const Dim& dim : type.shape) {
    const int64_t size = *dim.Evaluate(sizes);
    if (size < 0) return -1;
    bytes *= size;
  }
  return bytes;
}

// Runs the steps, with some sizes of the dims, on an arena in which each 256-byte block remembers the value that was
// written there last. A node must find its operands whole, the outputs must be whole at the end. Knows nothing of
// lifetimes.
class ArenaSimulation {
 public:
  ArenaSimulation(const plan::Program& program, const DimEnv& sizes)
      : sizes_(sizes), blocks_(program.arena_bytes() / kBufferAlignment + 1) {
    for (const plan::Buffer& buffer : program.buffers()) {
      for (const std::string& value : buffer.values()) buffers_[value] = &buffer;
    }
  }

  void Run(const Step& step) {
    for (const Value* param : step.params) Write(param);
    for (const auto& node : step.block.nodes) {
      for (const Value* operand : node->operands) Read(operand, node->results[0]->name);
      for (const Value* result : node->results) {
        if (Is<Reshape>(node.get()) && buffers_.at(result->name) == Find(node->operands[0])) {
          root_[result] = Root(node->operands[0]);
        } else {
          Write(result);
        }
      }
    }
    for (const Output& output : step.outputs) Read(output.value, "return");
  }

 private:
  const plan::Buffer* Find(const Value* value) {
    auto it = buffers_.find(value->name);
    return it == buffers_.end() ? nullptr : it->second;
  }
  const Value* Root(const Value* value) { return root_.contains(value) ? root_[value] : value; }
  void Write(const Value* value) {
    const plan::Buffer* buffer = Find(value);
    ASSERT_NE(buffer, nullptr) << value->name;
    const uint64_t bytes = static_cast<uint64_t>(BytesAt(value->type, sizes_));
    ASSERT_LE(bytes, buffer->bytes()) << value->name << ": " << value->type.ToString();
    const uint64_t begin = buffer->offset() / kBufferAlignment;
    for (uint64_t b = begin; b * kBufferAlignment < buffer->offset() + bytes; ++b) blocks_.at(b) = value;
  }
  void Read(const Value* value, const std::string& reader) {
    const plan::Buffer* buffer = Find(value);
    if (buffer == nullptr) return;  // a weight
    const uint64_t bytes = static_cast<uint64_t>(BytesAt(value->type, sizes_));
    const uint64_t begin = buffer->offset() / kBufferAlignment;
    for (uint64_t b = begin; b * kBufferAlignment < buffer->offset() + bytes; ++b) {
      ASSERT_EQ(blocks_.at(b), Root(value)) << reader << " finds " << value->name << " overwritten";
    }
  }

  const DimEnv& sizes_;
  std::vector<const Value*> blocks_;
  std::map<std::string, const plan::Buffer*> buffers_;
  std::map<const Value*, const Value*> root_;
};

// Chains and residuals of elementwise ops, views, and ops that change the size, to sums, differences and quotients.
void AddRandomNodes(Fixture* f, std::mt19937* rng, int count) {
  std::vector<Value*> values;
  for (int i = 0; i < 3; ++i) {
    values.push_back(f->model.AddParam(f->step, absl::StrCat("%p", i),
                                       {DType::kF32, {kT, Dim(1 + static_cast<int>((*rng)() % 40))}}));
  }
  Builder b(&f->model, &f->step->block);
  for (int i = 0; i < count; ++i) {
    // Mostly recent values, so that others die.
    const size_t back = std::min<size_t>(values.size(), (*rng)() % 4 ? 3 : values.size());
    Value* x = values[values.size() - 1 - (*rng)() % back];
    Value* y = nullptr;
    for (size_t j = values.size(); j-- > 0;) {
      if (values[j] != x && values[j]->type == x->type && (*rng)() % 2) y = values[j];
    }
    switch ((*rng)() % 8) {
      case 0:
        values.push_back(b.Add(Reshape{.x = x, .shape = {Product(x->type.shape)}}));
        break;
      case 1:
        values.push_back(b.Add(Concat{.parts = {x, x}, .axis = 0}));
        break;
      case 2:
        values.push_back(b.Add(Reshape{.x = x, .shape = {Dim(1), Product(x->type.shape)}}));
        break;
      case 3:
        values.push_back(b.Add(
            Transpose{.x = x, .perm = x->type.rank() == 2 ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{0}}));
        break;
      case 4:  // x[U:]
        values.push_back(b.Add(Slice{.x = x, .axis = 0, .start = {kU}, .end = {x->type.shape[0]}}));
        break;
      case 5:  // x[:n / 3]
        values.push_back(b.Add(
            Slice{.x = x, .axis = 0, .start = {Dim(0)}, .end = {Dim::FloorDiv(x->type.shape[0] + Dim(2), Dim(3))}}));
        break;
      default:
        values.push_back(y == nullptr ? b.Add(Neg{.x = x}) : b.Add(Add{.lhs = x, .rhs = y}));
    }
    ASSERT_TRUE(b.status().ok()) << b.status();
    if (values.back()->type.rank() > 2) values.pop_back();
  }
  f->step->outputs = {{"a", values.back()}, {"b", values[values.size() / 2]}, {"c", values[0]}};
}

std::vector<BufferRange> RangesOf(const plan::Program& program) {
  std::vector<BufferRange> ranges;
  for (const plan::Buffer& b : program.buffers()) {
    ranges.push_back(
        {static_cast<int64_t>(b.bytes()), b.first_task(), b.last_task(), static_cast<int64_t>(b.offset())});
  }
  return ranges;
}

bool RunsAt(const Step& step, const DimEnv& sizes) {
  for (const auto& node : step.block.nodes) {
    if (BytesAt(node->results[0]->type, sizes) < 0) return false;
  }
  return true;
}

TEST(MemoryPlanTest, NothingIsOverwrittenOnRandomGraphs) {
  int shared = 0, below_the_bounds = 0;
  for (uint32_t seed = 0; seed < 120; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 rng(seed);
    Fixture f;
    f.bounds = {{"T", 1 + rng() % 200}, {"U", 1 + rng() % 50}};
    AddRandomNodes(&f, &rng, 40);
    const plan::Program program = Planned(*f.step, f.bounds);
    if (!program.unplanned().empty() || !program.sample().empty()) continue;  // concat after concat grows fast
    for (int setting = 0; setting < 8; ++setting) {
      DimEnv sizes = f.bounds;
      if (setting > 0) {
        for (auto& [name, size] : sizes) size = static_cast<int64_t>(rng() % static_cast<uint64_t>(size + 1));
      }
      if (!RunsAt(*f.step, sizes)) continue;
      below_the_bounds += setting > 0;
      ArenaSimulation(program, sizes).Run(*f.step);
      if (HasFailure()) return;
    }
    EXPECT_TRUE(CheckNoOverlap(RangesOf(program)).ok()) << CheckNoOverlap(RangesOf(program));
    EXPECT_GE(program.arena_bytes(), program.lower_bound_bytes());
    for (const plan::Buffer& buffer : program.buffers()) shared += buffer.values_size() > 1;
  }
  EXPECT_GT(shared, 200);
  EXPECT_GT(below_the_bounds, 200);
}

TEST(MemoryPlanTest, ADifferenceTakesItsMostNotItsSizeAtTheBounds) {
  Fixture f;
  f.bounds = {{"T", 64}, {"U", 64}};
  Value* x = f.model.AddParam(f.step, "%x", {DType::kF32, {kT}});
  Builder b(&f.model, &f.step->block);
  Value* s = b.Add(Slice{.x = x, .axis = 0, .start = {kU}, .end = {kT}}, "%s");
  f.step->outputs = {{"s", s}, {"x", x}};
  const plan::Program program = Planned(*f.step, f.bounds);
  ASSERT_EQ(program.buffers_size(), 2);
  EXPECT_EQ(program.buffers(1).size(), "4*T - 4*U");
  EXPECT_EQ(program.buffers(1).bytes(), 256u);
  EXPECT_NE(program.buffers(1).offset(), program.buffers(0).offset());
}

TEST(MemoryPlanTest, RandomBuffersDoNotOverlap) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 rng(seed);
    std::vector<BufferRange> buffers(1 + rng() % 80);
    for (BufferRange& b : buffers) {
      b.bytes = rng() % 5000;
      b.first = rng() % 50;
      b.last = b.first + rng() % 8;
    }
    const int64_t arena = AssignOffsets(&buffers);
    EXPECT_TRUE(CheckNoOverlap(buffers).ok()) << CheckNoOverlap(buffers);
    EXPECT_GE(arena, LowerBound(buffers));
    for (const BufferRange& b : buffers) EXPECT_LE(b.offset + b.bytes, arena);
  }
}

// What llmc promises for a program of 10^5 steps, and for one whose buffers all live at once.
TEST(MemoryPlanTest, AHundredThousandBuffersTakeSeconds) {
  for (const int64_t lifetime : {5, 100, 1000000}) {
    std::mt19937 rng(1);
    std::vector<BufferRange> buffers(100000);
    for (size_t i = 0; i < buffers.size(); ++i) {
      buffers[i].bytes = 1 + rng() % (1 << 20);
      buffers[i].first = static_cast<int64_t>(i);
      buffers[i].last = buffers[i].first + 1 + rng() % lifetime;
    }
    const auto start = std::chrono::steady_clock::now();
    const int64_t arena = AssignOffsets(&buffers);
    EXPECT_TRUE(CheckNoOverlap(buffers).ok()) << CheckNoOverlap(buffers);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 20) << "in a debug build on a busy machine; about a tenth of it is normal";
    EXPECT_GE(arena, LowerBound(buffers));
    RecordProperty(absl::StrCat("milliseconds_", lifetime), static_cast<int>(seconds.count() * 1e3));
    EXPECT_LT(static_cast<double>(arena), 1.2 * static_cast<double>(LowerBound(buffers))) << lifetime;
  }
}

TEST(MemoryPlanTest, ChecksOverlaps) {
  EXPECT_TRUE(CheckNoOverlap({{512, 0, 1, 0}, {512, 1, 2, 512}, {512, 2, 3, 0}}).ok());
  EXPECT_FALSE(CheckNoOverlap({{512, 0, 1, 0}, {512, 1, 2, 256}}).ok());
  EXPECT_FALSE(CheckNoOverlap({{512, 0, 1, 100}}).ok());
  EXPECT_TRUE(CheckNoOverlap({{512, 0, 9, 0}, {0, 0, 9, 0}, {512, 3, 4, 512}, {256, 5, 6, 768}}).ok());
  EXPECT_FALSE(CheckNoOverlap({{4096, 0, 9, 0}, {256, 3, 4, 8192}, {256, 5, 6, 1024}}).ok());
}

// The check against one that looks at every pair.
TEST(MemoryPlanTest, ChecksRandomOverlaps) {
  int overlapping = 0;
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 rng(seed);
    std::vector<BufferRange> buffers(2 + rng() % 6);
    for (BufferRange& b : buffers) {
      b.bytes = rng() % 600;
      b.first = rng() % 10;
      b.last = b.first + rng() % 4;
      b.offset = static_cast<int64_t>(rng() % 12) * kBufferAlignment;
    }
    bool overlap = false;
    for (const BufferRange& a : buffers) {
      for (const BufferRange& b : buffers) {
        overlap |= &a != &b && a.first <= b.last && b.first <= a.last &&
                   std::max(a.offset, b.offset) < std::min(a.offset + a.bytes, b.offset + b.bytes);
      }
    }
    overlapping += overlap;
    ASSERT_EQ(CheckNoOverlap(buffers).ok(), !overlap) << seed;
  }
  EXPECT_GT(overlapping, 500);
  EXPECT_LT(overlapping, 1500);
}

TEST(MemoryPlanTest, ReusesTheOperandThatDies) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", {DType::kF32, {kT, 64}});
  Builder b(&f.model, &f.step->block);
  Value* n = b.Add(Neg{.x = x}, "%n");  // not in place: a parameter
  Value* e = b.Add(Exp{.x = n}, "%e");  // in place of n
  Value* v = b.Add(Reshape{.x = e, .shape = {kT * Dim(64)}}, "%v");
  Value* s = b.Add(Add{.lhs = e, .rhs = x}, "%s");   // not in place: v is read later
  Value* l = b.Add(Less{.lhs = s, .rhs = x}, "%l");  // not in place: bool is smaller
  Value* t = b.Add(Sqrt{.x = v}, "%t");              // in place of v
  f.step->outputs = {{"t", t}, {"s", s}, {"l", l}};
  const plan::Program program = Planned(*f.step, f.bounds);
  std::vector<std::string> groups;
  for (const plan::Buffer& buffer : program.buffers()) {
    std::string group;
    for (const std::string& value : buffer.values()) absl::StrAppend(&group, value);
    groups.push_back(group);
  }
  EXPECT_THAT(groups, ::testing::ElementsAre("%x", "%n%e%v%t", "%s", "%l"));
  EXPECT_EQ(program.buffers(0).size(), (kT * Dim(256)).ToString());
  EXPECT_EQ(program.buffers(0).bytes(), 25600u);
  EXPECT_EQ(program.buffers(1).last_task(), 6u);
  // Three tensors of 25,600 bytes, and 6,400 bytes of bools.
  EXPECT_EQ(program.lower_bound_bytes(), 83200u);
  EXPECT_EQ(program.arena_bytes(), 83200u);
  const std::string text = ProgramText(program);
  EXPECT_THAT(text, HasSubstr("bounds T <= 100, U <= 50\npeak 83200 bytes, lower bound 83200 bytes, ratio 1.000\n"));
  EXPECT_THAT(text, HasSubstr("    1  %e = exp %n"));
  EXPECT_THAT(text, HasSubstr("%n, %e, %v, %t"));
}

TEST(MemoryPlanTest, WeightsAndStatesAreNotInTheArena) {
  Fixture f;
  Value* w = f.model.AddWeight("@w", {DType::kF32, {kT, 64}}, "");
  Builder b(&f.model, &f.step->block);
  Value* e = b.Add(Exp{.x = w}, "%e");
  f.step->outputs = {{"e", e}};
  const plan::Program program = Planned(*f.step, f.bounds);
  ASSERT_EQ(program.buffers_size(), 1);
  EXPECT_EQ(program.buffers(0).name(), "%e");
}

TEST(MemoryPlanTest, ParametersStayAsTheyWereGiven) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", {DType::kF32, {kT, 64}});
  Builder b(&f.model, &f.step->block);
  f.step->outputs = {{"n", b.Add(Neg{.x = x}, "%n")}};
  EXPECT_EQ(Planned(*f.step, f.bounds).buffers_size(), 2);
}

TEST(MemoryPlanTest, SizesThatAreTooLargeGiveASample) {
  Fixture f;
  f.bounds["T"] = int64_t{1} << 40;
  Value* x = f.model.AddParam(f.step, "%x", {DType::kF32, {kT, kU}});
  f.step->outputs = {{"x", x}};
  const plan::Program program = Planned(*f.step, f.bounds);
  EXPECT_EQ(program.unplanned(), "");
  EXPECT_THAT(program.sample(), HasSubstr("%x: f32[T, U] is too large at the bounds"));
  EXPECT_EQ(program.bounds(0).max(), 128);
  EXPECT_EQ(program.bounds(1).max(), 50);
  EXPECT_EQ(program.buffers(0).bytes(), 4u * 128 * 50);
  EXPECT_EQ(program.arena_bytes(), 4u * 128 * 50);
  EXPECT_THAT(ProgramText(program), HasSubstr("bounds T <= 128, U <= 50\na sample for these bounds: %x"));
  EXPECT_THAT(ProgramText(program), HasSubstr("--bound NAME=MAX"));
}

TEST(MemoryPlanTest, ASampleThatIsTooLargeIsMadeSmaller) {
  Fixture f;
  f.bounds = {{"T", 1000000}, {"U", 3}};
  Value* x = f.model.AddParam(f.step, "%x", {DType::kF32, {kT, kT, kT, kT, kT, kT}});
  f.step->outputs = {{"x", x}};
  const plan::Program program = Planned(*f.step, f.bounds);
  EXPECT_THAT(program.sample(), HasSubstr("%x: f32[T, T, T, T, T, T] is too large"));
  EXPECT_EQ(program.bounds(0).max(), 16);
  EXPECT_EQ(program.bounds(1).max(), 3);
  EXPECT_EQ(program.arena_bytes(), uint64_t{4} << 24);
}

TEST(MemoryPlanTest, SizesThatAreTooLargeEvenForASampleAreSaid) {
  Fixture f;
  Value* x = f.model.AddParam(f.step, "%x", {DType::kF32, {kT, Dim(int64_t{1} << 40)}});
  f.step->outputs = {{"x", x}};
  const plan::Program program = Planned(*f.step, f.bounds);
  EXPECT_THAT(program.unplanned(), HasSubstr("%x: f32[T, 1099511627776] is too large"));
  EXPECT_EQ(program.sample(), "");
  EXPECT_THAT(ProgramText(program), HasSubstr("no memory plan: %x"));
}

// Each fits, all of them do not.
TEST(MemoryPlanTest, AStepThatIsTooLargeGivesASample) {
  Fixture f;
  f.bounds["T"] = int64_t{1} << 37;
  for (int i = 0; i < 3; ++i) f.model.AddParam(f.step, "%x", {DType::kF32, {kT}});
  const plan::Program program = Planned(*f.step, f.bounds);
  EXPECT_THAT(program.sample(), HasSubstr("the step needs 1649267441664 bytes"));
  EXPECT_EQ(program.arena_bytes(), 3u * 512);
}

}  // namespace
}  // namespace llmc
