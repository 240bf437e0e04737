#!/usr/bin/env bash
# The product in a minute: a small Llama-like model learns this repository's own text, bytes as tokens, first plainly, then
# in half the memory. Planned, measured, and the time paid for it.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
snug=$build/bin/snug
corpus=$build/corpus.txt
find README.md docs snug cli tests tools -type f \( -name '*.md' -o -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.py' -o -name '*.sh' \) |
  LC_ALL=C sort | xargs cat >"$corpus"
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
common=(--device cpu --model tiny --data "$corpus" --batch-size 8 --seq-len 256 --lr 3e-3 --warmup 10 --schedule cosine --shuffle 1 --steps 20)

echo "== plain =="
"$snug" train "${common[@]}" --out-dir "$runs/plain" --json >"$runs/plain.json"
half=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["measured"]["peak_bytes"] // 2)' "$runs/plain.json")

echo "== in half of that =="
"$snug" train "${common[@]}" --budget "$half" --verify --out-dir "$runs/half" --json >"$runs/half.json"

python3 - "$runs/plain.json" "$runs/half.json" <<'EOF'
import json, sys
plain, half = (json.load(open(path)) for path in sys.argv[1:])
mib = lambda n: f"{n / 2**20:.1f} MiB"
print()
print(f"plain   measured {mib(plain['measured']['peak_bytes'])}, {plain['measured']['step_seconds'] * 1e3:.0f} ms per step, "
      f"loss {plain['first_loss']:.3f} -> {plain['last_loss']:.3f}")
print(f"half    planned {mib(half['predicted']['peak_bytes'])}, measured {mib(half['measured']['peak_bytes'])}, "
      f"{half['measured']['step_seconds'] * 1e3:.0f} ms per step ({half['measured']['step_seconds'] / plain['measured']['step_seconds']:.2f}x), "
      f"loss {half['first_loss']:.3f} -> {half['last_loss']:.3f}")
difference = half['measured']['peak_bytes'] - half['predicted']['peak_bytes']
print(f"budget  {mib(half['budget_bytes'])} {'held' if half['within_budget'] else 'NOT HELD'}; measured - predicted = {difference} bytes")
EOF
