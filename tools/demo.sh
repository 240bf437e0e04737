#!/usr/bin/env bash
# Trains a small Llama-like model on this repository's own text, bytes as tokens, under a budget that the run keeps.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
corpus=$build/corpus.txt
find README.md docs snug cli tests tools -type f \( -name '*.md' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.py' -o -name '*.sh' \) |
  LC_ALL=C sort | xargs cat >"$corpus"
exec "$build/bin/snug" train --device cpu --model tiny --data "$corpus" --steps 60 --batch-size 8 --micro-batch 4 --seq-len 256 --lr 3e-3 \
  --warmup 10 --schedule cosine --shuffle 1 --budget 256MiB
