// Loads a plan of a language model and continues two texts at once, as they come.
//
//   llmc_example tale.plan "Once upon a time" "It was a dark night"
#include <iostream>
#include <string>

#include "runtime/llmc.h"

namespace {

// Prints what the engine says about one request, a line for each piece of text.
absl::Status AddRequest(const llmc::LoadedPlan& plan, llmc::Engine* engine, const std::string& prompt) {
  const auto ids = plan.tokenizer()->Encode(prompt, {});
  if (!ids.ok()) return ids.status();
  llmc::Request request{.prompt_ids = *ids, .max_new_tokens = 40};
  request.sampling = {.temperature = 0.8, .top_p = 0.95, .seed = 1};
  request.stop_strings = {"\n\n"};
  const auto id = engine->AddRequest(request, [](const llmc::TokenEvent& event) {
    std::cout << "request " << event.request << ": " << event.text << "\n";
    if (event.finish.has_value()) {
      std::cout << "request " << event.request << " ends: " << llmc::FinishReasonName(*event.finish) << "\n";
    }
  });
  return id.status();
}

absl::Status Run(const std::string& path, const std::string& first, const std::string& second) {
  const auto plan = llmc::LoadedPlan::Load(path, {});
  if (!plan.ok()) return plan.status();
  if (absl::Status status = (*plan)->tokenizer_status(); !status.ok()) return status;
  const auto engine = (*plan)->NewEngine({.max_sequences = 2});
  if (!engine.ok()) return engine.status();
  for (const std::string& prompt : {first, second}) {
    if (absl::Status status = AddRequest(**plan, engine->get(), prompt); !status.ok()) return status;
  }
  return (*engine)->RunUntilIdle();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: llmc_example PLAN PROMPT PROMPT\n";
    return 2;
  }
  const absl::Status status = Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::cerr << "error: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}
