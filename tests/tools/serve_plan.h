// Requests through the engine of a compiled plan, alone and together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/llmc.h"

namespace llmc {

struct Continuation {
  std::vector<int32_t> prompt, tokens;
  std::vector<double> margins;  // of each token to the second best, in logits; empty: all are wide enough
};

// Eight prompts of 1 to 50 tokens, of a vocabulary of at least `vocabulary` tokens.
std::vector<std::vector<int32_t>> EightPrompts(int vocabulary);

// What a plan adds to each prompt, greedily, one after another, with margins.
std::vector<Continuation> ContinueAlone(const std::string& plan, const std::string& device,
                                        const std::vector<std::vector<int32_t>>& prompts, int64_t tokens);

// Runs all prompts in one engine: they join between its steps, and longer ones are read in pieces. Each must go on as
// expected; from the first token whose margin is below `loose_margin` on, it may differ.
void ExpectTogether(const std::string& plan, const std::string& device, const std::vector<Continuation>& expected,
                    double loose_margin);

using CompilePlan = std::function<std::string(const std::string& model, const std::vector<std::string>& options)>;
// The folders of the shared tiny-models; that of Gemma 2 without the cap of attention's scores, without which its
// reference was made.
std::vector<std::string> TinyModels();
// ExpectTogether for those folders whose reference.json has tokens, by plans of f32 that `compile` makes: each goes on
// as transformers did. Returns how many there are.
int ExpectTokensOfTransformers(const std::vector<std::string>& folders, const CompilePlan& compile,
                               const std::string& device);

// ExpectTogether for every decoder of the shared onnx-exports. Expected is what the folder of tiny-models gives, and
// for one prompt what transformers gave. Returns how many exports there are.
int ExpectExportsTogether(const CompilePlan& compile, const std::string& device);

}  // namespace llmc
