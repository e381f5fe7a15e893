// Forms kernels of the nodes of a step and lets nodes join them, as rules and backends say.
//
// First the roots, such as products, in their order: each gets the backend that is cheapest with what its rules let
// join it. Then what rules with Form find. Then the rest from the last node to the first, so that what reads a node has
// its kernel before it: a node joins a kernel that reads it, or becomes one. Nodes only join and never leave, so this
// takes time in the order of the nodes. The text keeps its order: members of a kernel need not stand together yet.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "ir/graph.h"
#include "passes/driver/ledger.h"
#include "passes/driver/match.h"
#include "passes/lower/backend.h"
#include "passes/lower/lower.h"

namespace llmc {

class KernelFormer {
 public:
  using Members = std::vector<Node*>;  // in their order in the step

  // All of these must outlive the former.
  KernelFormer(Model* model, Step* step, const Backends& backends, const std::vector<CompiledRule>& rules,
               Ledger* ledger);

  void Run();

  const absl::flat_hash_map<Kernel*, Members>& members() const { return members_; }
  KernelReport TakeReport(const Kernel* kernel) { return std::move(reports_[kernel]); }
  // Why no backend takes a node, for each such node.
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  // A kernel that is being made.
  struct Draft {
    const Backend* backend = nullptr;
    Members members;
    KernelReport report;
    std::vector<std::pair<std::string, LedgerPlace>> fired;  // rules
    struct Refused {
      const CompiledRule* rule;
      LedgerPlace place;
      Misfit misfit;
    };
    std::vector<Refused> refused;
  };

  // ---- roots and other first nodes of kernels
  void Begin(Node* node);
  void ChooseCheapest(std::vector<Draft>* drafts) const;
  double CostAlone(const Node& node) const;
  void Grow(Kernel* kernel);
  void Commit(Draft draft);
  void Commit(Draft draft, Kernel* kernel);

  // ---- rules
  void Form(const CompiledRule& rule, Node* node);
  // What reads a result of the members.
  void JoinReaders(Draft* draft);
  bool JoinReader(const CompiledRule& rule, Node* reader, Draft* draft);
  // What the kernels read that read `node`.
  bool JoinKernels(Node* node);
  bool JoinKernels(const CompiledRule& rule, Node* node);
  bool MoveInto(const CompiledRule& rule, Node* node, Kernel* kernel);
  bool CopyInto(const CompiledRule& rule, Node* node, const std::vector<Kernel*>& readers);
  bool Matches(const CompiledRule& rule, Node* node) const;
  void NoteRefusal(const CompiledRule& rule, const LedgerPlace& place, const Misfit& misfit, KernelReport* report);
  void NoteJoined(const CompiledRule& rule, const Node& node, Kernel* kernel);

  // ---- what may be a kernel
  std::optional<Misfit> MisfitOf(const Backend& backend, const Members& members) const;
  // Of a kernel that gets a copy of `node`.
  std::optional<Misfit> MisfitWithCopy(const Backend& backend, const Members& members, Node* node) const;
  KernelBody BodyOf(const Members& members) const { return llmc::BodyOf(members, outputs_); }
  bool DependsOnItself(const Members& members) const;
  const Backend& BackendOf(const Kernel& kernel) const;

  Model* model_;
  Step* step_;
  const Backends& backends_;
  const std::vector<CompiledRule>& rules_;
  Ledger* ledger_;
  absl::flat_hash_set<const Value*> outputs_;
  absl::flat_hash_map<Kernel*, Members> members_;
  absl::flat_hash_map<const Kernel*, KernelReport> reports_;
  std::vector<std::string> missing_;
};

}  // namespace llmc
