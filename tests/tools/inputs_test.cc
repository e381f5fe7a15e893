// The inputs and outputs of `llmc run`: NumPy's files, random inputs, types, names, times; and models in folders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/formats/numpy_file.h"
#include "frontend/formats/safetensors.h"
#include "tests/frontend/onnx_builder.h"
#include "tests/tools/run_command.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

const std::string kNumpy = LLMC_TEST_DATA "/numpy";  // written by NumPy 2.4

std::string WriteInputBytes(const std::string& name, const std::string& bytes) {
  const std::string path = TempFolder() + "/" + name;
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// ---- NumPy's files --------------------------------------------------------------
TEST(Numpy, ReadsWhatNumpyWrites) {
  const auto floats = ReadNpy(kNumpy + "/c_order.npy");
  ASSERT_TRUE(floats.ok()) << floats.status();
  EXPECT_EQ(*floats, Tensor::FromValues(DType::kF32, {2, 3}, std::vector<double>{0, 0.5, 1, 1.5, 2, 2.5}));
  const auto fortran = ReadNpy(kNumpy + "/fortran_order.npy");
  ASSERT_TRUE(fortran.ok()) << fortran.status();
  ASSERT_EQ(fortran->shape(), (Shape{2, 3, 4}));
  for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(fortran->GetInt(i), i);
  for (const char* name : {"/version_2.npy", "/version_3.npy"}) {
    const auto tensor = ReadNpy(kNumpy + name);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(*tensor, Tensor::FromValues(DType::kBool, {1, 2}, std::vector<int64_t>{1, 0}));
  }
  EXPECT_EQ(*ReadNpy(kNumpy + "/scalar.npy"), Tensor::FromValues(DType::kI32, {}, std::vector<int64_t>{7}));
  EXPECT_EQ(*ReadNpy(kNumpy + "/u4.npy"), Tensor::FromValues(DType::kI64, {2}, std::vector<int64_t>{1, 4294967295}));
  const auto stored = ReadNpz(kNumpy + "/stored.npz");
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->size(), 2u);
  EXPECT_EQ(stored->at("x"), *floats);
  EXPECT_EQ(stored->at("ids"), Tensor::FromValues(DType::kI32, {1, 2}, std::vector<int64_t>{1, 2}));
  const auto deflated = ReadNpz(kNumpy + "/deflated.npz");
  ASSERT_TRUE(deflated.ok()) << deflated.status();
  EXPECT_EQ(deflated->at("x"), *floats);
  EXPECT_EQ(deflated->at("zeros"), Tensor(DType::kF64, {100, 100}));
}

std::string NpyError(const std::string& bytes) {
  return std::string(ReadNpy(WriteInputBytes("wrong.npy", bytes)).status().message());
}
// Version 1, with that header and those elements.
std::string Npy(const std::string& header, const std::string& elements) {
  const char length[2] = {static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  return absl::StrCat(absl::string_view("\x93NUMPY\x01\0", 8), absl::string_view(length, 2), header, elements);
}

TEST(Numpy, RefusesWhatIsNone) {
  const std::string good = "{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }\n";
  EXPECT_EQ(NpyError(Npy(good, "ab")), "");
  const std::pair<std::string, std::string> wrong[] = {
      {"", "does not begin as one"},
      {"\x93NUMPY", "does not begin as one"},
      {Npy(good, "a"), "it has 1 bytes of elements, and |u1[2] has 2"},
      {Npy(good, "abc"), "it has 3 bytes of elements"},
      {Npy(good, "ab").replace(6, 1, "\x04"), "its version is 4.0"},
      {Npy(good, "ab").replace(8, 2, "\xff\xff"), "its header is longer than the file"},
      {Npy("{'descr': '|u1', 'shape': (2,)}", "ab"), "lacks descr, fortran_order or shape"},
      {Npy("{'descr': '|u1', 'descr': '|u1', 'fortran_order': False, 'shape': (2,)}", "ab"), "member \"descr\""},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), 'x': 1}", "ab"), "member \"x\""},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2)}", "ab"), "member \"shape\""},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-2,)}", "ab"), "member \"shape\""},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999999999999,)}", "ab"), "member \"shape\""},
      {Npy("{'descr': '<f8', 'fortran_order': True, 'shape': (4294967296, 4294967296)}", ""), ""},
      {Npy("{'descr': '|u1', 'fortran_order': 1, 'shape': (2,)}", "ab"), "member \"fortran_order\""},
      {Npy("{'descr': '|u1', 'fortran_order': False, 'shape': (2,)} x", "ab"), "something stands behind its header"},
      {Npy("{'descr': [('a', '|u1')], 'fortran_order': False, 'shape': (2,)}", "ab"), "member \"descr\""},
      {Npy("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", "\x01\x02"), "neither 0 nor 1"},
      {ReadFile(kNumpy + "/big_endian.npy"), "\">f4\", which is not read; write little-endian"},
      {ReadFile(kNumpy + "/text.npy"), "\"<U1\", which is not read"},
      {ReadFile(kNumpy + "/pickled.npy"), "\"|O\", which is not read"},
      {ReadFile(kNumpy + "/u8.npy"), "holds 9223372036854775808"},
  };
  for (const auto& [bytes, error] : wrong) {
    const std::string said = NpyError(bytes);
    EXPECT_NE(said, "") << error;
    EXPECT_THAT(said, HasSubstr(error));
  }
  // Any byte may be wrong, and any end may be missing.
  const std::string whole = ReadFile(kNumpy + "/fortran_order.npy");
  for (size_t i = 0; i < 128; ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x15);
    NpyError(bytes);
    EXPECT_NE(NpyError(whole.substr(0, i)), "");
  }
}

// A mask that is added to scores: only a program that takes its cache as tensors reads one.
TEST(Numpy, FloatMasksOfPagedPlansAreRefusedWithARemedy) {
  const std::string plan = TempFolder() + "/float_mask.bin";
  ASSERT_EQ(RunLlmc({"compile", LLMC_TEST_DATA "/tale-7m/model.onnx", "-o", plan, "--target=host"}).exit_code, 0);
  const std::string ids = WriteInputBytes(
      "ids.npy", Npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1, 2)}", std::string(16, '\0')));
  const std::string mask = WriteInputBytes(
      "mask.npy", Npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)}", std::string(8, '\0')));
  const CommandResult run = RunLlmc({"run", plan, "--input", "input_ids=" + ids, "--input", "attention_mask=" + mask});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("attention_mask is f32, must be i64"));
  EXPECT_THAT(run.err, HasSubstr("compile it with --no-paginate"));
}

TEST(Numpy, ZipsAreNotTrusted) {
  const auto error_of = [](const std::string& bytes) {
    return std::string(ReadNpz(WriteInputBytes("wrong.npz", bytes)).status().message());
  };
  EXPECT_THAT(error_of(""), HasSubstr("is no .npz file"));
  EXPECT_THAT(error_of(ReadFile(kNumpy + "/c_order.npy")), HasSubstr("is no .npz file"));
  const std::string stored = ReadFile(kNumpy + "/stored.npz"), deflated = ReadFile(kNumpy + "/deflated.npz");
  std::string flipped = stored;
  flipped[stored.find("NUMPY") + 140] ^= 1;  // an element: the checksum tells
  EXPECT_THAT(error_of(flipped), HasSubstr("CRC"));
  std::string renamed = stored;
  for (size_t at; (at = renamed.find("x.npy")) != std::string::npos;) renamed.replace(at, 5, "x.exe");
  EXPECT_THAT(error_of(renamed), HasSubstr("the member \"x.exe\" is no .npy file"));
  // Whatever byte is wrong, it ends.
  for (size_t i = 0; i < deflated.size(); ++i) {
    std::string bytes = deflated;
    bytes[i] = static_cast<char>(bytes[i] ^ 0xff);
    error_of(bytes);
    if (i % 16 == 0) {
      EXPECT_NE(error_of(deflated.substr(0, i)), "");
    }
  }
}

TEST(Numpy, WritesWhatItReads) {
  NamedTensors tensors = {
      {"a/b", Tensor::FromValues(DType::kI64, {2, 1}, std::vector<int64_t>{-1, 1})},
      {"empty", Tensor(DType::kF32, {0, 3})},
      {"narrow", Tensor::FromValues(DType::kBF16, {3}, std::vector<double>{1, -2, 0.5})},
      {"scalar", Tensor::FromValues(DType::kF64, {}, std::vector<double>{0.1})},
  };
  const std::string path = TempFolder() + "/written.npz";
  ASSERT_TRUE(WriteNpz(path, tensors).ok());
  const std::string once = ReadFile(path);
  ASSERT_TRUE(WriteNpz(path, tensors).ok());
  EXPECT_EQ(ReadFile(path), once);
  const auto read = ReadNpz(path);
  ASSERT_TRUE(read.ok()) << read.status();
  tensors["narrow"] = Tensor::FromValues(DType::kF32, {3}, std::vector<double>{1, -2, 0.5});  // NumPy has no bf16
  EXPECT_EQ(*read, tensors);
  const std::string one = TempFolder() + "/written.npy";
  ASSERT_TRUE(WriteNpy(one, *ReadNpy(kNumpy + "/c_order.npy")).ok());
  EXPECT_EQ(ReadFile(one), ReadFile(kNumpy + "/c_order.npy"));
}

// ---- runs -----------------------------------------------------------------------
void NameInputDim(onnx::ValueInfoProto* info, int axis, const std::string& name) {
  info->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(axis)->set_dim_param(name);
}

// ids i64[batch, sequence] of a table of 5 rows, mask i64[batch, sequence], x f32[2, 3]: rows f32[batch, sequence, 2],
// kept = ids * mask, y = x + x.
std::string WriteRunModel() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(18);
  onnx::GraphProto* graph = model.mutable_graph();
  graph->set_name("run");
  for (const char* name : {"input_ids", "attention_mask"}) {
    *graph->add_input() = Info(name, {1, 1}, onnx::TensorProto::INT64);
    NameInputDim(graph->mutable_input(graph->input_size() - 1), 0, "batch");
    NameInputDim(graph->mutable_input(graph->input_size() - 1), 1, "sequence");
  }
  *graph->add_input() = Info("x", {2, 3});
  onnx::TensorProto* table = AddFloats(&model, "table", {5, 2}, 0);
  for (int i = 0; i < 10; ++i) table->add_float_data(static_cast<float>(i));
  AddNode(&model, "Gather", {"table", "input_ids"}, {"rows"});
  AddNode(&model, "Mul", {"input_ids", "attention_mask"}, {"kept"});
  AddNode(&model, "Add", {"x", "x"}, {"y"});
  for (const auto& [name, type] : {std::pair("rows", onnx::TensorProto::FLOAT),
                                   {"kept", onnx::TensorProto::INT64},
                                   {"y", onnx::TensorProto::FLOAT}}) {
    *graph->add_output() = Info(name, {}, type);
    graph->mutable_output(graph->output_size() - 1)->mutable_type()->mutable_tensor_type()->clear_shape();
  }
  return WriteInputBytes("run.onnx", model.SerializeAsString());
}

std::string WriteInt32(const std::string& name, std::vector<int64_t> values) {
  const std::string path = TempFolder() + "/" + name;
  const auto size = static_cast<int64_t>(values.size());
  EXPECT_TRUE(WriteNpy(path, Tensor::FromValues(DType::kI32, {1, size}, values)).ok());
  return path;
}

TEST(Run, TakesAndGivesNumpyFiles) {
  const std::string model = WriteRunModel(), ids = WriteInt32("ids.npy", {4, 0}), mask = WriteInt32("mask.npy", {1, 1});
  const std::string out = TempFolder() + "/out.npz";
  const CommandResult result =
      RunLlmc({"run", model, "--input", "input_ids=" + ids, "--input", "attention_mask=" + mask, "--inputs",
               kNumpy + "/stored.npz", "--outputs", out});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("'input_ids' is converted from i32 to i64"));
  EXPECT_THAT(result.err, HasSubstr("stored.npz: not used, as no input has the name: 'ids'"));
  EXPECT_THAT(result.out, HasSubstr("rows  f32[1, 2, 2]\n  8, 9, 0, 1\n"));
  EXPECT_THAT(result.out, HasSubstr("kept  i64[1, 2]\n  4, 0\n"));
  EXPECT_THAT(result.out, HasSubstr("y  f32[2, 3]\n  0, 1, 2, 3, 4, 5\n"));
  const auto outputs = ReadNpz(out);
  ASSERT_TRUE(outputs.ok()) << outputs.status();
  EXPECT_EQ(outputs->at("kept"), Tensor::FromValues(DType::kI64, {1, 2}, std::vector<int64_t>{4, 0}));
  const std::vector<std::string> again = {"run",      model,
                                          "--input",  "input_ids=" + ids,
                                          "--input",  "attention_mask=" + mask,
                                          "--inputs", kNumpy + "/stored.npz"};
  std::vector<std::string> compared = again, single = again;
  compared.insert(compared.end(), {"--compare", out});
  EXPECT_EQ(RunLlmc(compared).exit_code, 0);
  single.insert(single.end(), {"--outputs", TempFolder() + "/one.npy"});
  EXPECT_THAT(RunLlmc(single).err, HasSubstr("a .npy file holds one array, and there are 3 outputs (kept, rows, y)"));
}

TEST(Run, NamesWhatIsMissingAndWhatWasMeant) {
  const std::string model = WriteRunModel(), file = TempFolder() + "/misspelt.npz";
  const Tensor ids(DType::kI64, {1, 2});
  ASSERT_TRUE(WriteNpz(file, {{"input_id", ids}, {"attention_mask", ids}, {"x", Tensor(DType::kF32, {2, 3})}}).ok());
  const CommandResult result = RunLlmc({"run", model, "--inputs", file});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("lacks the inputs 'input_ids' i64[batch, sequence]; not used: 'input_id' "
                                    "('input_id' may be 'input_ids')"));
  EXPECT_THAT(RunLlmc({"run", model}).err, HasSubstr("give --inputs FILE, --input NAME=FILE.npy, or --random"));
  const std::string floats = TempFolder() + "/floats.npy";
  ASSERT_TRUE(WriteNpy(floats, Tensor(DType::kF32, {1, 2})).ok());
  EXPECT_THAT(RunLlmc({"run", model, "--random", "--input", "input_ids=" + floats}).err,
              HasSubstr("'input_ids': it holds f32, and i64 is wanted"));
  EXPECT_THAT(RunLlmc({"run", model, "--inputs", floats}).err, HasSubstr("is one array, and the model has the inputs"));
  EXPECT_EQ(RunLlmc({"run", model, "--random=x"}).exit_code, 2);
  EXPECT_EQ(RunLlmc({"run", model, "--random", "--repeat", "0"}).exit_code, 2);
  EXPECT_EQ(RunLlmc({"run", model, "--input", "x=floats.txt"}).exit_code, 2);
}

TEST(Run, RandomInputsAreWhatModelsTake) {
  const std::string model = WriteRunModel(), plan = TempFolder() + "/run.bin", out = TempFolder() + "/random.npz";
  ASSERT_EQ(RunLlmc({"compile", model, "-o", plan, "--target=host"}).exit_code, 0);
  for (const std::string& runnable : {model, plan}) {
    const CommandResult result = RunLlmc({"run", runnable, "--random=3", "--dim", "batch=4", "--dim", "sequence=50",
                                          "--repeat", "3", "--outputs", out, "--json"});
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("random: input_ids  i64[4, 50]  from 0 to 4\n"));
    EXPECT_THAT(result.err, HasSubstr("random: attention_mask  i64[4, 50]  ones\n"));
    EXPECT_THAT(result.err, HasSubstr("random: x  f32[2, 3]  normal\n"));
    const auto time = result.Json()["time"];
    EXPECT_EQ(time["runs"], 3);
    EXPECT_LE(time["min_s"], time["median_s"]);
    EXPECT_LE(time["min_s"], time["first_s"]);
    const auto outputs = ReadNpz(out);
    ASSERT_TRUE(outputs.ok()) << outputs.status();
    int64_t most = 0;
    for (const int64_t id : outputs->at("kept").ToInts()) most = std::max(most, id);
    EXPECT_EQ(most, 4);  // the largest of 200 draws of five numbers
  }
  // The same seed gives the same numbers, another others.
  const auto printed = [&](const std::string& seed) { return RunLlmc({"run", model, seed}).out; };
  EXPECT_EQ(printed("--random"), printed("--random=0"));
  EXPECT_NE(printed("--random=1"), printed("--random=2"));
  EXPECT_THAT(printed("--random"), HasSubstr("kept  i64[1, 8]\n"));
  EXPECT_THAT(RunLlmc({"run", plan, "--random", "--dim", "rows=2"}).err, HasSubstr("its inputs have batch, sequence"));
  const CommandResult text = RunLlmc({"run", plan, "--random", "--repeat", "2"});
  EXPECT_THAT(text.out, HasSubstr("time of 2 runs: median "));
}

TEST(Run, LargeOutputsAreSummarized) {
  const std::string model = WriteInputBytes("sum.onnx", OneNode("Sqrt").SerializeAsString());
  onnx::ModelProto wide = OneNode("Sqrt");
  *wide.mutable_graph()->mutable_input(0) = Info("x", {4, 5});
  *wide.mutable_graph()->mutable_output(0) = Info("y", {4, 5});
  const std::string path = WriteInputBytes("wide.onnx", wide.SerializeAsString()), file = TempFolder() + "/wide.npy";
  Tensor x(DType::kF32, {4, 5});
  for (int64_t i = 0; i < 20; ++i) x.SetFloat(i, static_cast<double>(i * i));
  x.SetFloat(2, -1);
  ASSERT_TRUE(WriteNpy(file, x).ok());
  const CommandResult result = RunLlmc({"run", path, "--inputs", file, "--outputs", TempFolder() + "/roots.npy"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // Of 0, 1, 3, …, 19: 188 / 19.
  EXPECT_EQ(result.out, "y  f32[4, 5]\n  min 0  max 19  mean 9.894737  NaN 1  first 0, 1, nan, 3, 4, 5, …\n");
  const auto json = RunLlmc({"run", path, "--inputs", file, "--json"}).Json()["outputs"][0];
  EXPECT_EQ(json["nan"], 1);
  EXPECT_EQ(json["max"], 19);
  const auto roots = ReadNpy(TempFolder() + "/roots.npy");
  ASSERT_TRUE(roots.ok()) << roots.status();
  EXPECT_EQ(roots->GetFloat(19), 19);
  EXPECT_EQ(RunLlmc({"run", path, "--inputs", file, "--compare", TempFolder() + "/roots.npy"}).exit_code, 0);
}

TEST(Run, TheShippedModelTakesRandomTokens) {
  for (const std::string& model : {ShippedModel(), ShippedModel() + "/model.onnx"}) {
    const CommandResult result = RunLlmc({"run", model, "--random"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.err, HasSubstr("from 0 to 4095"));
    EXPECT_THAT(result.out, HasSubstr("logits  "));
  }
}

TEST(Run, AFixedInputCanBeAFile) {
  const std::string model = WriteRunModel(), ids = WriteInt32("fixed.npy", {3, 1});
  const CommandResult result = RunLlmc({"run", model, "--random", "--set", "input_ids=" + ids});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("rows  f32[1, 2, 2]\n  6, 7, 2, 3\n"));
  EXPECT_THAT(result.err, HasSubstr("random: attention_mask  i64[1, 2]  ones"));
  EXPECT_THAT(result.err, Not(HasSubstr("random: input_ids")));
  EXPECT_EQ(RunLlmc({"run", model, "--random", "--set", "input_ids=absent.npy"}).exit_code, 1);
}

// ---- what GPUs can run ------------------------------------------------------------
// The positions of what is not 0: as many as there are.
std::string WriteHostOnly() {
  onnx::ModelProto model = OneNode("NonZero");
  *model.mutable_graph()->mutable_output(0) = Info("y", {}, onnx::TensorProto::INT64);
  model.mutable_graph()->mutable_output(0)->mutable_type()->mutable_tensor_type()->clear_shape();
  return WriteInputBytes("host_only.onnx", model.SerializeAsString());
}

TEST(Gpu, CheckSaysWhyThereIsNoForm) {
  const std::string model = WriteHostOnly();
  const CommandResult text = RunLlmc({"check", model});
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("\ngpu: none, the model runs on the host only: "));
  EXPECT_THAT(text.out, HasSubstr("depends on the contents of tensors"));
  const CommandResult required = RunLlmc({"check", model, "--require=gpu", "--json"});
  EXPECT_EQ(required.exit_code, 3);
  EXPECT_THAT(required.err, HasSubstr("has no form for a GPU (--require=gpu): "));
  EXPECT_EQ(required.Json()["gpu"], false);
  EXPECT_THAT(required.Json()["gpu_reasons"].dump(), HasSubstr("depends on the contents of tensors"));
  for (const std::string& fine : {ShippedModel(), ShippedModel() + "/model.onnx"}) {
    const CommandResult result = RunLlmc({"check", fine, "--require=gpu"});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("gpu: every op has a form for GPUs\n"));
    EXPECT_EQ(RunLlmc({"check", fine, "--json"}).Json()["gpu"], true);
  }
}

TEST(Gpu, CompileCanRequireOne) {
  const std::string model = WriteHostOnly(), plan = TempFolder() + "/host_only.bin";
  const CommandResult compiled = RunLlmc({"compile", model, "-o", plan});
  EXPECT_EQ(compiled.exit_code, 0) << compiled.err;
  EXPECT_THAT(compiled.out, HasSubstr("for the host only, as there is no form for a GPU: "));
  fs::remove(plan);
  const CommandResult required = RunLlmc({"compile", model, "-o", plan, "--require=gpu"});
  EXPECT_EQ(required.exit_code, 3);
  EXPECT_THAT(required.err, HasSubstr("depends on the contents of tensors"));
  EXPECT_FALSE(fs::exists(plan));
  EXPECT_EQ(RunLlmc({"compile", model, "-o", plan, "--require=gpu", "--target=host"}).exit_code, 2);
  EXPECT_EQ(RunLlmc({"compile", model, "-o", plan, "--require=luck"}).exit_code, 2);
  ASSERT_EQ(RunLlmc({"compile", model, "-o", plan, "--target=host"}).exit_code, 0);
  EXPECT_EQ(RunLlmc({"check", plan, "--require=gpu"}).exit_code, 3);
}

// ---- folders ------------------------------------------------------------------------
std::string FolderOfFiles(const std::string& name, const std::vector<std::string>& files) {
  const std::string folder = TempFolder() + "/" + name;
  for (const std::string& file : files) {
    WriteInputBytes(name + "/" + file, "");
    const std::string from = ShippedModel() + "/" + fs::path(file).filename().string();
    fs::copy_file(absl::EndsWith(file, ".onnx") ? ShippedModel() + "/model.onnx" : from, folder + "/" + file,
                  fs::copy_options::overwrite_existing);
  }
  return folder;
}

TEST(Folder, OptimumsHasOneFile) {
  const std::string folder =
      FolderOfFiles("optimum", {"config.json", "tokenizer.json", "onnx/model.onnx", "onnx/model.safetensors"});
  const CommandResult checked = RunLlmc({"check", folder});
  EXPECT_EQ(checked.exit_code, 0) << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("/onnx/model.onnx\n"));
  const std::vector<std::string> prompt = {"--prompt", "Once upon a time", "--max-new-tokens", "4"};
  std::vector<std::string> args = {"generate", folder}, expected = {"generate", ShippedModel() + "/model.onnx"};
  args.insert(args.end(), prompt.begin(), prompt.end());
  expected.insert(expected.end(), prompt.begin(), prompt.end());
  const CommandResult generated = RunLlmc(args);
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  EXPECT_EQ(generated.out, RunLlmc(expected).out);
}

TEST(Folder, SeveralFilesAreListed) {
  const std::string folder =
      FolderOfFiles("several", {"config.json", "onnx/decoder_model.onnx", "onnx/encoder_model.onnx"});
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"check", folder}, {"show", folder}, {"run", folder, "--random"}}) {
    const CommandResult result = RunLlmc(args);
    EXPECT_EQ(result.exit_code, 1) << args[0];
    EXPECT_THAT(result.err, HasSubstr("holds several ONNX files; give one of them as MODEL:\n  "));
    EXPECT_THAT(result.err, HasSubstr("several/onnx/decoder_model.onnx\n"));
  }
}

TEST(Folder, GenaiSaysWhichFile) {
  const std::string folder =
      FolderOfFiles("genai", {"tokenizer.json", "model.onnx", "model.safetensors", "other.onnx"});
  WriteInputBytes("genai/genai_config.json",
                  R"({"model": {"bos_token_id": 0, "eos_token_id": [7, 1], "context_length": 256,
                           "decoder": {"filename": "model.onnx"}, "type": "llama"}, "search": {}})");
  const CommandResult generated =
      RunLlmc({"generate", folder, "--prompt", "Once upon a time", "--max-new-tokens", "4", "--json"});
  EXPECT_EQ(generated.exit_code, 0) << generated.err;
  const std::string plan = TempFolder() + "/genai.bin";
  const CommandResult compiled = RunLlmc({"compile", folder, "-o", plan, "--target=host"});
  ASSERT_EQ(compiled.exit_code, 0) << compiled.err;
  const auto shown = RunLlmc({"show", plan, "--json"}).out;
  EXPECT_THAT(shown, HasSubstr("256"));
  WriteInputBytes("genai/genai_config.json", R"({"model": {"decoder": {"filename": "../../etc/passwd"}}})");
  const CommandResult out = RunLlmc({"check", folder});
  EXPECT_EQ(out.exit_code, 1);
  EXPECT_THAT(out.err, HasSubstr("model.decoder.filename: "));
  WriteInputBytes("genai/genai_config.json",
                  R"({"model": {"decoder": {"filename": "model.onnx"}, "vision": {"filename": "other.onnx"}}})");
  EXPECT_THAT(RunLlmc({"check", folder}).err, HasSubstr("several ONNX files"));
}

}  // namespace
}  // namespace llmc
