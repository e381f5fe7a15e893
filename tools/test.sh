#!/usr/bin/env bash
# Checks the format, builds everything and runs all tests, then those of the code that reads untrusted files under the
# address and undefined behaviour sanitizers (--no-asan leaves that out). The last line counts test cases: "N passed, N
# failed".
set -euo pipefail
cd "$(dirname "$0")/.."

asan=1
case ${1:-} in
  "") ;;
  --no-asan) asan=0 ;;
  *) echo "usage: tools/test.sh [--no-asan]" >&2; exit 2 ;;
esac
jobs=${LLMC_JOBS:-$(nproc)}
tools/setup.sh

check_format() {
  local formatter
  formatter=$(command -v clang-format-14 || command -v clang-format)
  git ls-files -z '*.cc' '*.h' '*.cuh' | xargs -0 -r "$formatter" --dry-run --Werror
}

# Sets shared_data to a folder of larger models and test vectors, where the checkout lies beside one.
find_shared_data() {
  shared_data=""
  if [[ -e ../shared/data/unpack.sh ]]; then
    shared_data=$PWD/build-dev/shared-data
    ../shared/data/unpack.sh "$shared_data"
  else
    echo "no shared data beside this checkout: the tests that need it are skipped"
  fi
}

# build PRESET TARGET...
build() {
  local preset=$1 log=build-$1/configure.log
  mkdir -p "build-$preset"
  shift
  cmake --preset "$preset" -DLLMC_SHARED_DATA="$shared_data" >"$log" || { cat "$log"; return 1; }
  cmake --build --preset "$preset" -j "$jobs" --target "$@"
}

# run_tests PRESET [ctest options]: remembers the failure, so that the summary is always printed.
run_tests() {
  local preset=$1
  shift
  rm -f "build-$preset/results.xml"
  ctest --preset "$preset" -j "$jobs" --no-tests=error --output-junit "$PWD/build-$preset/results.xml" \
    --test-output-size-passed 10000000 --test-output-size-failed 10000000 "$@" || failed=1
  results+=("build-$preset/results.xml")
}

failed=0
results=()
check_format
find_shared_data
build dev all
run_tests dev
if [[ $asan == 1 ]]; then
  labels=(files ir frontend cubins runtime text)
  build asan "${labels[@]/#/tests_}"
  run_tests asan -L "^($(IFS='|'; echo "${labels[*]}"))\$"
fi
python3 tools/count_tests.py "${results[@]}" || failed=1
exit $failed
