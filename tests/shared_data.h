// Test data that lies outside of the repository.
#pragma once

#include <string>

namespace llmc {

// The path of `name` below the shared test data ($LLMC_SHARED_DATA, else as configured), or "" where it is not there: a
// test skips then. Where data is required (configured with LLMC_REQUIRE_DATA, or $LLMC_REQUIRE_DATA is 1) it has
// failed.
std::string SharedData(const std::string& name);

// The same for data that is also sought elsewhere, or named before tests run: nothing fails. Where the search ends
// without any, MissingData(name) fails if data is required.
std::string FindSharedData(const std::string& name);
void MissingData(const std::string& name);

// The variable of the environment, else `value`.
std::string Environment(const char* name, const char* value);

}  // namespace llmc
