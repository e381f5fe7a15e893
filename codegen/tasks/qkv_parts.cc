#include "codegen/tasks/qkv_parts.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "codegen/tasks/select_internal.h"
#include "ir/ops.h"

namespace llmc {
namespace {

const Misfit kOtherNodes = {"other nodes", "slices, norms and rope of heads before a kv_write"};

class QkvReader {
 public:
  QkvReader(absl::Span<const Node* const> nodes, QkvParts* parts) : nodes_(nodes), parts_(*parts) {}

  std::optional<Misfit> Run() {
    const auto write = absl::c_find_if(nodes_, [](const Node* node) { return Is<KvWrite>(node); });
    if (write == nodes_.end()) return Misfit{"no kv_write", "one"};
    const auto op = View<KvWrite>(**write);
    const KvPages kv = KvPagesOf(op.kv, op.keys, op.values);
    if (op.keys != "k" || op.values != "v" || kv.head_dim() != kv.value_dim()) {
      return Misfit{absl::StrCat("components ", op.keys, " and ", op.values, " of heads of ", kv.head_dim(), " and ",
                                 kv.value_dim()),
                    "k and v, of one size"};
    }
    parts_.kv = op.kv;
    parts_.slots = op.slots;
    used_ = 1;
    const Node* k_rope = Take<Rope>(op.k);
    if (k_rope == nullptr) return Misfit{"keys that are not rotated", "rope of the keys"};
    SetRope(*k_rope);
    parts_.k = View<Rope>(*k_rope).x;
    parts_.v = op.v;
    if (used_ == nodes_.size()) return std::nullopt;
    return ReadMerged(*k_rope);
  }

 private:
  // The node that makes a value, if it is one of these.
  template <class Op>
  const Node* Take(const Value* value) {
    if (!Is<Op>(value->def) || !absl::c_linear_search(nodes_, value->def)) return nullptr;
    ++used_;
    return value->def;
  }

  void SetRope(const Node& node) {
    const auto op = View<Rope>(node);
    parts_.pos = op.pos;
    parts_.inv_freq = op.inv_freq;
    parts_.interleaved = op.interleaved;
    parts_.scale = op.scale;
  }

  static bool IsSameRope(const Rope& a, const Rope& b) {
    return a.pos == b.pos && a.inv_freq == b.inv_freq && a.head_dim == b.head_dim && a.interleaved == b.interleaved &&
           a.scale == b.scale;
  }

  std::optional<Misfit> ReadMerged(const Node& k_rope) {
    const auto q_rope = absl::c_find_if(nodes_, [&](const Node* node) { return Is<Rope>(node) && node != &k_rope; });
    if (q_rope == nodes_.end()) return kOtherNodes;
    ++used_;
    if (!IsSameRope(View<Rope>(**q_rope), View<Rope>(k_rope))) return Misfit{"two kinds of rope", "one"};
    parts_.out = (*q_rope)->results[0];
    const Node* q = HeadsOf(View<Rope>(**q_rope).x, &parts_.q_norm);
    const Node* k = HeadsOf(parts_.k, &parts_.k_norm);
    const Node* v = Take<Slice>(parts_.v);
    if (q == nullptr || k == nullptr || v == nullptr || used_ != nodes_.size()) return kOtherNodes;
    if ((parts_.q_norm == nullptr) != (parts_.k_norm == nullptr)) return Misfit{"a norm of queries or keys", "of both"};
    return SetSlices(View<Slice>(*q), View<Slice>(*k), View<Slice>(*v));
  }

  // The slice that the heads are, seen through their norm.
  const Node* HeadsOf(const Value* heads, const Value** norm) {
    if (const Node* flat = Take<Reshape>(heads)) {
      const Node* normed = Take<RmsNorm>(flat->operands[0]);
      if (normed == nullptr) return nullptr;
      const auto op = View<RmsNorm>(*normed);
      const Node* split = Take<Reshape>(op.x);
      if (split == nullptr || (parts_.eps != 0 && parts_.eps != op.eps)) return nullptr;
      *norm = op.weight;
      parts_.eps = op.eps;
      heads = split->operands[0];
    }
    return Take<Slice>(heads);
  }

  std::optional<Misfit> SetSlices(const Slice& q, const Slice& k, const Slice& v) {
    const Value* qkv = q.x;
    const bool whole = k.x == qkv && v.x == qkv && qkv->type.rank() == 2 && q.axis == 1 && k.axis == 1 && v.axis == 1 &&
                       q.start == Dims{Dim(0)} && q.end == k.start && k.end == v.start &&
                       v.end == Dims{qkv->type.shape[1]} && q.end[0].is_constant();
    if (!whole) return Misfit{"other slices", "queries, keys and values one after the other"};
    parts_.qkv = qkv;
    parts_.k = parts_.v = nullptr;
    parts_.heads = q.end[0].value() / KvPagesOf(parts_.kv).head_dim();
    return std::nullopt;
  }

  absl::Span<const Node* const> nodes_;
  QkvParts& parts_;
  size_t used_ = 0;  // nodes that are read
};

}  // namespace

std::optional<Misfit> ReadQkv(absl::Span<const Node* const> nodes, QkvParts* parts) {
  return QkvReader(nodes, parts).Run();
}

}  // namespace llmc
