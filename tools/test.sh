#!/usr/bin/env bash
# Checks the format, builds everything and runs each test once: those of the code that reads untrusted files under the
# address and undefined behaviour sanitizers, in a build of their own (with --no-asan like all others). Where shared data is
# beside this checkout, a test that does not find some fails. What took how long comes before the last line, which counts
# test cases: "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."

asan=1
case ${1:-} in
  "") ;;
  --no-asan) asan=0 ;;
  *) echo "usage: tools/test.sh [--no-asan]" >&2; exit 2 ;;
esac
jobs=${LLMC_JOBS:-$(nproc)}
start=$(date +%s)
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT

# stage NAME COMMAND...: notes the seconds it took on the clock and of the processor.
stage() {
  local name=$1 before=$SECONDS
  shift
  echo "== $name"
  times >"$notes/before"
  "$@"
  times >"$notes/after"
  python3 - "$name" $((SECONDS - before)) "$notes/before" "$notes/after" >>"$notes/stages" <<'PYTHON'
import re, sys
def of_children(file):
    return [60 * int(m) + float(s) for m, s in re.findall(r"(\d+)m([\d.]+)s", open(file).read().splitlines()[1])]
name, wall, before, after = sys.argv[1:]
print(f"{name}: {wall}", *(f"{b - a:.1f}" for a, b in zip(of_children(before), of_children(after))))
PYTHON
}

check_format() {
  local formatter
  formatter=$(command -v clang-format-14 || command -v clang-format)
  git ls-files -z '*.cc' '*.h' '*.cuh' | xargs -0 -r -n 32 -P "$jobs" "$formatter" --dry-run --Werror
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

# pip waits for the network while the compiler works; the tests wait for it.
install_python_packages() {
  python3 -B tests/frontend/contrib/main.py packages --packages build-test/python-packages >/dev/null 2>&1 &
}

# build PRESET LABELS TARGET...: `all` is without the tests of these labels ("a;b").
build() {
  local preset=$1 labels=$2 log=build-$1/configure.log
  mkdir -p "build-$preset"
  shift 2
  cmake --preset "$preset" -DLLMC_SHARED_DATA="$shared_data" -DLLMC_REQUIRE_DATA="${shared_data:+ON}" \
    -DLLMC_TESTS_NOT_IN_ALL="$labels" >"$log" || { cat "$log"; return 1; }
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
stage setup tools/setup.sh
stage format check_format
stage "shared data" find_shared_data
install_python_packages
if [[ $asan == 1 ]]; then
  sanitized=(files ir frontend cubins runtime text chat)
  chosen="^($(IFS='|'; echo "${sanitized[*]}"))\$"
  stage build build test "$(IFS=';'; echo "${sanitized[*]}")" all
  stage tests run_tests test -LE "$chosen"
  stage "build with sanitizers" build asan "" "${sanitized[@]/#/tests_}"
  stage "tests with sanitizers" run_tests asan -L "$chosen"
else
  stage build build test "" all
  stage tests run_tests test
fi
python3 tools/time_report.py "$notes/stages" "$start" build-test build-asan || true
python3 tools/count_tests.py "${results[@]}" || failed=1
exit $failed
