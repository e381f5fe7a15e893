// Tests of files that llmc itself writes: a program started with --bless writes them anew.
#pragma once

#include <string>

namespace llmc {

bool Blessing();

// The command line of this program with --bless.
std::string BlessCommand();

}  // namespace llmc
