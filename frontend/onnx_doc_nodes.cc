#include "frontend/onnx_doc_nodes.h"

#include "frontend/onnx_ops.h"

namespace llmc {
namespace {

constexpr absl::string_view kMs = kMicrosoftDomain;

constexpr OnnxDocNode kNodes[] = {
    {"", "AffineGrid", "T[1,2,3] i64=[1,1,2,3]"},
    {"", "Attention", "T[1,2,3,4] T[1,2,3,4] T[1,2,3,4]"},
    {"", "AveragePool", "T[1,1,4,4]", "kernel_shape=[2,2]"},
    {"", "BatchNormalization", "T[1,3,2,2] T[3] T[3] T[3] T[3]"},
    {"", "BlackmanWindow", "T=4"},
    {"", "BitShift", "T[2,3] T[2,3]", "direction=LEFT"},
    {"", "Cast", "T[2,3]", "to=1"},
    {"", "CastLike", "T[2,3] U[1]"},
    {"", "CenterCropPad", "T[2,3] i64=[3,2]"},
    {"", "Col2Im", "T[1,4,4] i64=[3,3] i64=[2,2]"},
    {"", "Compress", "T[2,3] bool[2]", "axis=0"},
    {"", "Concat", "T[2,3] T[2,3]", "axis=0"},
    {"", "Constant", "", "value=T"},
    {"", "ConstantOfShape", "i64=[2,3]", "value=T"},
    {"", "Conv", "T[1,1,3,3] T[1,1,2,2]"},
    {"", "ConvInteger", "T[1,1,3,3] U[1,1,2,2]"},
    {"", "ConvTranspose", "T[1,1,3,3] T[1,1,2,2]"},
    {"", "CumSum", "T[2,3] i64=0"},
    {"", "DFT", "T[1,4,1]"},
    {"", "DepthToSpace", "T[1,4,2,2]", "blocksize=2"},
    {"", "DequantizeLinear", "T[2,3] U[1]"},
    {"", "Einsum", "T[2,3] T[3,2]", "equation=ij,jk->ik"},
    {"", "Expand", "T[2,3] i64=[2,3]"},
    {"", "GRU", "T[2,1,3] T[1,12,3] T[1,12,4]", "hidden_size=4"},
    {"", "Gather", "T[2,3] i64[2]"},
    {"", "GatherElements", "T[2,3] i64[2,3]"},
    {"", "GatherND", "T[2,3] i64[2,1]"},
    {"", "Gemm", "T[2,3] T[3,2]"},
    {"", "GlobalAveragePool", "T[1,2,3,3]"},
    {"", "GlobalLpPool", "T[1,2,3,3]"},
    {"", "GlobalMaxPool", "T[1,2,3,3]"},
    {"", "GridSample", "T[1,1,3,3] f32[1,2,2,2]"},
    {"", "GridSample", "T[1,1,3,3] f32[1,2,2,2]", "mode=nearest"},
    {"", "GroupNormalization", "T[1,4,2,2] T[4] T[4]", "num_groups=2"},
    {"", "HammingWindow", "T=4"},
    {"", "HannWindow", "T=4"},
    {"", "InstanceNormalization", "T[1,3,2,2] T[3] T[3]"},
    {"", "LRN", "T[1,3,2,2]", "size=3"},
    {"", "LSTM", "T[2,1,3] T[1,16,3] T[1,16,4]", "hidden_size=4"},
    {"", "LayerNormalization", "T[2,3] T[3]"},
    {"", "LpPool", "T[1,1,4,4]", "kernel_shape=[2,2]"},
    {"", "MatMul", "T[2,3] T[3,2]"},
    {"", "MatMulInteger", "T[2,3] U[3,2]"},
    {"", "MaxPool", "T[1,1,4,4]", "kernel_shape=[2,2]"},
    {"", "Max", "T[2,3] T[2,3]"},
    {"", "Mean", "T[2,3] T[2,3]"},
    {"", "MeanVarianceNormalization", "T[1,2,3,3]"},
    {"", "MelWeightMatrix", "T=4 T=16 T=8192 f32=0 f32=4096"},
    {"", "Min", "T[2,3] T[2,3]"},
    {"", "Mod", "T[2,3] T[2,3]"},
    {"", "Mod", "T[2,3] T[2,3]", "fmod=1"},
    {"", "NegativeLogLikelihoodLoss", "T[2,3] i64[2]"},
    {"", "OneHot", "T[2] i64=4 U[2]"},
    {"", "Pad", "T[2,3] i64=[0,1,0,1]"},
    {"", "Pow", "T[2,3] U[2,3]"},
    {"", "QLinearConv", "T[1,1,3,3] f32[1] T[1] T[1,1,2,2] f32[1] T[1] f32[1] T[1]"},
    {"", "QLinearMatMul", "T[2,3] f32[1] T[1] T[3,2] f32[1] T[1] f32[1] T[1]"},
    {"", "QuantizeLinear", "T[2,3] f32[1] U[1]"},
    {"", "RMSNormalization", "T[2,3] T[3]"},
    {"", "RNN", "T[2,1,3] T[1,4,3] T[1,4,4]", "hidden_size=4"},
    {"", "Range", "T[] T[] T[]"},
    {"", "Reshape", "T[2,3] i64=[3,2]"},
    {"", "Resize", "T[2,3] - f32=[1,2]"},
    {"", "Resize", "T[2,3] - f32=[1,2]", "mode=linear"},
    {"", "ReverseSequence", "T[2,3] i64[3]"},
    {"", "RotaryEmbedding", "T[1,2,3,4] T[8,2] T[8,2] i64[1,3]"},
    {"", "STFT", "T[1,8,1] i64=2 T[4]"},
    {"", "Scatter", "T[2,3] i64[2,3] T[2,3]"},
    {"", "ScatterElements", "T[2,3] i64[2,3] T[2,3]"},
    {"", "ScatterND", "T[2,3] i64[2,1] T[2,3]"},
    {"", "SimplifiedLayerNormalization", "T[2,3] T[3]"},
    {"", "Slice", "T[2,3] i64=[0] i64=[1]"},
    {"", "SoftmaxCrossEntropyLoss", "T[2,3] i64[2]"},
    {"", "SpaceToDepth", "T[1,1,4,4]", "blocksize=2"},
    {"", "Split", "T[2,3] i64=[2]"},
    {"", "Squeeze", "T[1,3] i64=[0]"},
    {"", "Sum", "T[2,3] T[2,3]"},
    {"", "TensorScatter", "T[1,2,3,4] T[1,2,1,4]"},
    {"", "Tile", "T[2,3] i64=[1,2]"},
    {"", "TopK", "T[2,3] i64=[1]"},
    {"", "Unsqueeze", "T[2,3] i64=[0]"},
    {"", "Upsample", "T[2,3] f32=[1,2]", "", 9},
    {"", "Where", "bool[2,3] T[2,3] T[2,3]"},
    {kMs, "Attention", "T[1,3,8] T[8,24]", "num_heads=2"},
    {kMs, "BiasGelu", "T[2,3] T[3]"},
    {kMs, "EmbedLayerNormalization", "i32[1,3] - T[8,4] T[8,4] - T[4] T[4]"},
    {kMs, "FusedMatMul", "T[2,3] T[3,2]"},
    {kMs, "GatherBlockQuantized", "T[4,16] i64[2] U[4,1]", "bits=8 block_size=16"},
    {kMs, "GatherBlockQuantized", "T[4,16] i64[2] U[4,1]", "block_size=16"},
    {kMs, "GroupQueryAttention", "T[1,3,8] T[1,3,8] T[1,3,8] - - i32=[2] i32=3", "num_heads=2 kv_num_heads=2"},
    {kMs, "MatMulNBits", "T[2,32] u8[4,1,16] T[4,1]", "K=32 N=4 bits=4 block_size=32"},
    {kMs, "MoE", "T[2,4] T[2,3] T[3,5,4] - T[3,4,5]"},
    {kMs, "MultiHeadAttention", "T[1,3,8] T[1,3,8] T[1,3,8]", "num_heads=2"},
    {kMs, "QMoE", "T[2,16] T[2,3] u8[3,6,8] T[3,6] - u8[3,16,3] T[3,16]", "weights_prepacked=0"},
    {kMs, "RotaryEmbedding", "T[1,3,8] i64[1] T[8,2] T[8,2]", "num_heads=2"},
    {kMs, "SimplifiedLayerNormalization", "T[2,3] T[3]"},
    {kMs, "SkipLayerNormalization", "T[1,2,3] T[1,2,3] T[3]"},
    {kMs, "SkipSimplifiedLayerNormalization", "T[1,2,3] T[1,2,3] T[3]"},
    {kMs, "TransposeMatMul", "T[2,3] T[3,2]"},
};

}  // namespace

std::vector<OnnxDocNode> OnnxDocNodes(absl::string_view domain, absl::string_view op_type) {
  std::vector<OnnxDocNode> nodes;
  for (const OnnxDocNode& node : kNodes) {
    if (node.domain == domain && node.op_type == op_type) nodes.push_back(node);
  }
  constexpr absl::string_view kPlain[] = {"", "T[2,3]", "T[2,3] T[2,3]", "T[2,3] T[2,3] T[2,3]"};
  const OnnxOp* op = FindOnnxOp(domain, op_type);
  if (nodes.empty() && op != nullptr && op->min_inputs < static_cast<int>(std::size(kPlain))) {
    nodes.push_back({.domain = domain, .op_type = op_type, .inputs = kPlain[op->min_inputs]});
  }
  return nodes;
}

}  // namespace llmc
