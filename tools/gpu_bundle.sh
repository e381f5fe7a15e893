#!/usr/bin/env bash
# Packs what checks and measures llmc on another machine with an NVIDIA GPU: the llmc command, the tests that need a
# GPU, the shared libraries that a bare machine lacks, data with reference outputs, and three scripts:
#   run_gpu_tests [--out=FOLDER] [FILTER]    all tests, by name if FILTER is given (gtest_filter), such as
#       'OnnxNodesOnDevice.*'; FOLDER/gpu_test.log (default: here) says on which GPU, driver, clocks, day and commit
#   sanitize [FILTER]         the same under compute-sanitizer's memcheck and racecheck; else the tiny models
#   session.sh OUT_FOLDER [--budget=SECONDS]    the measurements of tools/bench/session.sh, where python3 is, nvcc for
#       one part and PyTorch for its peers
# The other machine needs Linux on x86-64 with the same or a newer C library, an NVIDIA driver and the CUDA libraries
# (NVRTC, cuBLASLt) in LD_LIBRARY_PATH, /usr/local/cuda or the usual places.
#
# Usage: tools/gpu_bundle.sh [--data=NAME,...] [--limit=MIB] [--no-programs] [--build=FOLDER] FOLDER
#   --data         what data: tale-7m (of tests/data) or names in the shared data. Default:
#                  tiny-models, onnx-exports, onnx-node, text/books-valid.txt, tale-7m, as many as the limit allows;
#                  what is left out is named. Empty: none. LLMC_TEST_DATA (a copy of tests/data) and LLMC_SHARED_DATA
#                  say on the other machine where data is that is not packed; LLMC_REQUIRE_DATA=1 makes it an error
#                  that data is missing, for which tests are skipped otherwise.
#   --limit        of the whole bundle, default 24 MiB
#   --no-programs  data alone: a second bundle, to be copied into the first one on the other machine
#   --build        takes llmc and gpu_test from that build folder; else builds them
set -euo pipefail
cd "$(dirname "$0")/.."

data=tiny-models,onnx-exports,onnx-node,text/books-valid.txt,tale-7m
limit=24 programs=1 build="" out="" chosen=0
for argument in "$@"; do
  case $argument in
    --data=*) data=${argument#*=} chosen=1 ;;
    --limit=*) limit=${argument#*=} ;;
    --no-programs) programs=0 ;;
    --build=*) build=${argument#*=} ;;
    -*) echo "gpu_bundle.sh: there is no option $argument; the head of the script lists them" >&2; exit 2 ;;
    *) out=$argument ;;
  esac
done
[[ -n $out ]] || { echo "usage: tools/gpu_bundle.sh [--data=NAME,...] [--limit=MIB] [--no-programs] FOLDER" >&2; exit 2; }
mkdir -p "$out"
rm -rf "$out"/{files,*.tar.xz}
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT

build_programs() {
  local jobs=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
  [[ -f build/CMakeCache.txt ]] || cmake --preset release >/dev/null
  [[ -f build-dev/CMakeCache.txt ]] || cmake --preset dev >/dev/null
  cmake --build --preset release -j "$jobs" --target llmc
  cmake --build --preset dev -j "$jobs" --target gpu_test
}

pack_programs() {
  local llmc=build/llmc gpu_test=build-dev/tests/gpu_test program folder=$staging/programs
  if [[ -n $build ]]; then llmc=$build/llmc gpu_test=$build/tests/gpu_test; else build_programs; fi
  mkdir -p "$folder/lib"
  for program in "$llmc" "$gpu_test"; do
    strip -o "$folder/$(basename "$program")" "$program"
    # Everything but the C library itself, which must be the machine's own.
    ldd "$program" | awk '$3 ~ /^\// { print $3 }' | grep -vE '/(libc|libm|libpthread|libdl|librt|ld-linux[^/]*)\.so' |
      xargs -r cp -L -t "$folder/lib"
  done
  strip "$folder"/lib/*.so* 2>/dev/null || true
  cp -r tools/bench/configs "$folder/"
  mkdir "$folder/bench" "$folder/kernels"
  cp tools/bench/*.py tools/bench/whole_attention.cu "$folder/bench/"
  cp -r kernels/*/ "$folder/kernels/"
  tar -C "$folder" -cf - . | xz -T0 >"$out/programs.tar.xz"
  cp tools/bench/session.sh "$out/"
  git describe --always --dirty --exclude='*' >"$out/commit" 2>/dev/null || rm -f "$out/commit"
}

shared_data() {
  local folder
  for folder in "$build" build-dev build-test; do
    [[ -f $folder/CMakeCache.txt ]] && sed -n 's/^LLMC_SHARED_DATA:PATH=//p' "$folder/CMakeCache.txt"
  done | grep -m 1 . || true
}

# pack_data NAME: false where it is not here.
pack_data() {
  local name=$1 archive=$staging/data-${1//\//-}.tar.xz
  if [[ $name == tale-7m ]]; then
    tar --exclude='onnx_*.safetensors' -C tests -cf - data/tale-7m | xz -T0 >"$archive"
  else
    [[ -n $shared && -e $shared/$name ]] || return 1
    tar --transform='s,^,shared/,' -C "$shared" -cf - "$name" | xz -T0 >"$archive"
  fi
}

# Moves one archive into the bundle if there is room.
add_data() {
  local name=$1 archive=$staging/data-${1//\//-}.tar.xz
  if ! pack_data "$name"; then
    left_out+=("$name (not in the shared data of this checkout)")
  elif (($(find "$out" "$archive" -name "*.tar.xz" -exec cat {} + | wc -c) > limit << 20)); then
    left_out+=("$name ($(($(stat -c %s "$archive") >> 20)) MiB: no room under the limit; see --no-programs and --limit)")
  else
    mv "$archive" "$out/"
  fi
}

left_out=()
shared=$(shared_data)
[[ $programs == 0 ]] || pack_programs
[[ $(find "$out" -name "*.tar.xz" -exec cat {} + | wc -c) -le $((limit << 20)) ]] || {
  echo "the programs alone are over $limit MiB" >&2
  exit 1
}
IFS=, read -ra names <<<"$data"
for name in "${names[@]}"; do add_data "$name"; done

write_environment() {
  cat >"$out/environment" <<'SCRIPT'
# Unpacks what is new, and finds the CUDA libraries.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
unpack() {
  local archive
  mkdir -p "$here/files"
  for archive in "$here"/*.tar.xz; do
    [[ $here/files/.$(basename "$archive") -nt $archive ]] && continue
    tar -C "$here/files" -xJf "$archive" && touch "$here/files/.$(basename "$archive")" || return
  done
}
unpack || exit
export PATH="$here/files:$PATH" LD_LIBRARY_PATH="$here/files/lib:${LD_LIBRARY_PATH:-}"
for cuda in /usr/local/cuda/lib64 /usr/local/cuda/targets/x86_64-linux/lib; do
  [[ -d $cuda ]] && LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$cuda"
done
export LLMC_REQUIRE_GPU=1 LLMC_COMMAND="$here/files/llmc"
[[ -d $here/files/data/tale-7m ]] && export LLMC_TEST_DATA="${LLMC_TEST_DATA:-$here/files/data}"
export LLMC_SHARED_DATA="${LLMC_SHARED_DATA:-$here/files/shared}"
SCRIPT
}

write_run_gpu_tests() {
  cat >"$out/run_gpu_tests" <<'SCRIPT'
#!/usr/bin/env bash
# run_gpu_tests [--out=FOLDER] [FILTER]: the tests, and FOLDER/gpu_test.log.
set -o pipefail
. "$(dirname "$0")/environment"
folder=.
[[ ${1:-} == --out=* ]] && folder=${1#*=} && shift
mkdir -p "$folder" || exit
describe() {
  echo "date: $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  echo "commit: $(cat "$here/commit" 2>/dev/null || echo unknown)"
  local fields=name,driver_version,memory.total,power.limit,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem
  nvidia-smi --query-gpu="$fields" --format=csv 2>/dev/null || echo "no nvidia-smi: which GPU this is, the tests say"
  echo "filter: ${1:-all}"
}
{
  describe "$@"
  "$here/files/gpu_test" ${1:+--gtest_filter="$1"} 2>&1
} | tee "$folder/gpu_test.log"
SCRIPT
}

write_sanitize() {
  cat >"$out/sanitize" <<'SCRIPT'
#!/usr/bin/env bash
# Errors of calls are left out: some ask what a driver lacks. The numbers of both tools' findings must be 0.
. "$(dirname "$0")/environment"
for tool in memcheck racecheck; do
  compute-sanitizer --tool "$tool" --report-api-errors no --target-processes all --error-exitcode 1 \
    "$here/files/gpu_test" --gtest_filter="${1:-LanguageModels.LogitsOfEveryFamily}" || exit
done
SCRIPT
}

if [[ $programs == 1 ]]; then
  write_environment
  write_run_gpu_tests
  write_sanitize
  chmod +x "$out/run_gpu_tests" "$out/sanitize"
fi
for name in "${left_out[@]}"; do echo "left out: $name" >&2; done
[[ -n $shared ]] || echo "without shared data: tests that need it will be skipped" >&2
ls -l "$out" | awk '/tar.xz/ { printf "%6.1f MiB  %s\n", $5 / 1048576, $9 }'
[[ ${#left_out[@]} == 0 || $chosen == 0 ]] || exit 1
