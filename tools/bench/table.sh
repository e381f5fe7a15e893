#!/usr/bin/env bash
# Prints the tables of docs/performance.md from the JSON files that `llmc bench --output` (or bench.sh) wrote. With
# DOCUMENT, puts them there, between the lines "<!-- tables -->" and "<!-- end of tables -->".
# Usage: tools/bench/table.sh FOLDER [DOCUMENT]
set -euo pipefail
folder=${1:?"usage: tools/bench/table.sh FOLDER [DOCUMENT]"}
document=${2:-}
order="llama-3.2-1b qwen3-0.6b llama-3.1-8b qwen3-8b llama-3.1-70b"

files=()
for model in $order; do [ ! -f "$folder/$model.json" ] || files+=("$folder/$model.json"); done
for file in "$folder"/*.json; do
  [[ " $order " == *" $(basename "$file" .json) "* ]] || ! grep -q '^  "decode":' "$file" || files+=("$file")
done

# The reports have one key a line; an entry of a list ends with "    }".
rows() {  # SECTION, an awk statement that prints a row from v[KEY] and `model`, and files
  local section=$1 print=$2
  shift 2
  for file in "$@"; do
    [ -f "$file" ] || continue
    awk -v section="$section" -v model="$(basename "$file" .json)" '
      /^  "[a-z_]+":/ { split($0, name, "\""); here = name[2] == section }
      here && /^ +"[a-z_]+": / { split($0, key, "\""); value = $0; sub(/^[^:]*: /, "", value); sub(/,$/, "", value); v[key[2]] = value }
      here && /^    }/ { if (!("left_out" in v)) { '"$print"' } delete v }' "$file"
  done
}
value() { sed -n "s/^  \"$2\": \"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}$/\1/p" "$1"; }
# The least and the greatest of all files, numbers without fractions.
range() {
  local all
  all=$(for file in "${files[@]}"; do value "$file" "$1"; done | sed 's/\..*//' | sort -u)
  local least greatest
  least=$(head -n 1 <<< "$all") greatest=$(tail -n 1 <<< "$all")
  [ "$least" = "$greatest" ] && echo "$least" || echo "$least to $greatest"
}
# One number: of a model, in the section's entry whose first key and value are given.
cell() {  # MODEL SECTION KEY VALUE FIELD FACTOR
  local found
  found=$(rows "$2" "if (v[\"$3\"] == $4 && (\"context\" in v ? v[\"context\"] == 128 : 1)) printf \"%.2f\", v[\"$5\"] * $6" "$folder/$1.json")
  echo "${found:-not measured}"
}

tables() {
  local first=${files[0]}
  echo "$(value "$first" gpu), driver $(value "$first" driver), $(range date): it reads $(range read_gb_per_s) GB/s and" \
    "multiplies bf16 matrices at $(range matrix_tflops) TFLOP/s."
  echo
  echo "| model | batch | context | ms a step | floor | of it | tokens/s |"
  echo "|---|---|---|---|---|---|---|"
  rows decode 'printf "| %s | %d | %d | %.3f | %.3f | %.0f %% | %.0f |\n", model, v["batch"], v["context"], v["median_us"] / 1000, v["floor_us"] / 1000, 100 * v["of_floor"], v["tokens_per_s"]' "${files[@]}"
  echo
  echo "| model | prompt | ms of prefill | TFLOP/s | of the matrix rate |"
  echo "|---|---|---|---|---|"
  rows prefill 'printf "| %s | %d | %.2f | %.0f | %.0f %% |\n", model, v["prompt"], v["median_ms"], v["tflops"], 100 * v["of_matrix_rate"]' "${files[@]}"
  echo
  echo "| model | prompt | ms to the first token | ms for each after it |"
  echo "|---|---|---|---|"
  rows engine 'printf "| %s | %d | %.2f | %.3f |\n", model, v["prompt"], v["first_token_ms"], v["token_us"] / 1000' "${files[@]}"
  echo
  echo "| model | s to compile | s to load |"
  echo "|---|---|---|"
  for file in "${files[@]}"; do
    printf '| %s | %.2f | %.2f |\n' "$(basename "$file" .json)" "$(value "$file" compile_s)" "$(value "$file" load_s)"
  done
  echo
  echo "Beside other programs, measured on the same GPU with the same shapes, in bf16 (llama.cpp: F16) and milliseconds:"
  echo
  echo "| | Llama-3.1-8B, a token | Llama-3.2-1B, a token |"
  echo "|---|---|---|"
  echo "| Hugging Face transformers, eager | 68.9 | 71.3 |"
  echo "| llama.cpp of February 2025 | 6.25 | 2.06 |"
  echo "| torch.compile, static cache | 5.75 | 1.52 |"
  echo "| gpt-fast | 5.46 | 1.54 |"
  echo "| **llmc**, through the engine, after 512 tokens | **$(cell llama-3.1-8b engine prompt 512 token_us 0.001)** | **$(cell llama-3.2-1b engine prompt 512 token_us 0.001)** |"
  echo "| llmc, the step alone | $(cell llama-3.1-8b decode batch 1 median_us 0.001) | $(cell llama-3.2-1b decode batch 1 median_us 0.001) |"
  echo "| floor | $(cell llama-3.1-8b decode batch 1 floor_us 0.001) | $(cell llama-3.2-1b decode batch 1 floor_us 0.001) |"
  echo
  echo "| | 8B, torch.compile | 8B, llama.cpp | 8B, llmc | 1B, torch.compile | 1B, llama.cpp | 1B, llmc |"
  echo "|---|---|---|---|---|---|---|"
  echo "| a step of batch 32, alone | 10.63 | | $(cell llama-3.1-8b decode batch 32 median_us 0.001) | 2.82 | | $(cell llama-3.2-1b decode batch 32 median_us 0.001) |"
  echo "| prefill of 2,048 tokens | 60.0 | 105 | $(cell llama-3.1-8b prefill prompt 2048 median_ms 1) | 21.4 | 41.6 | $(cell llama-3.2-1b prefill prompt 2048 median_ms 1) |"
  echo "| prefill of 8,192 tokens | 256 | | $(cell llama-3.1-8b prefill prompt 8192 median_ms 1) | 49.2 | | $(cell llama-3.2-1b prefill prompt 8192 median_ms 1) |"
}

if [ -z "$document" ]; then
  tables
else
  new=$(mktemp)
  trap 'rm -f "$new"' EXIT
  { sed '/^<!-- tables -->$/q' "$document" && echo && tables && echo && sed -n '/^<!-- end of tables -->$/,$p' "$document"; } > "$new"
  cat "$new" > "$document"
fi
