#!/usr/bin/env python3
"""How fast is a step at each budget, by --budget alone, and is that what was predicted?

  frontier.py build/bin/snug [--steps 8] [--only 4096|32768] [--no-hand]

Llama-like, 1.26B parameters, 32,768 tokens per step, bf16 with exact states. Beside each row stand the peers at that budget, as measured on
such a machine (not in this run), and the best that can be had in this run without a plan: every micro-batch with nothing, cheap values or
whole blocks re-made, by hand.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

GIB = 2**30
# Budget in GiB: the best peer's tokens per second there, with which states.
PEERS = {4096: {55: "65.7k Liger, bf16 states", 40: "65.0k LLM.Q, stochastic rounding", 28: "62.8k LLM.Q, stochastic rounding",
                22: "61.2k LLM.Q, stochastic rounding"},
         32768: {79: "30.0k Liger, exact", 53: "24.1k LLM.Q, stochastic rounding", 28: "23.9k Liger, exact", 22: "none"}}
BAR = {4096: {55: 64, 40: 64, 28: 61, 22: 59}, 32768: {79: 30.5, 53: 29, 28: 28, 22: 26}}
MODEL, TOKENS = "llama-1.3b", 32768


def train(snug, model, batch, seq_len, steps, *options):
    """(what train says, its plan or None), or (None, why it failed)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [snug, "train", "--model", model, "--device", "cuda", "--steps", str(steps), "--batch-size", str(batch),
                   "--seq-len", str(seq_len), "--out-dir", folder + "/run", "--json", *options]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            return None, result.stderr.strip()
        plan = pathlib.Path(folder, "run", "plan.json")
        return json.loads(result.stdout), json.loads(plan.read_text()) if plan.exists() else None


def by_hand(snug, steps, seq_len):
    """(process bytes, tokens per second, what) of everything that two flags can do."""
    runs = []
    batch = TOKENS // seq_len
    for micro in [m for m in (8, 4, 2, 1) if batch % m == 0 and m <= batch]:
        for recompute in ("none", "cheap", "block"):
            run, _ = train(snug, MODEL, batch, seq_len, steps, "--micro-batch", str(micro), "--recompute", recompute)
            if run:
                runs.append((run["measured"]["process_bytes"], run["tokens_per_second"], f"micro-batch {micro}, {recompute}"))
    return runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--only", type=int, choices=sorted(PEERS))
    parser.add_argument("--no-hand", action="store_true", help="only by --budget")
    arguments = parser.parse_args()
    for seq_len in [arguments.only] if arguments.only else sorted(PEERS):
        hand = [] if arguments.no_hand else by_hand(arguments.snug, arguments.steps, seq_len)
        print(f"\n{TOKENS // seq_len} x {seq_len}\n\n| budget | tok/s | bar | planned | process | off by | reserved / allocated | outside | step, predicted | "
              "step, measured | host | by hand | peer |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|")
        for budget, peer in PEERS[seq_len].items():
            run, plan = train(arguments.snug, MODEL, TOKENS // seq_len, seq_len, arguments.steps, "--budget", f"{budget}GiB")
            fitting = [(speed, what) for process, speed, what in hand if process <= budget * GIB]
            best = "{0[0]:.0f} ({0[1]})".format(max(fitting)) if fitting else "nothing fits"
            if not run:
                print(f"| {budget} GiB | {plan} | {BAR[seq_len][budget]}k | | | | | | | | | {best} | {peer} |", flush=True)
                continue
            measured = run["measured"]
            print(f"| {budget} GiB | {run['tokens_per_second']:.0f} | {BAR[seq_len][budget]}k | {plan['predicted']['peak_bytes'] / GIB:.2f} GiB "
                  f"| {measured['process_bytes'] / GIB:.2f} GiB | {100 * (measured['process_bytes'] / plan['predicted']['peak_bytes'] - 1):+.2f} % | {measured['reserved_bytes'] / measured['peak_bytes']:.3f} "
                  f"| {(measured['process_bytes'] - measured['reserved_bytes']) / 2**20:.0f} MiB "
                  f"| {plan['predicted']['step_seconds']:.3f} s | {measured['step_seconds']:.3f} s | {measured['host_bytes'] / GIB:.2f} GiB "
                  f"| {best} | {peer} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
