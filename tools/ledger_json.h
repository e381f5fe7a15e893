// The ledger of rules as JSON: what plans keep of it, and what reports print.
#pragma once

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "passes/driver/ledger.h"

namespace llmc {

nlohmann::ordered_json LedgerJson(const Ledger& ledger);
// The other way; an error if `text` is not what LedgerJson makes.
absl::StatusOr<Ledger> ParseLedger(absl::string_view text);

}  // namespace llmc
