#!/usr/bin/env bash
# Packs what checks and measures llmc on another machine with an NVIDIA GPU: the llmc command, the tests that need a
# GPU, the shared libraries that a bare machine lacks, models with reference outputs, and three scripts:
#   run_gpu_tests [FILTER]    all tests, by name if FILTER is given (gtest_filter), such as 'OnnxNodesOnDevice.*'
#   sanitize [FILTER]         the same under compute-sanitizer's memcheck and racecheck; else the tiny models
#   bench.sh OUT_FOLDER       the benchmarks of tools/bench/bench.sh, as JSON
# The other machine needs Linux on x86-64 with the same or a newer C library, an NVIDIA driver and the CUDA libraries
# (NVRTC, cuBLASLt) in LD_LIBRARY_PATH, /usr/local/cuda or the usual places.
# The bundle holds the shipped model's folder, not its ONNX form, which LLMC_TEST_DATA, a copy of tests/data, brings;
# larger models are found by LLMC_SHARED_DATA. Tests of what is not there are skipped. LLMC_BUNDLE_WITHOUT_DATA=1 leaves
# the shipped model out, too.
# Usage: tools/gpu_bundle.sh FOLDER    (at most 24 MiB; it unpacks itself at first use)
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:?"usage: tools/gpu_bundle.sh FOLDER"}

jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
[ -f build/CMakeCache.txt ] || cmake --preset release > /dev/null
[ -f build-dev/CMakeCache.txt ] || cmake --preset dev > /dev/null
cmake --build --preset release -j "$jobs" --target llmc
cmake --build --preset dev -j "$jobs" --target gpu_test

mkdir -p "$out"
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/lib" "$staging/data"
for program in build/llmc build-dev/tests/gpu_test; do
  strip -o "$staging/$(basename "$program")" "$program"
  # Everything but the C library itself, which must be the machine's own.
  ldd "$program" | awk '$3 ~ /^\// { print $3 }' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' |
    xargs -r cp -L -t "$staging/lib"
done
strip "$staging"/lib/*.so* 2> /dev/null || true
if [ -z "${LLMC_BUNDLE_WITHOUT_DATA:-}" ]; then
  cp -r tests/data/tale-7m "$staging/data/"
  rm -f "$staging"/data/tale-7m/{onnx_*.safetensors,model.onnx}
fi
shared=$(sed -n 's/^LLMC_SHARED_DATA:PATH=//p' build-dev/CMakeCache.txt)
for folder in tiny-models onnx-exports onnx-node; do
  [ ! -d "$shared/$folder" ] || { mkdir -p "$staging/shared" && cp -r "$shared/$folder" "$staging/shared/"; }
done
[ ! -f "$shared/text/books-valid.txt" ] || { mkdir -p "$staging/shared/text" && cp "$shared/text/books-valid.txt" "$_"; }
cp -r tools/bench/configs "$staging/" 2> /dev/null || true
tar -C "$staging" -cf - . | xz -6 -T0 > "$out/files.tar.xz"

cat > "$out/environment" << 'SCRIPT'
# Unpacks what is needed, once, and finds the CUDA libraries.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ "$here/files" -nt "$here/files.tar.xz" ] || {
  rm -rf "$here/files" "$here/files.new" && mkdir "$here/files.new" &&
    tar -C "$here/files.new" -xJf "$here/files.tar.xz" && touch "$here/files.new" && mv "$here/files.new" "$here/files"
} || exit
export PATH="$here/files:$PATH" LD_LIBRARY_PATH="$here/files/lib:${LD_LIBRARY_PATH:-}"
for cuda in /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib; do
  [ -d "$cuda" ] && LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$cuda"
done
export LLMC_REQUIRE_GPU=1 LLMC_COMMAND="$here/files/llmc"
[ -d "$here/files/data/tale-7m" ] && export LLMC_TEST_DATA="${LLMC_TEST_DATA:-$here/files/data}"
export LLMC_SHARED_DATA="${LLMC_SHARED_DATA:-$here/files/shared}"
SCRIPT
cat > "$out/run_gpu_tests" << 'SCRIPT'
#!/usr/bin/env bash
. "$(dirname "$0")/environment"
exec "$here/files/gpu_test" ${1:+--gtest_filter="$1"}
SCRIPT
cat > "$out/sanitize" << 'SCRIPT'
#!/usr/bin/env bash
# Errors of calls are left out: some ask what a driver lacks. The numbers of both tools' findings must be 0.
. "$(dirname "$0")/environment"
for tool in memcheck racecheck; do
  compute-sanitizer --tool "$tool" --report-api-errors no --target-processes all --error-exitcode 1 \
    "$here/files/gpu_test" --gtest_filter="${1:-LanguageModels.LogitsOfEveryFamily}" || exit
done
SCRIPT
chmod +x "$out/run_gpu_tests" "$out/sanitize"
git rev-parse --short HEAD > "$out/commit" 2> /dev/null || rm -f "$out/commit"
[ ! -f tools/bench/bench.sh ] || cp tools/bench/bench.sh "$out/bench.sh"
rm -rf "$out/files"
[ "$(stat -c %s "$out/files.tar.xz")" -le $((24 << 20)) ] || { echo "the bundle is over 24 MiB" >&2; exit 1; }
[ -n "$shared" ] || echo "without shared data: tests that need it will be skipped" >&2
du -sh "$out" | cut -f1
