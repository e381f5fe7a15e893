// A model of which one of two layers has a window.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/shared_data.h"

namespace llmc {

// Makes `folder` the shared data's tiny qwen2 with a window of 8 tokens in its first layer. False: that is not there.
inline bool MakeFolderWithAWindow(const std::string& folder) {
  const std::string from = SharedData("tiny-models/qwen2-bias");
  if (from.empty()) return false;
  std::filesystem::create_directories(folder);
  using Options = std::filesystem::copy_options;
  std::filesystem::copy(from, folder, Options::recursive | Options::overwrite_existing);
  std::ifstream file(from + "/config.json");
  nlohmann::json config = nlohmann::json::parse(file);
  config["use_sliding_window"] = true;
  config["sliding_window"] = 8;
  config["max_window_layers"] = 1;
  config["layer_types"] = {"sliding_attention", "full_attention"};
  std::ofstream(folder + "/config.json") << config;
  return true;
}

}  // namespace llmc
