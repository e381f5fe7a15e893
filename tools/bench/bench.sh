#!/usr/bin/env bash
# Times the five configurations of tools/bench/configs with random weights on the GPU that is here, and writes one JSON
# file for each. LLMC and CONFIGS say where the command and the configurations are.
# Usage: tools/bench/bench.sh OUT_FOLDER [llmc bench options...]
set -euo pipefail
out=${1:?"usage: bench.sh OUT_FOLDER [llmc bench options...]"}
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -f "$here/environment" ]; then
  . "$here/environment"  # in a bundle of tools/gpu_bundle.sh
  LLMC=${LLMC:-llmc} CONFIGS=${CONFIGS:-$here/files/configs}
fi
llmc=${LLMC:-$here/../../build/llmc} configs=${CONFIGS:-$here/configs}
mkdir -p "$out"
commit=$(cat "$here/commit" 2> /dev/null || git -C "$here" rev-parse --short HEAD 2> /dev/null || echo unknown)
echo "$commit" > "$out/commit"
failed=0
for model in llama-3.2-1b qwen3-0.6b llama-3.1-8b qwen3-8b llama-3.1-70b; do
  echo "== $model"
  "$llmc" bench "$configs/$model" --random-weights --output "$out/$model.json" "$@" || failed=1
done
exit $failed
