#!/usr/bin/env bash
# Builds llmc, compiles a small trained model and lets it tell a tale. The compiled plan and every dump stay in demo-out/.
set -euo pipefail
cd "$(dirname "$0")/.."
tools/setup.sh

cmake --preset release
cmake --build --preset release -j "${LLMC_JOBS:-$(nproc)}" --target llmc

show() {
  echo
  echo "\$ $*"
  "$@"
}

rm -rf demo-out
mkdir -p demo-out
model=tests/data/tale-7m
show build/llmc compile $model/model.onnx -o demo-out/tale-7m.bin --dtype=f32 --dump-ir=demo-out/ir
show cat demo-out/ir/index.txt
show build/llmc generate demo-out/tale-7m.bin --tokenizer $model --prompt "Once upon a time there was" --max-new-tokens 64
