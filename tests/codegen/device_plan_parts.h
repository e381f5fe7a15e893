// Plans of texts for a GPU, without one, and their code.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "codegen/device_plan.h"
#include "codegen/plan_writer.h"
#include "cubins/nvrtc.h"
#include "cubins/targets.h"
#include "ir/text.h"
#include "runtime/plan/plan_format.h"

namespace llmc {

inline std::unique_ptr<Model> Parse(const std::string& text) {
  auto model = ParseModel(text, "m.lir");
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

// With the weights and states of the model.
inline plan::Manifest ManifestOf(const Model& model) {
  plan::Manifest manifest;
  manifest.set_format_version(plan::kVersion);
  for (const Value* weight : model.weights) {
    plan::Weight* to = manifest.add_weights();
    to->set_name(weight->name);
    to->set_dtype(std::string(DTypeName(weight->type.dtype)));
    for (const Dim& dim : weight->type.shape) to->add_shape(dim.value());
    to->set_bytes(static_cast<uint64_t>(weight->type.Bytes().number()));
  }
  for (const Value* state : model.states) {
    DescribeState(*state, manifest.add_states());
  }
  return manifest;
}

inline const CompileOptions kCache = {.cache_folder = LLMC_CUBINS, .fast_compile = true};

inline absl::Status PlanAndCompile(const Model& model, const std::vector<std::string>& targets,
                                   plan::Manifest* manifest, DeviceCode* code) {
  const absl::Status status = PlanDevice(model, *ParseTargets(targets), manifest, code);
  return status.ok() ? CompileDevicePlan(kCache, manifest, code) : status;
}

inline bool HasNvrtc() { return NvrtcVersion().ok(); }

// A layer as Llama has it: what a step of one token launches, and what one of many does.
inline constexpr char kLayer[] = R"(model "m"
dim N <= 64
dim P <= 8
dim R <= 2
dim S <= 2
dim T <= 32
weight @embed: bf16[100, 64] = "f#e"
weight @norm: bf16[64] = "f#n"
weight @w_qkv: bf16[128, 64] = "f#q"
weight @b_qkv: bf16[128] = "f#b"
weight @wo: bf16[64, 64] = "f#o"
weight @w_gate_up: bf16[192, 64] = "f#g"
weight @wd: bf16[64, 96] = "f#d"
weight @f: f32[8] = "f#f"
state @kv0: paged[N, 16] {k: bf16[2, 16], v: bf16[2, 16]}
step main(%ids: i32[T] = token_ids, %pos: i32[T] = positions, %slots: i32[T] = slots, %pages: i32[S, P] = page_table, %lens: i32[S] = lengths, %starts: i32[S + 1] = starts, %rows: i32[R] = rows) {
  %x = gather @embed, %ids
  %n1 = rms_norm %x, @norm
  %qkv0 = matmul %n1, @w_qkv {transpose_rhs = true}
  %qkv = add %qkv0, @b_qkv
  %q0 = slice %qkv {axis = 1, start = [0], end = [64]}
  %k0 = slice %qkv {axis = 1, start = [64], end = [96]}
  %v0 = slice %qkv {axis = 1, start = [96], end = [128]}
  %q = rope %q0, %pos, @f {head_dim = 16}
  %k = rope %k0, %pos, @f {head_dim = 16}
  kv_write @kv0, %k, %v0, %slots
  %a = paged_attention %q, @kv0, %pages, %lens, %starts {scale = 0.25}
  %o = matmul %a, @wo {transpose_rhs = true}
  %x1 = add %x, %o
  %n2 = rms_norm %x1, @norm
  %gate_up = matmul %n2, @w_gate_up {transpose_rhs = true}
  %h = silu_mul %gate_up
  %d = matmul %h, @wd {transpose_rhs = true}
  %x2 = add %x1, %d
  %n3 = rms_norm %x2, @norm
  %r = gather %n3, %rows
  %logits = matmul %r, @embed {transpose_rhs = true}
  return "logits" = %logits
}
)";

}  // namespace llmc
