#!/usr/bin/env python3
"""How fast is a step at each budget, by --budget alone, and is that what was predicted?

  frontier.py build/bin/snug [--steps 8] [--rounds 2] [--only 4096|32768] [--no-hand]

Llama-like, 1.26B parameters, 32,768 tokens per step, bf16 with exact states. Beside each row stand the peers at that budget, as measured on
such a machine (not in this run), and the best that can be had without a plan, by hand: of every micro-batch with nothing, cheap values or
whole blocks recomputed, the fastest that fits. Plan and hand take turns, because a GPU's speed drifts by a percent or two.
"""
import argparse
import functools
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
                   "--seq-len", str(seq_len), "--out-dir", folder + "/run", "--no-save", "--json", *options]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            return None, result.stderr.strip()
        plan = pathlib.Path(folder, "run", "plan.json")
        return json.loads(result.stdout), json.loads(plan.read_text()) if plan.exists() else None


def by_hand(snug, seq_len):
    """(process bytes, tokens per second, flags) of everything that two flags can do."""
    runs = []
    batch = TOKENS // seq_len
    for micro in [m for m in (8, 4, 2, 1) if batch % m == 0 and m <= batch]:
        for recompute in ("none", "cheap", "block"):
            flags = ("--micro-batch", str(micro), "--recompute", recompute)
            run, _ = train(snug, MODEL, batch, seq_len, 4, *flags)
            if run:
                runs.append((run["measured"]["process_bytes"], run["tokens_per_second"], flags))
    return runs


def mean_speed(runs):
    return sum(run["tokens_per_second"] for run in runs) / len(runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2, help="turns of plan and hand; the mean of their speeds is shown")
    parser.add_argument("--only", type=int, choices=sorted(PEERS))
    parser.add_argument("--no-hand", action="store_true", help="only by --budget")
    arguments = parser.parse_args()
    for seq_len in [arguments.only] if arguments.only else sorted(PEERS):
        hand = [] if arguments.no_hand else by_hand(arguments.snug, seq_len)
        print(f"\n{TOKENS // seq_len} x {seq_len}\n\n| budget | tok/s | bar | planned | process | off by | reserved / allocated | outside | step, predicted | "
              "step, measured | host | retries | by hand | peer |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
        turn = functools.partial(train, arguments.snug, MODEL, TOKENS // seq_len, seq_len, arguments.steps)
        for budget, peer in PEERS[seq_len].items():
            fitting = [(speed, flags) for process, speed, flags in hand if process <= budget * GIB]
            flags = max(fitting)[1] if fitting else None
            turns, rivals = [], []
            for _ in range(arguments.rounds):
                turns.append(turn("--budget", f"{budget}GiB"))
                if flags and turns[-1][0]:
                    rivals.append(turn(*flags)[0])
            best = f"{mean_speed(rivals):.0f} ({' '.join(flags)})" if rivals else "nothing fits"
            run, plan = turns[-1]
            if not run:
                print(f"| {budget} GiB | {plan} | {BAR[seq_len][budget]}k | | | | | | | | | | {best} | {peer} |", flush=True)
                continue
            measured = run["measured"]
            print(f"| {budget} GiB | {mean_speed([run for run, _ in turns]):.0f} | {BAR[seq_len][budget]}k | {plan['predicted']['peak_bytes'] / GIB:.2f} GiB "
                  f"| {measured['process_bytes'] / GIB:.2f} GiB | {100 * (measured['process_bytes'] / plan['predicted']['peak_bytes'] - 1):+.2f} % | {measured['reserved_bytes'] / measured['peak_bytes']:.3f} "
                  f"| {(measured['process_bytes'] - measured['reserved_bytes']) / 2**20:.0f} MiB "
                  f"| {plan['predicted']['step_seconds']:.3f} s | {measured['step_seconds']:.3f} s | {measured['host_bytes'] / GIB:.2f} GiB "
                  f"| {measured['allocation_retries']} | {best} | {peer} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
