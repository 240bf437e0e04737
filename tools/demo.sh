#!/usr/bin/env bash
# The product in a minute: a small Llama-like model learns this repository's own text, bytes as tokens, first plainly, then
# in half the memory, then in a third of it, which splitting the batch alone does not reach. Planned, measured, and the time
# paid for it.
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
plain=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["measured"]["peak_bytes"])' "$runs/plain.json")

echo "== in half of that =="
"$snug" train "${common[@]}" --budget $((plain / 2)) --verify --out-dir "$runs/half" --json >"$runs/half.json"

echo "== in a third of it =="
"$snug" train "${common[@]}" --budget $((plain / 3)) --out-dir "$runs/third" --json >"$runs/third.json"

python3 - "$runs" <<'EOF'
import json, pathlib, sys
runs = {name: json.loads(pathlib.Path(sys.argv[1], name + ".json").read_text()) for name in ("plain", "half", "third")}
mib = lambda n: f"{n / 2**20:.1f} MiB"
seconds = lambda run: run["measured"]["step_seconds"]
print()
for name, run in runs.items():
    plan = pathlib.Path(sys.argv[1], name, "plan.json")
    planned, slower = "", ""
    if plan.exists():
        made = json.loads(plan.read_text())
        levers = [lever["name"].replace("micro_batch", f"batch split {made['micro_batch']} x {made['accumulation']}") for lever in made["levers"]]
        planned = f"planned {mib(run['predicted']['peak_bytes'])}, "
        slower = f" ({seconds(run) / seconds(runs['plain']):.2f}x; {', '.join(levers)})"
    print(f"{name:6}  {planned}measured {mib(run['measured']['peak_bytes'])}, {seconds(run) * 1e3:.0f} ms per step{slower}, "
          f"loss {run['first_loss']:.3f} -> {run['last_loss']:.3f}")
for name in ("half", "third"):
    difference = runs[name]["measured"]["peak_bytes"] - runs[name]["predicted"]["peak_bytes"]
    print(f"budget  {mib(runs[name]['budget_bytes'])} {'held' if runs[name]['within_budget'] else 'NOT HELD'}; measured - predicted = {difference} bytes")
EOF
