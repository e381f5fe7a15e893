// The small models of tests/families, unpacked.
#pragma once

#include <string>

namespace llmc {

// The folder with a folder for each name in tests/families/README.md. The first test that asks unpacks them into the
// build folder; tests that ask at the same time do no harm. "": they could not be unpacked, and the test has failed.
std::string FamiliesFolder();

}  // namespace llmc
