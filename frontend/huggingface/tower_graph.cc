#include "frontend/huggingface/tower_graph.h"

#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "frontend/huggingface/distance.h"
#include "ir/ops.h"

namespace llmc::hf {
namespace {

// Over 250 lines: what goes in, and all forms of attention.
class Tower {
 public:
  Tower(const TowerSpec& spec, bool packed, BlockGraph* blocks, Model* model, Step* step)
      : spec_(spec), packed_(packed), blocks_(*blocks), b_(blocks->builder()), model_(model), step_(step) {}

  Value* Build() {
    blocks_.set_scope(spec_.name);
    Value* x = std::visit([&](const auto& input) { return Embed(input); }, spec_.input);
    AddRopes();
    Value* const embedded = x;
    for (size_t i = 0; i < spec_.layers.size(); ++i) {
      const LayerSpec& layer = spec_.layers[i];
      x = blocks_.Layer(layer, static_cast<int64_t>(i), x, spec_.hidden_size,
                        [&](Value* in, const std::string& prefix) {
                          return Attend(std::get<AttentionSpec>(layer.attention), i, in, prefix, layer.module);
                        });
      if (i == 0 && spec_.convolution.has_value()) x = Convolve(*spec_.convolution, embedded, x);
    }
    if (spec_.norm.has_value()) {
      x = blocks_.Norm(*spec_.norm, x, spec_.hidden_size, Own("norm"), "%hidden" + spec_.name);
    }
    return packed_ ? Padded(x, "%padded") : x;
  }

  Value* ids() { return packed_ ? Padded(ids_, "%padded_ids") : ids_; }
  Value* words() const { return words_; }
  Value* mask() const { return mask_; }

 private:
  std::string Own(const std::string& name) const { return absl::StrCat("@", spec_.name, name); }
  Dim Batch() const { return Dim::Symbol("B"); }
  Dim Length() const { return length_; }

  // Of tokens.
  Dims Tokens() const { return packed_ ? Dims{Dim::Symbol("T")} : Dims{Batch(), Length()}; }
  // Rows of tokens as [B, L, …].
  Value* Padded(Value* rows, const std::string& name) { return b_.Add(Gather{.x = rows, .indices = rows_of_}, name); }

  Value* Input(const std::string& name, DType dtype, const Dims& shape) {
    return model_->AddParam(step_, "%" + name, {dtype, shape});
  }

  // ---- what goes in ---------------------------------------------------------------------------------------------
  Value* Table(const std::string& name, const std::string& module, int64_t rows, int64_t size) {
    b_.set_loc(module);
    Value* table = blocks_.Stored(Own(name), module + ".weight", {rows, size});
    if (!is_typed_) blocks_.set_dtype(table->type.dtype);
    is_typed_ = true;
    return table->type.dtype == blocks_.dtype() ? table : b_.Add(Cast{.x = table, .to = blocks_.dtype()});
  }

  Value* Embed(const TextInput& in) {
    length_ = Dim::Symbol("L");
    ids_ = Input("input_ids", DType::kI64, Tokens());
    if (packed_) {
      places_ = Input("position_ids", DType::kI64, Tokens());
      starts_ = Input("starts", DType::kI32, {Batch() + Dim(1)});
      rows_of_ = Input("places", DType::kI64, {Batch(), Length()});
    }
    mask_ = Input("attention_mask", DType::kI64, {Batch(), Length()});
    words_ = Table("words", in.words, in.vocab_size, in.word_size);
    Value* x = b_.Add(Gather{.x = words_, .indices = ids_}, "%words");
    x = in.scale_rounds ? b_.Add(Mul{.lhs = x, .rhs = blocks_.Number(in.scale, x)}, "%words.scaled")
                        : blocks_.Scaled(x, in.scale, "%words.scaled");
    if (in.position_kind != PositionKind::kNone) {
      Value* table = Table("positions", in.positions, in.position_rows, in.word_size);
      Value* at = in.position_kind == PositionKind::kPlace ? Places() : Counted(in.padding_id);
      x = b_.Add(Add{.lhs = x, .rhs = b_.Add(Gather{.x = table, .indices = at})}, "%placed");
    }
    if (!in.types.empty()) {
      Value* types = Input("token_type_ids", DType::kI64, Tokens());
      Value* table = Table("types", in.types, in.type_count, in.word_size);
      x = b_.Add(Add{.lhs = x, .rhs = b_.Add(Gather{.x = table, .indices = types})}, "%typed");
    }
    const auto project = [&] {
      if (in.projection.has_value()) {
        x = blocks_.Linear(*in.projection, x, in.word_size, spec_.hidden_size, Own(""), "embed", "%projected");
      }
    };
    if (in.projects_before_norm) project();
    const int64_t size = in.projects_before_norm ? spec_.hidden_size : in.word_size;
    if (in.norm.has_value()) x = blocks_.Norm(*in.norm, x, size, Own("embed_norm"), "%embedded");
    if (!in.projects_before_norm) project();
    return in.zeroes_padding && !packed_ ? Unpadded(x) : x;
  }

  // 0 where the text is padded.
  Value* Unpadded(Value* x) {
    Value* mask =
        b_.Add(Cast{.x = b_.Add(Reshape{.x = mask_, .shape = {Batch(), Length(), Dim(1)}}), .to = blocks_.dtype()});
    return b_.Add(Mul{.lhs = x, .rhs = mask});
  }

  Value* Whole(int64_t number) {
    return b_.Add(Constant{.value = Tensor::FromValues(DType::kI64, {}, std::vector<int64_t>{number})});
  }

  // i64[L]: 0, 1, ….
  Value* Places() {
    if (places_ == nullptr) {
      Value* length = b_.Add(DimsOf{.values = {Length()}, .scalar = true});
      places_ = b_.Add(Range{.start = Whole(0), .limit = length, .delta = Whole(1)}, "%places");
    }
    return places_;
  }

  Value* Counted(int64_t padding_id) {
    Value* is_padding = b_.Add(Equal{.lhs = ids_, .rhs = Whole(padding_id)});
    Value* counts = b_.Add(Cast{.x = b_.Add(Not{.x = is_padding}), .to = DType::kI64});
    Value* sums = b_.Add(CumSum{.x = counts, .axis = packed_ ? 0 : 1});
    if (packed_) sums = b_.Add(Sub{.lhs = sums, .rhs = BeforeText(sums, counts)});
    Value* at = b_.Add(Mul{.lhs = sums, .rhs = counts});
    return b_.Add(Add{.lhs = at, .rhs = Whole(padding_id)}, "%positions");
  }

  // Of sums over all tokens: what they were before the first token of the text.
  Value* BeforeText(Value* sums, Value* counts) {
    Value* tokens = b_.Add(DimsOf{.values = {Dim::Symbol("T")}, .scalar = true});
    Value* rows = b_.Add(Range{.start = Whole(0), .limit = tokens, .delta = Whole(1)});
    rows = b_.Add(Reshape{.x = rows, .shape = Tokens()});
    Value* first = b_.Add(Sub{.lhs = rows, .rhs = places_});
    return b_.Add(
        Sub{.lhs = b_.Add(Gather{.x = sums, .indices = first}), .rhs = b_.Add(Gather{.x = counts, .indices = first})});
  }

  Value* Embed(const ImageInput& in) {
    length_ = Dim(in.patches() + (in.class_token.empty() ? 0 : 1));
    Value* pixels = Input("pixel_values", DType::kF32, {Batch(), Dim(in.channels), Dim(in.size), Dim(in.size)});
    b_.set_loc(in.projection.module);
    Value* weight = blocks_.Stored(Own("patch"), in.projection.module + ".weight",
                                   {spec_.hidden_size, in.channels, in.patch, in.patch});
    if (!is_typed_) blocks_.set_dtype(weight->type.dtype);
    is_typed_ = true;
    const DType dtype = blocks_.dtype();
    if (weight->type.dtype != dtype) weight = b_.Add(Cast{.x = weight, .to = dtype});
    if (dtype != DType::kF32) pixels = b_.Add(Cast{.x = pixels, .to = dtype});
    Value* bias = in.projection.bias
                      ? blocks_.Weight(Own("patch.bias"), in.projection.module + ".bias", {spec_.hidden_size})
                      : nullptr;
    Value* x = b_.Add(Conv{.x = pixels, .weight = weight, .bias = bias, .strides = {in.patch, in.patch}});
    x = b_.Add(Reshape{.x = x, .shape = {Batch(), Dim(spec_.hidden_size), Dim(in.patches())}});
    x = b_.Add(Transpose{.x = x, .perm = {0, 2, 1}}, "%patches");
    if (!in.class_token.empty()) {
      Value* token = blocks_.Weight(Own("class"), in.class_token, in.class_shape);
      token = b_.Add(Reshape{.x = token, .shape = {Dim(1), Dim(1), Dim(spec_.hidden_size)}});
      token = b_.Add(Expand{.x = token, .shape = {Batch(), Dim(1), Dim(spec_.hidden_size)}});
      x = b_.Add(Concat{.parts = {token, x}, .axis = 1});
    }
    Value* positions = blocks_.Weight(Own("positions"), in.positions, in.position_shape);
    x = b_.Add(Add{.lhs = x, .rhs = positions}, "%placed" + spec_.name);
    return in.norm.has_value()
               ? blocks_.Norm(*in.norm, x, spec_.hidden_size, Own("embed_norm"), "%embedded" + spec_.name)
               : x;
  }

  void AddRopes() {
    for (const RopeSpec& rope : spec_.ropes) {
      const RopeTable table = MakeRopeTable(rope.parameters, rope.dims);
      const Shape shape = {static_cast<int64_t>(table.inv_freq.size())};
      Value* inv_freq = b_.Add(Constant{.value = Tensor::FromValues(DType::kF32, shape, table.inv_freq)});
      ropes_.emplace_back(inv_freq, table.scale);
    }
  }

  // ---- attention ------------------------------------------------------------------------------------------------
  Value* Rotated(const AttentionSpec& a, Value* x) {
    if (!a.rope.has_value()) return x;
    const Dim tokens = packed_ ? Dim::Symbol("T") : Batch() * Length();
    Value* places = packed_ ? places_ : b_.Add(Expand{.x = Places(), .shape = {Batch(), Length()}});
    places = b_.Add(Cast{.x = places, .to = DType::kI32});
    Value* flat = b_.Add(Reshape{.x = x, .shape = {tokens, x->type.shape.back()}});
    flat = b_.Add(Rope{.x = flat,
                       .pos = b_.Add(Reshape{.x = places, .shape = {tokens}}),
                       .inv_freq = ropes_[*a.rope].first,
                       .head_dim = a.head_dim,
                       .interleaved = spec_.ropes[*a.rope].interleaved,
                       .scale = ropes_[*a.rope].second});
    return b_.Add(Reshape{.x = flat, .shape = x->type.shape});
  }

  // [B, L, heads * head_dim] -> [B, heads, L, head_dim]
  Value* Split(Value* x, int64_t heads, int64_t head_dim, const Dim& rows, const Dim& length) {
    x = b_.Add(Reshape{.x = x, .shape = {rows, length, Dim(heads), Dim(head_dim)}});
    return b_.Add(Transpose{.x = x, .perm = {0, 2, 1, 3}});
  }

  Value* Attend(const AttentionSpec& a, size_t index, Value* x, const std::string& prefix, const std::string& module) {
    const std::string i = absl::StrCat(index);
    const BlockGraph::Qkv p = blocks_.Project(a, x, spec_.hidden_size, prefix, i);
    b_.set_loc(module);
    double scale = a.scale == 0 ? 1 / std::sqrt(static_cast<double>(a.head_dim)) : a.scale;
    if (packed_) {
      Value* packed = b_.Add(PackedAttention{.q = Rotated(a, p.q),
                                             .k = Rotated(a, p.k),
                                             .v = p.v,
                                             .starts = starts_,
                                             .head_dim = a.head_dim,
                                             .scale = scale,
                                             .window = a.window,
                                             .causal = spec_.is_causal,
                                             .softcap = a.softcap},
                             "%a" + i);
      return blocks_.Linear(a.o, packed, a.heads * a.head_dim, spec_.hidden_size, prefix, "o", "%o" + i);
    }
    Value* q = Split(Rotated(a, p.q), a.heads, a.head_dim, Batch(), Length());
    Value* k = Split(Rotated(a, p.k), a.kv_heads, a.head_dim, Batch(), Length());
    Value* v = Split(p.v, a.kv_heads, a.head_dim, Batch(), Length());
    Value* mask = nullptr;
    if (spec_.disentangled.has_value()) {
      const Disentangled& d = *spec_.disentangled;
      scale /= std::sqrt(1.0 + (d.content_to_position ? 1 : 0) + (d.position_to_content ? 1 : 0));
      mask = DisentangledScores(d, a, q, k, scale, prefix);
    } else {
      mask = Mask(a.window);
    }
    Value* attended = b_.Add(
        Attention{
            .q = q, .k = k, .v = v, .mask = mask, .scale = scale, .causal = spec_.is_causal, .softcap = a.softcap},
        "%a" + spec_.name + i);
    attended = b_.Add(Transpose{.x = attended, .perm = {0, 2, 1, 3}});
    attended = b_.Add(Reshape{.x = attended, .shape = {Batch(), Length(), Dim(a.heads * a.head_dim)}});
    return blocks_.Linear(a.o, attended, a.heads * a.head_dim, spec_.hidden_size, prefix, "o", "%o" + i);
  }

  // bool[B, 1, 1, L]: what is no padding.
  Value* Seen() {
    if (seen_ == nullptr && mask_ != nullptr) {
      Value* shaped = b_.Add(Reshape{.x = mask_, .shape = {Batch(), Dim(1), Dim(1), Length()}});
      seen_ = b_.Add(Cast{.x = shaped, .to = DType::kBool}, "%seen");
    }
    return seen_;
  }

  // i64[L, L]: the place of the query less that of the key.
  Value* Distance() {
    if (distance_ == nullptr) {
      Value* queries = b_.Add(Reshape{.x = Places(), .shape = {Length(), Dim(1)}});
      distance_ = b_.Add(Sub{.lhs = queries, .rhs = Places()}, "%distance");
    }
    return distance_;
  }

  // For attention: bool, or scores where there is a bias. A window is of keys on both sides.
  Value* Mask(int64_t window) {
    Value* mask = Seen();
    if (window > 0) {
      Value*& near = windows_[window];
      if (near == nullptr) {
        Value* is_near = b_.Add(LessEqual{.lhs = b_.Add(Abs{.x = Distance()}), .rhs = Whole(window)});
        is_near = b_.Add(Reshape{.x = is_near, .shape = {Dim(1), Dim(1), Length(), Length()}});
        near = mask == nullptr ? is_near : b_.Add(And{.lhs = mask, .rhs = is_near}, "%near");
      }
      mask = near;
    }
    if (!spec_.relative_bias.has_value()) return mask;
    if (biased_ == nullptr) {
      Value* bias = Bias(*spec_.relative_bias);
      biased_ = b_.Add(Where{.condition = mask, .x = bias, .y = Lowest(bias)}, "%biased");
    }
    return biased_;
  }

  Value* Lowest(Value* like) { return blocks_.Number(-std::numeric_limits<double>::infinity(), like); }

  // [1, heads, L, L]
  Value* Bias(const RelativeBias& r) {
    const int64_t heads = std::get<AttentionSpec>(spec_.layers[0].attention).heads;
    Value* table = Table("relative", r.module, r.buckets, heads);
    Value* bias = b_.Add(Gather{.x = table, .indices = RelativeBucket(r, Distance(), &blocks_)});  // [L, L, heads]
    bias = b_.Add(Transpose{.x = bias, .perm = {2, 0, 1}});
    return b_.Add(Reshape{.x = bias, .shape = {Dim(1), Dim(heads), Length(), Length()}}, "%bias");
  }

  // What is added to the scores by content, and the mask: [B, heads, L, L]. As in transformers, a query that is padding
  // sees all keys alike.
  Value* DisentangledScores(const Disentangled& d, const AttentionSpec& a, Value* q, Value* k, double scale,
                            const std::string& prefix) {
    if (rows_ == nullptr) {
      rows_ = DistanceRow(d, Distance(), &blocks_);
      table_ = Table("distances", d.table, 2 * d.span, spec_.hidden_size);
      if (d.norm.has_value())
        table_ = blocks_.Norm(*d.norm, table_, spec_.hidden_size, Own("distance_norm"), "%distances");
    }
    const int64_t width = a.heads * a.head_dim;
    const auto projected = [&](const LinearSpec& shared, const std::string& own, const std::string& weight) {
      LinearSpec linear = shared;
      if (!d.shares_keys) linear.module = shared.module.substr(0, shared.module.rfind('.') + 1) + own;
      const std::string name = d.shares_keys ? weight : "pos_" + weight;
      Value* y = blocks_.Linear(linear, table_, spec_.hidden_size, width, prefix, name, "");
      return Split(y, a.heads, a.head_dim, Dim(1), Dim(2 * d.span));
    };
    Value* scores = nullptr;
    const Dims shape = {Batch(), Dim(a.heads), Length(), Length()};
    Value* rows = b_.Add(Expand{.x = rows_, .shape = shape});
    const auto add = [&](Value* content, Value* distances, bool of_keys) {
      Value* all = b_.Add(MatMul{.lhs = content, .rhs = distances, .transpose_rhs = true});  // [B, heads, L, 2 * span]
      Value* at = of_keys ? b_.Add(Transpose{.x = rows, .perm = {0, 1, 3, 2}}) : rows;
      Value* own = b_.Add(GatherElements{.x = all, .indices = at, .axis = 3});
      if (of_keys) own = b_.Add(Transpose{.x = own, .perm = {0, 1, 3, 2}});
      own = blocks_.Scaled(own, scale, "");
      scores = scores == nullptr ? own : b_.Add(Add{.lhs = scores, .rhs = own});
    };
    if (d.content_to_position) add(q, projected(a.k, "pos_key_proj", "k"), false);
    if (d.position_to_content) add(k, projected(a.q, "pos_query_proj", "q"), true);
    Value* both = b_.Add(And{.lhs = Seen(), .rhs = b_.Add(Transpose{.x = Seen(), .perm = {0, 1, 3, 2}})});
    if (scores == nullptr) {
      scores = b_.Add(Expand{.x = blocks_.Number(0, q), .shape = shape});
    }
    Value* lowest = blocks_.Number(blocks_.dtype() == DType::kF16 ? -6.0e4 : -3.0e38, scores);
    return b_.Add(Where{.condition = both, .x = scores, .y = lowest});
  }

  Value* Convolve(const TowerSpec::Convolution& c, Value* in, Value* out) {
    b_.set_loc(c.module);
    Value* x = b_.Add(Transpose{.x = in, .perm = {0, 2, 1}});
    const int64_t h = spec_.hidden_size;
    Value* weight = blocks_.Weight(Own("conv"), c.module + ".weight", {h, h / c.groups, c.kernel});
    Value* bias = blocks_.Weight(Own("conv.bias"), c.module + ".bias", {h});
    const int64_t pad = (c.kernel - 1) / 2;
    x = b_.Add(Conv{.x = x, .weight = weight, .bias = bias, .pads = {pad, pad}, .groups = c.groups});
    x = Unpadded(b_.Add(Transpose{.x = x, .perm = {0, 2, 1}}));
    x = b_.Add(Add{.lhs = out, .rhs = blocks_.Act(c.activation, x, "")});
    return Unpadded(blocks_.Norm(c.norm, x, h, Own("conv_norm"), "%convolved"));
  }

  const TowerSpec& spec_;
  const bool packed_;
  BlockGraph& blocks_;
  Builder& b_;
  Model* model_;
  Step* step_;
  Dim length_;
  bool is_typed_ = false;
  Value *ids_ = nullptr, *mask_ = nullptr, *words_ = nullptr, *places_ = nullptr, *seen_ = nullptr;
  Value *starts_ = nullptr, *rows_of_ = nullptr;  // of packed texts
  Value *distance_ = nullptr, *biased_ = nullptr, *rows_ = nullptr, *table_ = nullptr;
  std::map<int64_t, Value*> windows_;
  std::vector<std::pair<Value*, double>> ropes_;  // frequencies, and what cos and sin are multiplied with
};

}  // namespace

TowerValues BuildTower(const TowerSpec& spec, bool packed, BlockGraph* blocks, Model* model, Step* step) {
  Tower tower(spec, packed, blocks, model, step);
  Value* hidden = tower.Build();
  return {hidden, tower.ids(), tower.words(), tower.mask()};
}

}  // namespace llmc::hf
