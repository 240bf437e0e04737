#!/usr/bin/env python3
"""Is a step what was predicted before the first allocation? Three shapes of models, budgets from 22 to 100 GiB.

  predictions.py build/bin/snug [--steps 5] [--case N]...

Whole processes: what the driver says against the plan's figure. Each model is probed first, as its user would do.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from frontier import GIB, train

WIDE = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 10, "num_attention_heads": 32,
        "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": False}  # 2.1B
DEEP = {**WIDE, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 16,
        "vocab_size": 50304, "tie_word_embeddings": True}  # 0.5B
PRESET = "llama-1.3b"
# model, sequences, tokens of each, GiB
CASES = [(PRESET, 8, 4096, 60), (PRESET, 8, 4096, 33), (PRESET, 8, 4096, 22), (PRESET, 1, 32768, 36), (PRESET, 1, 32768, 22), (PRESET, 16, 4096, 100),
         (WIDE, 8, 4096, 80), (WIDE, 8, 4096, 50), (WIDE, 8, 4096, 40), (DEEP, 32, 2048, 70), (DEEP, 32, 2048, 30), (DEEP, 32, 2048, 22)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--case", type=int, action="append", help="from 0; default: all")
    arguments = parser.parse_args()
    print("| step | budget | predicted | process | off by | tensors off by | retries | host | predicted | measured | off by |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for number in arguments.case or range(len(CASES)):
            run_case(arguments, pathlib.Path(folder), *CASES[number])
    return 0


def run_case(arguments, folder, model, batch, seq_len, budget):
    name = "wide" if model is WIDE else "deep" if model is DEEP else model
    path, hardware = name, folder / f"{name}.hardware.json"
    if model is not PRESET:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(model))
    if not hardware.exists():
        subprocess.run([arguments.snug, "probe", "--device", "cuda", "--model", path, "--no-disk", "--out", hardware], check=True,
                       capture_output=True)
    run, plan = train(arguments.snug, path, batch, seq_len, arguments.steps, "--budget", f"{budget}GiB", "--precision", "bf16",
                      "--hardware", hardware)
    what = f"{name} {batch} x {seq_len}"
    if not run:
        print(f"| {what} | {budget} GiB | {plan} |", flush=True)
        return
    measured, predicted = run["measured"], plan["predicted"]
    off = measured["process_bytes"] - predicted["peak_bytes"]
    print(f"| {what} | {budget} GiB | {predicted['peak_bytes'] / GIB:.3f} GiB | {measured['process_bytes'] / GIB:.3f} GiB "
          f"| {100 * off / predicted['peak_bytes']:+.2f} %, {off / 2**20:+.0f} MiB | {measured['peak_bytes'] - run['predicted']['peak_bytes']:+d} B "
          f"| {measured['allocation_retries']} | {measured['host_bytes'] / GIB:.2f} GiB | {predicted['step_seconds']:.3f} s "
          f"| {measured['step_seconds']:.3f} s | {100 * (predicted['step_seconds'] / measured['step_seconds'] - 1):+.1f} % |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
