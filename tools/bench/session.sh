#!/usr/bin/env bash
# Measures all that docs/performance.md says of language models, on the GPU that is here, what matters most first.
# In a bundle of tools/gpu_bundle.sh it finds all it needs; in a checkout, LLMC says where the command is (build/llmc).
#
# Usage: session.sh OUT_FOLDER [--budget=SECONDS] [--parts=NAME,...] [--archive=FILE] [--work=FOLDER]
#   OUT_FOLDER  one file for each part as soon as it is measured; of one commit, which OUT_FOLDER/commit names
#   --budget    no part begins that would not end in time, none runs past it (default: 3600)
#   --parts     which, in that order. Default: 8b 1b 0.6b attention encoders load torch-8b profile-8b qwen3-8b 70b torch-1b
#               profile-1b
#   --archive   a .tar.gz of OUT_FOLDER, made again after each part
#   --work      for a checkpoint and plans of 33 GB, deleted at the end (default: a new folder in the temporary folder)
# The files of several sessions of one commit may be put into one folder; tools/bench/table.py makes tables from it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out="" budget=3600 archive="" work=""
parts=8b,1b,0.6b,attention,encoders,load,torch-8b,profile-8b,qwen3-8b,70b,torch-1b,profile-1b
for argument in "$@"; do
  case $argument in
    --budget=*) budget=${argument#*=} ;;
    --parts=*) parts=${argument#*=} ;;
    --archive=*) archive=${argument#*=} ;;
    --work=*) work=${argument#*=} ;;
    -*) echo "session.sh: there is no option $argument; the head of the script lists them" >&2; exit 2 ;;
    *) out=$argument ;;
  esac
done
[[ -n $out ]] || { echo "usage: session.sh OUT_FOLDER [--budget=SECONDS] [--parts=NAME,...]" >&2; exit 2; }
if [[ -f $here/environment ]]; then
  . "$here/environment"
  scripts=$here/files/bench configs=$here/files/configs sources=$here/files llmc=${LLMC:-llmc}
else
  scripts=$here configs=$here/configs sources=$here/../.. llmc=${LLMC:-$here/../../build/llmc}
fi
python=${PYTHON:-python3}
mkdir -p "$out"
made_work=""
[[ -n $work ]] || work=$(mktemp -d) made_work=$work
trap '[[ -z $made_work ]] || rm -rf "$made_work"' EXIT

commit=$(cat "$here/commit" 2>/dev/null || git -C "$here" describe --always --dirty --exclude='*' 2>/dev/null || echo unknown)
if [[ -f $out/commit && $(cat "$out/commit") != "$commit" ]]; then
  echo "session.sh: $out holds results of commit $(cat "$out/commit"), and this is $commit; give another folder" >&2
  exit 1
fi
echo "$commit" >"$out/commit"
log=$out/session-$(date -u +%H%M%S).log
left() { echo $((budget - SECONDS)); }
say() { echo "[$SECONDS s] $*" | tee -a "$log"; }
save() {
  [[ -z $archive ]] || { tar -C "$out" -czf "$archive.new" . && mv "$archive.new" "$archive"; }
}

# part NAME LEAST MOST COMMAND...: begins if LEAST seconds are left, is stopped after MOST. What it prints goes to the log.
failed=0
part() {
  local name=$1 needs=$2 most=$3 begin=$SECONDS status=0
  shift 3
  if (($(left) < needs)); then say "$name: left out, needs $needs s and $(left) s are left"; return; fi
  say "$name: begins"
  timeout --kill-after=5 "$(($(left) < most ? $(left) : most))" "$@" >>"$log" 2>&1 || status=$?
  [[ $status == 0 ]] || failed=1
  say "$name: $((SECONDS - begin)) s, exit status $status"
  save
}
model() {  # NAME SECONDS MODEL [options]
  local name=$1 needs=$2 config=$3
  shift 3
  part "$name" "$needs" 150 "$llmc" bench "$configs/$config" --random-weights --output "$out/$config.json" "$@"
}
small_loads=(--requests 1,128,128 --requests 8,128,128 --requests 32,128,128)
encoder() {  # MODEL BATCH [options]
  local config=$1 batch=$2
  shift 2
  "$llmc" bench "$configs/$config" --random-weights --dtype=f16 --dim "B=$batch" "$@" --output "$out/$config-$batch.json"
}
encoders() {
  for batch in 1 32; do
    encoder bert-base "$batch" --dim L=128 && encoder vit-b-16 "$batch" || return
  done
}
profile() {  # NAME MODEL
  part "$1" 30 90 "$llmc" bench "$configs/$2" --random-weights --output "$out/profile-$2.json" --profile --sustain 1 \
    --batch 1,32 --context 128 --prompt 2048
}
torch_peers() {  # NAME MODEL SECONDS
  local seconds=$(($(left) < $3 ? $(left) : $3))
  part "$1" 45 "$seconds" "$python" "$scripts/peers_torch.py" "$configs/$2" "$out/torch-$2.jsonl" --budget $((seconds - 8))
}
attention() {
  PATH=$PATH:/usr/local/cuda/bin
  nvcc -std=c++17 -O3 -I"$sources" -gencode=arch=compute_90a,code=sm_90a -o "$work/whole_attention" \
    "$scripts/whole_attention.cu" &&
    "$work/whole_attention" >"$out/whole_attention.jsonl" &&
    "$python" "$scripts/whole_attention.py" >"$out/whole_attention_torch.jsonl"
}
export -f attention encoder encoders
export work sources scripts out python llmc configs

nvidia-smi --query-gpu=name,driver_version,memory.total,power.limit,clocks.sm,clocks.max.sm,clocks.mem --format=csv \
  >"$out/gpu.csv" 2>/dev/null || echo "no nvidia-smi" >"$out/gpu.csv"
say "commit $commit, budget $budget s, parts $parts"
IFS=, read -ra names <<<"$parts"
for name in "${names[@]}"; do
  case $name in
    8b) model 8b 90 llama-3.1-8b --batch 1,8,32,128,256 --context 128,4096,32768 --prompt 512,2048,8192,32768 --sustain 1 \
      "${small_loads[@]}" --requests 256,1024,256 ;;
    1b) model 1b 50 llama-3.2-1b --batch 1,8,32,128,256 --context 128,4096,32768 --sustain 1 "${small_loads[@]}" \
      --requests 256,1024,256 ;;
    0.6b) model 0.6b 30 qwen3-0.6b --batch 1,8,32,256 --context 128,4096,32768 --sustain 1 "${small_loads[@]}" ;;
    qwen3-8b) model qwen3-8b 35 qwen3-8b --batch 1,8,32,256 --context 128,4096,32768 --sustain 1 ;;
    70b) model 70b 40 llama-3.1-70b --batch 1,8,32 --context 128,4096 --prompt 512,2048 --sustain 1 ;;
    load) part load 90 150 "$python" "$scripts/real_load.py" "$(command -v "$llmc")" "$configs/llama-3.1-8b" \
      "$work" "$out/real_load.json" --drop-caches ;;
    torch-8b) torch_peers torch-8b llama-3.1-8b 110 ;;
    torch-1b) torch_peers torch-1b llama-3.2-1b 80 ;;
    profile-8b) profile profile-8b llama-3.1-8b ;;
    profile-1b) profile profile-1b llama-3.2-1b ;;
    attention) part attention 60 120 bash -c attention ;;
    encoders) part encoders 20 60 bash -c encoders ;;
    *) say "$name: there is no such part"; failed=1 ;;
  esac
done
say "done"
save
exit $failed
