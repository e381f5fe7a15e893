#include "frontend/onnx/order.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"

namespace llmc {
namespace {

using Names = absl::flat_hash_set<absl::string_view>;

void AddReads(const onnx::NodeProto& node, Names* names);

// Names that a body reads and does not make itself. Parsing bounds how deep bodies are nested.
void AddReadsOfBody(const onnx::GraphProto& body, Names* names) {
  Names reads;
  for (const onnx::NodeProto& node : body.node()) AddReads(node, &reads);
  for (const onnx::ValueInfoProto& output : body.output()) reads.insert(output.name());
  for (const onnx::NodeProto& node : body.node()) {
    for (const std::string& name : node.output()) reads.erase(name);
  }
  for (const onnx::ValueInfoProto& input : body.input()) reads.erase(input.name());
  for (const onnx::TensorProto& initializer : body.initializer()) reads.erase(initializer.name());
  names->insert(reads.begin(), reads.end());
}

void AddReads(const onnx::NodeProto& node, Names* names) {
  names->insert(node.input().begin(), node.input().end());
  for (const onnx::AttributeProto& attr : node.attribute()) {
    if (attr.has_g()) AddReadsOfBody(attr.g(), names);
    for (const onnx::GraphProto& body : attr.graphs()) AddReadsOfBody(body, names);
  }
}

// For each node the nodes that make what it reads, in the order of the file.
std::vector<std::vector<int>> Makers(const OnnxNodes& nodes) {
  absl::flat_hash_map<absl::string_view, int> maker_of;
  for (int i = 0; i < nodes.size(); ++i) {
    for (const std::string& name : nodes[i].output()) {
      if (!name.empty()) maker_of.emplace(name, i);
    }
  }
  std::vector<std::vector<int>> makers(static_cast<size_t>(nodes.size()));
  for (int i = 0; i < nodes.size(); ++i) {
    Names reads;
    AddReads(nodes[i], &reads);
    std::vector<int>& list = makers[static_cast<size_t>(i)];
    for (const absl::string_view name : reads) {
      if (const auto maker = maker_of.find(name); maker != maker_of.end()) list.push_back(maker->second);
    }
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  return makers;
}

// Visits makers before their readers, without recursion: graphs may be deep.
class Walk {
 public:
  explicit Walk(std::vector<std::vector<int>> makers) : makers_(std::move(makers)), state_(makers_.size()) {}

  OnnxOrder Run() {
    for (int root = 0; root < static_cast<int>(makers_.size()); ++root) {
      const std::vector<int>& list = makers_[static_cast<size_t>(root)];
      if (order_.moved_for < 0 && !list.empty() && list.back() >= root) order_.moved_for = root;
      if (state_[static_cast<size_t>(root)] == State::kNew) Visit(root);
    }
    return std::move(order_);
  }

 private:
  enum class State : uint8_t { kNew, kOpen, kDone };

  void Visit(int root) {
    Open(root);
    while (!path_.empty()) {
      auto& [node, next] = path_.back();
      const std::vector<int>& list = makers_[static_cast<size_t>(node)];
      if (next == list.size()) {
        state_[static_cast<size_t>(node)] = State::kDone;
        order_.nodes.push_back(node);
        path_.pop_back();
        continue;
      }
      const int maker = list[next++];
      if (state_[static_cast<size_t>(maker)] == State::kOpen) NoteCycle(maker);
      if (state_[static_cast<size_t>(maker)] == State::kNew) Open(maker);
    }
  }

  void Open(int node) {
    state_[static_cast<size_t>(node)] = State::kOpen;
    path_.emplace_back(node, 0);
  }

  // The last node of the path reads from `maker`, which is on the path. One cycle for each node is enough.
  void NoteCycle(int maker) {
    const int reader = path_.back().first;
    if (order_.cycles.contains(reader)) return;
    std::vector<int>& cycle = order_.cycles[reader];
    cycle.push_back(reader);
    if (order_.cycles.size() > kMaxCycles) return;
    for (auto at = path_.begin(); at + 1 != path_.end(); ++at) {
      if (at->first == maker || cycle.size() > 1) cycle.push_back(at->first);
      if (cycle.size() > kMaxCycle) break;
    }
  }

  static constexpr size_t kMaxCycle = 16, kMaxCycles = 100;  // nodes of a cycle, and cycles, that are told
  const std::vector<std::vector<int>> makers_;
  std::vector<State> state_;
  std::vector<std::pair<int, size_t>> path_;  // nodes that wait for their makers, and how many of those were seen
  OnnxOrder order_;
};

}  // namespace

OnnxOrder TopologicalOrder(const OnnxNodes& nodes) { return Walk(Makers(nodes)).Run(); }

}  // namespace llmc
