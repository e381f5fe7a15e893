// Merges weights whose products share an input, and puts what joins or chooses rows of encoded weights before `encode`.
// The right sides do the same arithmetic in the same order; only silu_mul does not round in between in 16-bit types.
// Concats of weights run once: hoist-weights moves them to `prepare`.

#include "ir/encoding.h"
#include "ir/ops.h"
#include "passes/driver/match.h"
#include "passes/driver/rewrite_driver.h"
#include "passes/rules/rule_lists.h"

namespace llmc {
namespace {

int64_t LastDim(const Value* value) {
  return value->type.shape.empty() || !value->type.shape.back().is_constant() ? 0 : value->type.shape.back().value();
}

// A merged weight is a copy: the parts must not be needed elsewhere.
template <class... Names>
bool UsedOnce(const Match& m, Names... names) {
  return ((m[names]->users.size() == 1 && !m.model().IsOutput(m[names])) && ...);
}

// Whether concat joins weights along the results of their products, axis 0 if they are `transposed`, to [n, k]: of one
// type, and if they are encoded, in whole runs of elements that share a scale.
template <class... Names>
bool AreAlike(const Match& m, bool transposed, absl::string_view first, Names... names) {
  const TensorType& type = m[first]->type;
  if (type.rank() != 2 || ((m[names]->type.dtype != type.dtype || m[names]->type.encoding != type.encoding) || ...)) {
    return false;
  }
  const Encoding* e = type.encoding;
  if (e == nullptr) return true;
  const auto is_whole = [&](const Value* weight) {
    const Dim& rows = weight->type.shape[0];
    return Is<Encode>(weight->def) && (e->rows == 0 || (rows.is_constant() && rows.value() % e->rows == 0));
  };
  const auto is_token = [](const std::optional<Encoding::Part>& part) {
    return part.has_value() && part->per == Granularity::kToken;
  };
  return transposed && e->k_is_last && e->outer != OuterScale::kOfMatrices && !is_token(e->scale) &&
         !is_token(e->zero) && is_whole(m[first]) && (is_whole(m[names]) && ...);
}

bool IsSplitInTwo(const Match& m, bool transposed) {
  return m["@wg"]->type == m["@wu"]->type && AreAlike(m, transposed, "@wg", "@wu");
}

// A concat of encoded weights becomes the encoding of concats of their components, which kernels read.
bool JoinEncoded(Rewriter& rewriter, Node* node) {
  const auto op = View<Concat>(*node);
  const Encoding* joined = node->results[0]->type.encoding;
  if (joined == nullptr) return false;
  std::vector<Value*> components;
  for (size_t i = 0; i < joined->components(); ++i) {
    const bool is_outer = joined->format->outer_scale && i + 1 == joined->components();
    if (is_outer && joined->outer == OuterScale::kOfTensor) {  // concat has seen to it that it is that of all
      components.push_back(op.parts[0]->def->operands[i]);
      break;
    }
    std::vector<Value*> parts;
    for (const Value* part : op.parts) {
      if (!Is<Encode>(part->def)) return rewriter.Refuse(part->name, "what encode makes");
      Value* component = part->def->operands[i];
      // One number of a tensor is one for each of its channels.
      const Dim& channels = part->type.shape[static_cast<size_t>(op.axis)];
      const bool is_one = i > 0 && part->type.encoding->ComponentType(i, part->type.shape).rank() == 0;
      parts.push_back(is_one ? rewriter.Add(Expand{.x = component, .shape = {channels}}) : component);
      if (parts.back() == nullptr) return false;
    }
    const int64_t axis = parts[0]->type.rank() < 2 ? 0 : op.axis;
    components.push_back(rewriter.Add(Concat{.parts = std::move(parts), .axis = axis}));
    if (components.back() == nullptr) return false;
  }
  const DType to = node->results[0]->type.dtype;
  return rewriter.ReplaceWith(rewriter.Add(Encode{.components = std::move(components), .as = joined->text, .to = to}));
}

// Rows of an encoded matrix are the encoding of rows of its components, which kernels read.
bool GatherEncoded(Rewriter& rewriter, Node* node) {
  const auto op = View<Gather>(*node);
  const Encoding* matrix = op.x->type.encoding;
  if (matrix == nullptr) return false;
  if (!Is<Encode>(op.x->def)) return rewriter.Refuse(op.x->name, "what encode makes");
  std::vector<Value*> components = op.x->def->operands;
  for (size_t i = 0; i < components.size(); ++i) {
    if (matrix->ComponentType(i, op.x->type.shape).rank() == 0) continue;  // one number for all rows
    components[i] = rewriter.Add(Gather{.x = components[i], .indices = op.indices});
    if (components[i] == nullptr) return false;
  }
  const TensorType& rows = node->results[0]->type;
  return rewriter.ReplaceWith(
      rewriter.Add(Encode{.components = std::move(components), .as = rows.encoding->text, .to = rows.dtype}));
}

// Queries come first; where they are as wide as keys, they are known by that.
bool IsQkv(const Match& m) {
  const int64_t q = LastDim(m["%q"]), k = LastDim(m["%k"]), v = LastDim(m["%v"]);
  return q > 0 && k > 0 && k == v && m["%q"]->type.rank() == 2 && (q != k || m["%q"]->def->order < m["%k"]->def->order);
}

// Where queries, keys and values end in a row of all three.
Attr EndOfQ(const Match& m) { return Dims{Dim(LastDim(m["%q"]))}; }
Attr EndOfK(const Match& m) { return Dims{Dim(LastDim(m["%q"]) + LastDim(m["%k"]))}; }
Attr EndOfV(const Match& m) { return Dims{Dim(LastDim(m["%q"]) + LastDim(m["%k"]) + LastDim(m["%v"]))}; }

bool IsRowOfWeights(const Match& m, absl::string_view bias, absl::string_view product) {
  return m[bias]->type.rank() == 1 && LastDim(m[bias]) == LastDim(m[product]);
}

// Queries (or what leads to them) and the rows that latent attention keeps, [T, n] each.
bool IsQueryAndRow(const Match& m) {
  const auto is_end = [&](absl::string_view end, const Dims& dims) { return std::get<Dims>(m.GetAttr(end)) == dims; };
  return m["%q"]->type.rank() == 2 && m["%q"]->type.shape[1].is_constant() && m["%kv"]->type.rank() == 2 &&
         is_end("$b", {m["%kv"]->type.shape[1]});
}
Dims PastQuery(const Match& m, absl::string_view end) {
  return Dims{Dim(LastDim(m["%q"])) + std::get<Dims>(m.GetAttr(end))[0]};
}

// Whether attention reads heads where they lie: in 16 bits, by whole vectors. In other types slices would be copies.
bool ReadsHeadsInPlace(const Match& m) {
  const DType dtype = m["%x"]->type.dtype;
  const auto is_whole = [&](absl::string_view part) { return LastDim(m[part]) > 0 && LastDim(m[part]) % 8 == 0; };
  return (dtype == DType::kF16 || dtype == DType::kBF16) && is_whole("%q") && is_whole("%k") && is_whole("%v");
}
bool BiasesFit(const Match& m) {
  return IsRowOfWeights(m, "@bq", "%q") && IsRowOfWeights(m, "@bk", "%k") && IsRowOfWeights(m, "@bv", "%v");
}
bool AreUsedOnce(const Match& m) { return UsedOnce(m, "@wq", "@wk", "@wv", "@bq", "@bk", "@bv"); }
bool AreAllAlike(const Match& m) { return AreAlike(m, true, "@wq", "@wk", "@wv"); }

constexpr auto kFuseRules = Rules(
    Rule("merge-query-latent")
        .Find(R"(%q = linear %x, @wq {transpose_rhs = true}
                 %kv = linear %x, @wkv {transpose_rhs = true}
                 %c = slice %kv {axis = 1, start = [0], end = $a}
                 %r = slice %kv {axis = 1, start = $a, end = $b}
                 %n = rms_norm %c, @g {eps = $e})")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wq", "@wkv"); })
        .When("weights of one type, or that are encoded alike",
              [](const Match& m) { return AreAlike(m, true, "@wq", "@wkv"); })
        .When("queries, and rows of which the first elements are normalized", IsQueryAndRow)
        .Let("$q", EndOfQ)
        .Let("$past_a", [](const Match& m) -> Attr { return PastQuery(m, "$a"); })
        .Let("$past_b", [](const Match& m) -> Attr { return PastQuery(m, "$b"); })
        .Replace(R"(%w_all = concat @wq, @wkv
                    %all = linear %x, %w_all {transpose_rhs = true}
                    %q = slice %all {axis = 1, start = [0], end = $q}
                    %c = slice %all {axis = 1, start = $q, end = $past_a}
                    %r = slice %all {axis = 1, start = $past_a, end = $past_b}
                    %n = rms_norm %c, @g {eps = $e})")
        .Quiet()  // most norms are of something else
        .Example("%x: f32[4, 32]; @wq: f32[64, 32]; @wkv: f32[24, 32]; @g: f32[16]; $a = [16]; $b = [24]; $e = 1e-6"),
    Rule("merge-qkv")
        .Find(R"(%q = linear %x, @wq {transpose_rhs = true}
                 %k = linear %x, @wk {transpose_rhs = true}
                 %v = linear %x, @wv {transpose_rhs = true}
                 kv_write @kv, %written, %v, %slots, %_ks, %_vs)")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wq", "@wk", "@wv"); })
        .When("weights of one type, or that are encoded alike",
              [](const Match& m) { return AreAlike(m, true, "@wq", "@wk", "@wv"); })
        .When("queries, keys and values", IsQkv)
        .Let("$a", EndOfQ)
        .Let("$b", EndOfK)
        .Let("$c", EndOfV)
        .Replace(R"(%w_qkv = concat @wq, @wk, @wv
                    %qkv = linear %x, %w_qkv {transpose_rhs = true}
                    %q = slice %qkv {axis = 1, start = [0], end = $a}
                    %k = slice %qkv {axis = 1, start = $a, end = $b}
                    %v = slice %qkv {axis = 1, start = $b, end = $c}
                    kv_write @kv, %written, %v, %slots, %_ks, %_vs)")
        .Example("%x: f32[4, 32]; @wq: f32[64, 32]; @wk: f32[32, 32]; @wv: f32[32, 32]; %written: f32[4, 32]; "
                 "%slots: i32[4] = slots; state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, 16]}")
        .Example(
            "%x: f32[4, 32]; @cq: i4[64, 32]; @ck: i4[32, 32]; @cv: i4[32, 32]; @sq: f32[64, 2]; @sk: f32[32, 2]; "
            "@sv: f32[32, 2]; @wq = encode @cq, @sq {as = \"int4 group=16 scale=f32\"}; @wk = encode @ck, @sk {as = "
            "\"int4 group=16 scale=f32\"}; @wv = encode @cv, @sv {as = \"int4 group=16 scale=f32\"}; %written: "
            "f32[4, 32]; %slots: i32[4] = slots; state @kv: paged[2, 16] {k: f32[2, 16], v: f32[2, 16]}"),

    Rule("merge-qkv-bias")
        .Find(R"(%q0 = linear %x, @wq {transpose_rhs = true}
                 %q = add %q0, @bq
                 %k0 = linear %x, @wk {transpose_rhs = true}
                 %k = add %k0, @bk
                 %v0 = linear %x, @wv {transpose_rhs = true}
                 %v = add %v0, @bv
                 kv_write @kv, %written, %v, %slots, %_ks, %_vs)")
        .When("weights without another user", AreUsedOnce)
        .When("weights of one type, or that are encoded alike", AreAllAlike)
        .When("queries, keys and values", IsQkv)
        .When("a bias as long as its result", BiasesFit)
        .Let("$a", EndOfQ)
        .Let("$b", EndOfK)
        .Let("$c", EndOfV)
        .Replace(R"(%w_qkv = concat @wq, @wk, @wv
                    %b_qkv = concat @bq, @bk, @bv
                    %qkv0 = linear %x, %w_qkv {transpose_rhs = true}
                    %qkv = add %qkv0, %b_qkv
                    %q = slice %qkv {axis = 1, start = [0], end = $a}
                    %k = slice %qkv {axis = 1, start = $a, end = $b}
                    %v = slice %qkv {axis = 1, start = $b, end = $c}
                    kv_write @kv, %written, %v, %slots, %_ks, %_vs)")
        .Example("%x: f32[4, 32]; @wq: f32[64, 32]; @wk: f32[32, 32]; @wv: f32[32, 32]; @bq: f32[64]; @bk: f32[32]; "
                 "@bv: f32[32]; %written: f32[4, 32]; %slots: i32[4] = slots; state @kv: paged[2, 16] {k: f32[2, 16], "
                 "v: f32[2, 16]}"),

    // Of encoders, whose attention reads whole tensors.
    Rule("merge-qkv-of-heads")
        .Find(R"(%q0 = linear %x, @wq {transpose_rhs = true}
                 %q = add %q0, @bq
                 %k0 = linear %x, @wk {transpose_rhs = true}
                 %k = add %k0, @bk
                 %v0 = linear %x, @wv {transpose_rhs = true}
                 %v = add %v0, @bv
                 %qs = reshape %q {shape = $q}
                 %qt = transpose %qs {perm = $p}
                 %ks = reshape %k {shape = $k}
                 %kt = transpose %ks {perm = $p}
                 %vs = reshape %v {shape = $v}
                 %vt = transpose %vs {perm = $p}
                 %y = attention %qt, %kt, %vt, %_m {scale = $s, causal = $u, causal_from_end = $e, softcap = $t})")
        .When("weights without another user", AreUsedOnce)
        .When("weights of one type, or that are encoded alike", AreAllAlike)
        .When("a bias as long as its result", BiasesFit)
        .When("heads of 16 bits and whole vectors in rows of sequences",
              [](const Match& m) { return ReadsHeadsInPlace(m) && m["%q"]->type.rank() == 3; })
        .Let("$a", EndOfQ)
        .Let("$b", EndOfK)
        .Let("$c", EndOfV)
        .Replace(R"(%w_qkv = concat @wq, @wk, @wv
                    %b_qkv = concat @bq, @bk, @bv
                    %qkv0 = linear %x, %w_qkv {transpose_rhs = true}
                    %qkv = add %qkv0, %b_qkv
                    %q = slice %qkv {axis = 2, start = [0], end = $a}
                    %k = slice %qkv {axis = 2, start = $a, end = $b}
                    %v = slice %qkv {axis = 2, start = $b, end = $c}
                    %qs = reshape %q {shape = $q}
                    %qt = transpose %qs {perm = $p}
                    %ks = reshape %k {shape = $k}
                    %kt = transpose %ks {perm = $p}
                    %vs = reshape %v {shape = $v}
                    %vt = transpose %vs {perm = $p}
                    %y = attention %qt, %kt, %vt, %_m {scale = $s, causal = $u, causal_from_end = $e, softcap = $t})")
        .Example("%x: bf16[2, 4, 32]; @wq: bf16[32, 32]; @wk: bf16[16, 32]; @wv: bf16[16, 32]; @bq: bf16[32]; @bk: "
                 "bf16[16]; @bv: bf16[16]; $q = [2, 4, 4, 8]; $k = [2, 4, 2, 8]; $v = [2, 4, 2, 8]; $p = [0, 2, 1, 3]; "
                 "%_m: bool[4, 4]; $s = 0.5; $u = false; $e = false; $t = 0.0"),
    Rule("merge-qkv-of-packed-texts")
        .Find(R"(%q0 = linear %x, @wq {transpose_rhs = true}
                 %q = add %q0, @bq
                 %k0 = linear %x, @wk {transpose_rhs = true}
                 %k = add %k0, @bk
                 %v0 = linear %x, @wv {transpose_rhs = true}
                 %v = add %v0, @bv
                 %y = packed_attention %q, %k, %v, %starts {head_dim = $d, scale = $s, window = $w, causal = $u, softcap = $t})")
        .When("weights without another user", AreUsedOnce)
        .When("weights of one type, or that are encoded alike", AreAllAlike)
        .When("a bias as long as its result", BiasesFit)
        .When("heads of 16 bits and whole vectors", ReadsHeadsInPlace)
        .Let("$a", EndOfQ)
        .Let("$b", EndOfK)
        .Let("$c", EndOfV)
        .Replace(R"(%w_qkv = concat @wq, @wk, @wv
                    %b_qkv = concat @bq, @bk, @bv
                    %qkv0 = linear %x, %w_qkv {transpose_rhs = true}
                    %qkv = add %qkv0, %b_qkv
                    %q = slice %qkv {axis = 1, start = [0], end = $a}
                    %k = slice %qkv {axis = 1, start = $a, end = $b}
                    %v = slice %qkv {axis = 1, start = $b, end = $c}
                    %y = packed_attention %q, %k, %v, %starts {head_dim = $d, scale = $s, window = $w, causal = $u, softcap = $t})")
        .Example("%x: bf16[4, 32]; @wq: bf16[32, 32]; @wk: bf16[16, 32]; @wv: bf16[16, 32]; @bq: bf16[32]; @bk: "
                 "bf16[16]; @bv: bf16[16]; %starts = constant {value = [0, 4]} : i32[2]; $d = 8; $s = 0.5; $w = 0; $u "
                 "= false; $t = 0.0"),

    Rule("merge-gate-up")
        .Find(R"(%gate = linear %x, @wg {transpose_rhs = true}
                 %act = silu %gate
                 %up = linear %x, @wu {transpose_rhs = true}
                 %out = mul %act, %up)")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wg", "@wu"); })
        .Rounds(Rounding::kIn16Bit)
        .When("gate and up of one type, and encoded in whole runs",
              [](const Match& m) { return IsSplitInTwo(m, true); })
        .Replace(R"(%w_gate_up = concat @wg, @wu
                    %gate_up = linear %x, %w_gate_up {transpose_rhs = true}
                    %out = silu_mul %gate_up)")
        .Example("%x: f32[4, 8]; @wg: f32[16, 8]; @wu: f32[16, 8]")
        .Example("%x: f32[4, 8]; @cg: i8[16, 8]; @cu: i8[16, 8]; @sg: f32[]; @su: f32[]; @wg = encode @cg, @sg {as = "
                 "\"int8 per=tensor scale=f32\"}; @wu = encode @cu, @su {as = \"int8 per=tensor scale=f32\"}")
        .Example(
            "%x: f32[4, 32]; @cg: u4[16, 32]; @cu: u4[16, 32]; @sg: f8e4m3[16, 2]; @su: f8e4m3[16, 2]; @og: f32[]; "
            "@ou: f32[]; @wg = encode @cg, @sg, @og {as = \"nvfp4\"}; @wu = encode @cu, @su, @ou {as = \"nvfp4\"}"),
    Rule("merge-gate-up-columns")
        .Find(R"(%gate = linear %x, @wg
                 %act = silu %gate
                 %up = linear %x, @wu
                 %out = mul %act, %up)")
        .When("weights without another user", [](const Match& m) { return UsedOnce(m, "@wg", "@wu"); })
        .Rounds(Rounding::kIn16Bit)
        .When("gate and up of one type", [](const Match& m) { return IsSplitInTwo(m, false); })
        .Replace(R"(%w_gate_up = concat @wg, @wu {axis = 1}
                    %gate_up = linear %x, %w_gate_up
                    %out = silu_mul %gate_up)")
        .Example("%x: f32[4, 8]; @wg: f32[8, 16]; @wu: f32[8, 16]"),

    Rule("gather-encoded")
        .Apply("gather", GatherEncoded)
        .Example("%i: i32[3]; @c: i4[8, 6]; @s: f32[8, 2]; %e = encode @c, @s {as = \"int4 group=4 scale=f32\"}; "
                 "%r = gather %e, %i; %y = decode %r"),

    Rule("join-encoded")
        .Apply("concat", JoinEncoded)
        .Example("@cg: u4[6, 9]; @cu: u4[4, 9]; @sg: f32[6, 3]; @su: f32[4, 3]; @zg: u4[]; @zu: u4[]; %g = encode @cg, "
                 "@sg, @zg {as = \"uint4 group=4 scale=f32 zero=u4/tensor\"}; %u = encode @cu, @su, @zu {as = \"uint4 "
                 "group=4 scale=f32 zero=u4/tensor\"}; %w = concat %g, %u; %y = decode %w")
        .Example(
            "@cg: u4[6, 32]; @cu: u4[4, 32]; @sg: f8e4m3[6, 2]; @su: f8e4m3[4, 2]; @og: f32[]; @ou: f32[]; %g = "
            "encode @cg, @sg, @og {as = \"nvfp4\"}; %u = encode @cu, @su, @ou {as = \"nvfp4\"}; %w = concat %g, %u; "
            "%y = decode %w"));

}  // namespace

RuleSpan FuseRules() { return kFuseRules; }

}  // namespace llmc
