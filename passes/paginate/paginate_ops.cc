// Single ops on tokens: each gives the same for a token wherever it stands, or is refused.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "passes/paginate/paginator.h"

namespace llmc::pagination {

std::vector<size_t> Paginator::Features(const std::vector<Axis>& axes) {
  std::vector<size_t> features;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] == Axis::kFeature) features.push_back(i);
  }
  return features;
}

int64_t Paginator::NewAxis(const std::vector<Axis>& axes, size_t axis) {
  return 1 + std::count(axes.begin(), axes.begin() + static_cast<ptrdiff_t>(axis), Axis::kFeature);
}

Dims Paginator::NewShape(const Dim& lead, const Dims& shape, const std::vector<Axis>& axes) {
  Dims out = {lead};
  for (const size_t i : Features(axes)) out.push_back(shape[i]);
  return out;
}

Value* Paginator::Reshaped(Value* value, Dims shape) {
  return value->type.shape == shape ? value : builder_->Add(Reshape{.x = value, .shape = std::move(shape)});
}

Refusal Paginator::No(const Node& node, std::string actual, std::string expected) {
  return {&node, std::move(actual), std::move(expected)};
}

std::string Paginator::OfTokens(const Node& node, size_t axis) {
  const Dims& shape = node.operands[0]->type.shape;
  const std::string size = axis < shape.size() ? shape[axis].ToString() : "none";
  return absl::StrCat("axis ", axis, " (", size, "), which counts tokens");
}

Verdict Paginator::Convert(const Node& node) {
  if (Is<Attention>(&node)) return ConvertAttention(node);
  if (Is<RotaryEmbedding>(&node)) return ConvertRotary(node);
  if (IsCut(node)) {
    const std::optional<Token> whole = Find(node.operands[0]);
    if (whole.has_value() && whole->is_constant()) {
      tokens_[node.results[0]] = {whole->value, {}, true};
      return std::nullopt;
    }
  }
  std::vector<Token> in;
  bool is_constant = true;
  Dim lead;
  for (const Value* operand : node.operands) {
    if (operand == nullptr) {
      in.emplace_back();
      continue;
    }
    const std::optional<Token> token = Find(operand);
    if (!token.has_value()) return No(node, operand->name, "a value of tokens");
    if (!token->is_constant() && !is_constant && !(token->value->type.shape[0] == lead)) {
      return No(node, operand->name, "as many tokens as its other operands have");
    }
    if (!token->is_constant()) lead = token->value->type.shape[0];
    is_constant = is_constant && token->is_constant();
    in.push_back(*token);
  }
  if (std::any_of(in.begin(), in.end(), [](const Token& token) { return token.is_cut; })) {
    return ConvertCut(node, in);
  }
  if (is_constant) return ConvertConstant(node, in);
  if (&node == head_ && !in[0].is_constant())
    in[0].value = builder_->Add(Gather{.x = in[0].value, .indices = inputs_.at(StepRole::kRows)});
  if (Is<Gather>(&node)) return ConvertGather(node, in);
  if (IsProduct(&node)) return ConvertProduct(node, in);
  if (Is<Encode>(&node)) return ConvertEncode(node, in);
  if (Is<Decode>(&node)) return ConvertElementwise(node, in);  // tokens share no scales but those of all
  if (Is<Reshape>(&node)) return ConvertReshape(node, in);
  if (Is<Expand>(&node)) return ConvertExpand(node, in);
  if (Is<Transpose>(&node)) return ConvertTranspose(node, in);
  switch (node.op->info.mixes) {
    case Mixes::kNone:
      if (node.results[0]->type.rank() == Widest(node)) return ConvertElementwise(node, in);
      break;
    case Mixes::kAxis:
    case Mixes::kAxisToLast:
      return ConvertAlongAxis(node, in);
    case Mixes::kLastAxis:
      return ConvertOverLast(node, in);
    case Mixes::kAxes:
      return ConvertReduce(node, in);
    case Mixes::kAllButFirst:
      return ConvertRows(node, in);
    case Mixes::kAll:
      break;
  }
  return No(node, std::string(node.op->info.name), "an op that treats each token for itself");
}

int Paginator::Widest(const Node& node) {
  int rank = 0;
  for (const Value* operand : node.operands) rank = std::max(rank, operand == nullptr ? 0 : operand->type.rank());
  return rank;
}

Value* Paginator::AddLike(const Node& node, std::vector<Value*> operands, Attrs attrs) {
  Node* made = builder_->AddRaw(node.op, std::move(operands), std::move(attrs), {});
  return made == nullptr || made->results.empty() ? nullptr : made->results[0];
}

const Dims* Paginator::SymbolicDims(const Node& node) {
  const auto is_number = [](const Dim& dim) { return dim.is_constant(); };
  for (const auto& [name, attr] : node.attrs) {
    const Dims* dims = std::get_if<Dims>(&attr);
    if (dims != nullptr && !std::all_of(dims->begin(), dims->end(), is_number)) return dims;
  }
  return nullptr;
}

Verdict Paginator::ConvertConstant(const Node& node, const std::vector<Token>& in) {
  if (const Dims* dims = SymbolicDims(node)) {
    return No(node, DimsToString(*dims), "what does not depend on how many tokens there are");
  }
  std::vector<Value*> operands;
  for (const Token& token : in) operands.push_back(token.value);
  Node* made = builder_->AddRaw(node.op, operands, node.attrs, {});
  for (size_t i = 0; made != nullptr && i < made->results.size(); ++i) {
    for (const Dim& dim : made->results[i]->type.shape) {
      if (!dim.is_constant()) return No(node, made->results[i]->type.ToString(), "a size that is a number");
    }
    Set(node, made->results[i], {}, i);
  }
  return std::nullopt;
}

Verdict Paginator::ConvertCut(const Node& node, const std::vector<Token>& in) {
  if (Is<Gather>(&node) && in[0].is_cut && in[1].value == inputs_.at(StepRole::kPositions))
    return ConvertGather(node, in);
  const bool by_row = in.size() == 1 && (Is<Cast>(&node) || (Is<Slice>(&node) && View<Slice>(node).axis != 0));
  if (!by_row) return No(node, "a table with a row for each token", "rows of it by position");
  if (Verdict no = ConvertConstant(node, in); no.has_value()) return no;
  tokens_[node.results[0]].is_cut = true;
  return std::nullopt;
}

Verdict Paginator::ConvertGather(const Node& node, const std::vector<Token>& in) {
  const auto op = View<Gather>(node);
  if (!in[0].is_constant() || op.axis != 0 || in[1].is_constant()) {
    return No(node, "slices of what depends on tokens", "rows of a table by token or position");
  }
  const Dim& rows = in[0].value->type.shape[0];
  const std::optional<int64_t> offset = PositionOffset(*op.indices);
  if (offset.has_value() && rows.is_constant()) {
    if (*offset < 0 || *offset >= rows.value()) return No(node, "positions outside the table", "rows by position");
    max_context_ = std::min(max_context_, rows.value() - *offset);
  }
  std::vector<Axis> axes = in[1].axes;
  axes.resize(static_cast<size_t>(node.results[0]->type.rank()), Axis::kFeature);
  Set(node, builder_->Add(Gather{.x = in[0].value, .indices = in[1].value}), axes);
  return std::nullopt;
}

Verdict Paginator::ConvertProduct(const Node& node, const std::vector<Token>& in) {
  const bool is_matrix = node.operands[1]->type.rank() == 2;
  if (in[0].is_constant() || !in[1].is_constant() || !is_matrix || in[0].axes.back() != Axis::kFeature) {
    return No(node, "a product of tokens", "a product with a matrix");
  }
  Set(node, AddLike(node, {in[0].value, in[1].value}, node.attrs), in[0].axes);
  return std::nullopt;
}

Verdict Paginator::ConvertEncode(const Node& node, const std::vector<Token>& in) {
  std::vector<Value*> operands = {in[0].value};
  for (size_t i = 1; i < in.size(); ++i) {
    if (!in[i].is_constant()) {
      return No(node, node.operands[i]->name, "a scale and zero point that do not depend on tokens");
    }
    operands.push_back(in[i].value);
  }
  Set(node, AddLike(node, operands, node.attrs), in[0].axes);
  return std::nullopt;
}

Verdict Paginator::ConvertReshape(const Node& node, const std::vector<Token>& in) {
  const Dims &from = node.operands[0]->type.shape, &to = node.results[0]->type.shape;
  std::vector<Axis> axes;  // but for those of 1
  for (size_t i = 0; i < from.size(); ++i) {
    if (in[0].axes[i] != Axis::kFeature || !(from[i] == Dim(1))) axes.push_back(in[0].axes[i]);
  }
  const std::vector<Axis> two = {Axis::kBatch, Axis::kSequence}, one = {Axis::kToken}, line = {Axis::kSequence};
  const auto starts_with = [&](const std::vector<Axis>& front) {
    return axes.size() >= front.size() && std::equal(front.begin(), front.end(), axes.begin()) &&
           std::all_of(axes.begin() + static_cast<ptrdiff_t>(front.size()), axes.end(),
                       [](Axis axis) { return axis == Axis::kFeature; });
  };
  if (!starts_with(two) && !starts_with(one) && !starts_with(line)) {
    return No(node, DimsToString(from), "tokens in front of all other axes");
  }
  std::vector<Axis> kept;
  const bool is_line = starts_with(line) || (from[0] == Dim(1) && starts_with(two));
  if (to.size() >= 2 && Known(to[0]) == batch_ && Known(to[1]) == sequence_) {
    kept = two;
  } else if (!to.empty() && Known(to[0]) == batch_ * sequence_) {
    kept = one;
  } else if (is_line && to.size() >= 2 && to[0] == Dim(1) && Known(to[1]) == sequence_) {
    kept = two;  // the same for each sequence: what comes of positions
  } else if (is_line && !to.empty() && Known(to[0]) == sequence_) {
    kept = line;
  } else if (!is_line && to.size() >= 3 && Known(to[0]) == batch_ && to[1] == Dim(1) && Known(to[2]) == sequence_) {
    kept = {Axis::kBatch, Axis::kFeature, Axis::kSequence};  // one head before the tokens
  } else {
    return No(node, DimsToString(to), "a shape that keeps the axes of tokens");
  }
  for (size_t i = kept.size(); i < to.size(); ++i) {
    if (!to[i].is_constant()) return No(node, DimsToString(to), "features of known sizes");
  }
  kept.resize(to.size(), Axis::kFeature);
  const Dim lead = in[0].value->type.shape[0];
  Set(node, Reshaped(in[0].value, NewShape(lead, to, kept)), kept);
  return std::nullopt;
}

Verdict Paginator::ConvertExpand(const Node& node, const std::vector<Token>& in) {
  const Dims& to = node.results[0]->type.shape;
  const std::vector<Axis>& axes = in[0].axes;
  if (to.size() != axes.size()) return No(node, DimsToString(to), "as many axes as before");
  for (size_t i = 0; i < to.size(); ++i) {
    const bool fits = axes[i] == Axis::kBatch      ? Known(to[i]) == batch_
                      : axes[i] == Axis::kSequence ? Known(to[i]) == sequence_
                      : axes[i] == Axis::kToken    ? Known(to[i]) == batch_ * sequence_
                                                   : to[i].is_constant();
    if (!fits) return No(node, DimsToString(to), "the axes of tokens, and known sizes");
  }
  const Dims shape = NewShape(in[0].value->type.shape[0], to, axes);
  Value* value = in[0].value;
  if (!(value->type.shape == shape)) value = builder_->Add(Expand{.x = value, .shape = shape});
  Set(node, value, axes);
  return std::nullopt;
}

Verdict Paginator::ConvertTranspose(const Node& node, const std::vector<Token>& in) {
  const auto op = View<Transpose>(node);
  std::vector<Axis> axes;
  std::vector<int64_t> perm = {0};
  for (const int64_t from : op.perm) {
    axes.push_back(in[0].axes[static_cast<size_t>(from)]);
    if (axes.back() == Axis::kFeature) perm.push_back(NewAxis(in[0].axes, static_cast<size_t>(from)));
  }
  Value* value = in[0].value;
  if (!std::is_sorted(perm.begin(), perm.end())) value = builder_->Add(Transpose{.x = value, .perm = perm});
  Set(node, value, axes);
  return std::nullopt;
}

Verdict Paginator::ConvertAlongAxis(const Node& node, const std::vector<Token>& in) {
  const auto attr = node.attrs.find("axis");
  const size_t axis = attr == node.attrs.end() ? 0 : static_cast<size_t>(std::get<int64_t>(attr->second));
  const std::vector<Axis>& axes = in[0].axes;
  if (SymbolicDims(node) != nullptr) return No(node, "sizes that only a run tells", "features of known sizes");
  std::vector<Value*> operands;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool is_parameter = node.op->UseOf(i) == Use::kParameter;
    const bool fits = is_parameter ? in[i].is_constant() : in[i].axes == axes;
    if (node.operands[i] != nullptr && !fits) {
      return No(node, node.operands[i]->name, is_parameter ? "a weight" : "parts that are all of tokens");
    }
    operands.push_back(in[i].value);
  }
  if (axis >= axes.size() || axes[axis] != Axis::kFeature) return No(node, OfTokens(node, axis), "an axis of features");
  const bool to_the_end = node.op->info.mixes == Mixes::kAxisToLast;
  for (size_t i = axis; to_the_end && i < axes.size(); ++i) {
    if (axes[i] != Axis::kFeature) return No(node, OfTokens(node, i), "axes of features");
  }
  Attrs attrs = node.attrs;
  attrs["axis"] = NewAxis(axes, axis);
  Set(node, AddLike(node, operands, attrs), axes);
  return std::nullopt;
}

Verdict Paginator::ConvertOverLast(const Node& node, const std::vector<Token>& in) {
  const std::vector<Axis>& axes = in[0].axes;
  bool agree = !axes.empty() && axes.back() == Axis::kFeature;
  for (size_t i = 1; i < in.size(); ++i) {
    const bool is_parameter = node.op->UseOf(i) == Use::kParameter;
    if (is_parameter && !in[i].is_constant()) return No(node, node.operands[i]->name, "a weight");
    agree = agree && (is_parameter || in[i].axes == axes);
  }
  if (!agree) return No(node, OfTokens(node, axes.size() - 1), "a last axis of features");
  std::vector<Value*> operands;
  for (const Token& token : in) operands.push_back(token.value);
  Node* made = builder_->AddRaw(node.op, operands, node.attrs, {});
  for (size_t i = 0; made != nullptr && i < made->results.size(); ++i) Set(node, made->results[i], axes, i);
  return std::nullopt;
}

Verdict Paginator::ConvertRows(const Node& node, const std::vector<Token>& in) {
  std::vector<Value*> operands;
  for (size_t i = 0; i < in.size(); ++i) {
    operands.push_back(in[i].value);
    if (node.operands[i] == nullptr) continue;
    const bool is_weight = node.op->UseOf(i) == Use::kParameter || node.op->UseOf(i) == Use::kFrequency;
    const std::vector<Axis>& axes = in[i].axes;
    const bool has_tokens =
        !axes.empty() && axes[0] == Axis::kToken &&
        std::count(axes.begin(), axes.end(), Axis::kFeature) + 1 == static_cast<ptrdiff_t>(axes.size());
    if (is_weight ? in[i].is_constant() : has_tokens) continue;
    return No(node, node.operands[i]->name, is_weight ? "a weight" : "tokens in the first axis alone");
  }
  Node* made = builder_->AddRaw(node.op, operands, node.attrs, {});
  for (size_t i = 0; made != nullptr && i < made->results.size(); ++i) {
    std::vector<Axis> axes(static_cast<size_t>(node.results[i]->type.rank()), Axis::kFeature);
    axes[0] = Axis::kToken;
    Set(node, made->results[i], std::move(axes), i);
  }
  return std::nullopt;
}

Verdict Paginator::ConvertReduce(const Node& node, const std::vector<Token>& in) {
  std::vector<int64_t> reduced;
  if (const auto it = node.attrs.find("axes"); it != node.attrs.end())
    reduced = std::get<std::vector<int64_t>>(it->second);
  const auto keep = node.attrs.find("keep_dims");
  const bool keeps = keep != node.attrs.end() && std::get<bool>(keep->second);
  std::vector<Axis> axes;
  std::vector<int64_t> mapped;
  for (size_t i = 0; i < in[0].axes.size(); ++i) {
    const bool goes = std::find(reduced.begin(), reduced.end(), static_cast<int64_t>(i)) != reduced.end();
    if (goes && in[0].axes[i] != Axis::kFeature) return No(node, OfTokens(node, i), "axes of features");
    if (goes) mapped.push_back(NewAxis(in[0].axes, i));
    if (!goes || keeps) axes.push_back(in[0].axes[i]);
  }
  Attrs attrs = node.attrs;
  attrs["axes"] = mapped;
  Set(node, AddLike(node, {in[0].value}, attrs), axes);
  return std::nullopt;
}

Verdict Paginator::ConvertElementwise(const Node& node, const std::vector<Token>& in) {
  const size_t rank = node.results[0]->type.shape.size();
  std::vector<Axis> axes(rank, Axis::kFeature);
  for (const Token& token : in) {
    for (size_t i = 0; i < token.axes.size(); ++i) {
      if (token.axes[i] != Axis::kFeature) axes[rank - token.axes.size() + i] = token.axes[i];
    }
  }
  std::vector<Value*> operands;
  for (size_t i = 0; i < in.size(); ++i) {
    const Dims& shape = node.operands[i]->type.shape;
    const size_t missing = rank - shape.size();
    Dims features;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const bool is_token = axes[missing + axis] != Axis::kFeature;
      const bool broadcasts = in[i].is_constant() ? shape[axis] == Dim(1) : true;
      const bool fits = in[i].is_constant() || in[i].axes[axis] == axes[missing + axis];
      if (is_token ? !broadcasts || !fits : !fits) return No(node, node.operands[i]->name, "axes of tokens that agree");
      if (!is_token) features.push_back(shape[axis]);
    }
    if (!in[i].is_constant()) {
      // Features that the value lacks stand between its tokens and its features.
      Dims with_lead = {in[i].value->type.shape[0]};
      const size_t expected = Features(axes).size();
      with_lead.resize(1 + expected - features.size(), Dim(1));
      features.insert(features.begin(), with_lead.begin(), with_lead.end());
    }
    Value* value = in[i].value;
    const DType dtype = node.operands[i]->type.dtype;  // positions are counted in i32
    if (value->type.dtype != dtype) value = builder_->Add(Cast{.x = value, .to = dtype});
    operands.push_back(Reshaped(value, features));
  }
  Set(node, AddLike(node, operands, node.attrs), axes);
  return std::nullopt;
}

}  // namespace llmc::pagination
