#!/usr/bin/env bash
# gpu_bundle_test.sh BUILD: the bundle keeps its limit with the shared data beside it, holds what its programs link, and
# its tests run from another folder and leave a log. A refusal of every test for want of a GPU is such a run.
set -euo pipefail
build=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Less compressed than a bundle that is sent, in a quarter of the time.
XZ_OPT=-1 tools/gpu_bundle.sh --build="$build" "$folder/bundle"
bytes=$(cat "$folder"/bundle/*.tar.xz | wc -c)
((bytes <= 24 << 20)) || { echo "the bundle has $bytes bytes, more than 24 MiB"; exit 1; }

mv "$folder/bundle" "$folder/moved"
cd "$folder"
# What they print is shown only where it is wrong: whoever counts tests would count theirs.
moved/run_gpu_tests --out=results 'LanguageModels.*' >run.log 2>&1 || true
for line in '^date: 20' '^commit: ' '^\[=+\] [0-9]+ tests? from 1 test suite ran'; do
  grep -qE "$line" results/gpu_test.log || { sed 's/^/| /' run.log; echo "no line $line in the log"; exit 1; }
done
missing=$(LD_LIBRARY_PATH=moved/files/lib ldd moved/files/gpu_test moved/files/llmc | grep 'not found' || true)
[[ -z $missing ]] || { echo "not in the bundle: $missing"; exit 1; }
elsewhere=$(LD_LIBRARY_PATH=moved/files/lib ldd moved/files/llmc | grep -c '/lib.*lib\(absl\|icu\|protobuf\|onnx\)' | cat)
within=$(LD_LIBRARY_PATH=moved/files/lib ldd moved/files/llmc | grep -c 'moved/files/lib/lib\(absl\|icu\|protobuf\|onnx\)')
[[ $elsewhere == "$within" ]] || { echo "libraries come from outside of the bundle"; exit 1; }

# A data set that is asked for and is not here is an error.
cd "$OLDPWD"
! tools/gpu_bundle.sh --no-programs --data=no-such-data "$folder/more" 2>"$folder/error"
grep -q 'left out: no-such-data' "$folder/error"
