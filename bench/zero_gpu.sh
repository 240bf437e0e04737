#!/usr/bin/env bash
# Ranks on one GPU, over Gloo, and one rank alone: losses and memory of every stage.
#   bench/zero_gpu.sh bin/snug
set -euo pipefail
snug=$1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
show() { # name, then flags
  local name=$1
  shift
  "$snug" train --device cuda --no-save --out-dir "$out/$name" --json "$@" >"$out/$name.json" 2>"$out/$name.log" || {
    echo "$name: FAILED"
    tail -3 "$out/$name.log"
    return
  }
  python3 - "$name" "$out/$name.json" "$out/$name/metrics.jsonl" <<'PYTHON'
import json, sys
name, document, metrics = sys.argv[1], json.load(open(sys.argv[2])), [json.loads(line) for line in open(sys.argv[3])]
predicted, measured = document["predicted"], document["measured"]
print(f"{name:28} {document['tokens_per_second']:9.0f} tok/s  step {measured['step_seconds']*1e3:7.1f} ms  process {measured['process_bytes']/2**30:.3f} GiB, "
      f"predicted {predicted['process_bytes']/2**30:.3f}  tensors {measured['peak_bytes']} {predicted['peak_bytes']}  retries {measured['allocation_retries']}  "
      f"losses {metrics[0]['loss']:.9g} {metrics[-1]['loss']:.9g}")
PYTHON
}
small=(--model llama-1.3b --batch-size 2 --seq-len 1024 --steps 4)
for stage in 0 1 2 3; do show "two-ranks-stage-$stage" "${small[@]}" --ranks 2 --zero-stage $stage; done
show one-rank-alone "${small[@]}"
large=(--model llama-1.3b --batch-size 8 --seq-len 4096 --steps 8)
for turn in 1 2; do
  show "plain-$turn" "${large[@]}"
  show "one-rank-stage-3-$turn" "${large[@]}" --ranks 1 --zero-stage 3
done
