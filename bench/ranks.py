#!/usr/bin/env python3
"""Ranks on one GPU: losses of every stage under every placement, over Gloo and of one rank over NCCL, their memory, and what stage 3 costs one rank.

    python3 bench/ranks.py bin/snug [exact] [nccl] [large] [one]         (all unless some are named)
"""
import json
import pathlib
import subprocess
import sys
import tempfile

SNUG, PARTS = sys.argv[1], sys.argv[2:] or ["exact", "nccl", "large", "one"]
GIB = 2**30


def train(folder, *flags):
    """The document, with its losses and norms, or None."""
    run = pathlib.Path(folder) / "run"
    done = subprocess.run([SNUG, "train", "--device", "cuda", "--no-save", "--json", "--out-dir", str(run), *map(str, flags)], capture_output=True, text=True)
    if done.returncode != 0:
        print("  FAILED", *flags, done.stderr.strip().splitlines()[-1:], flush=True)
        return None
    document = json.loads(done.stdout)
    document["numbers"] = [(line["loss"], line["gradient_norm"]) for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]
    subprocess.run(["rm", "-r", str(run)], check=True)
    return document


ON_HOST = ("--states-on-host", "all")
CASES = ((1, 1, ()), (1, 2, ()), (1, 2, ("--recompute", "block")), (1, 1, (*ON_HOST, "--update", "step")), (1, 2, (*ON_HOST, "--update", "forward")),
         (0, 1, (*ON_HOST, "--update", "backward")), (0, 2, ON_HOST), (1, 1, ("--recompute", "cheap", "--offload", "all")), (1, 1, ("--precision", "fp16")))


def flags_of(clip, passes, more):
    return ("--model", "tiny", "--batch-size", 8, "--accumulation", passes, "--seq-len", 256, "--steps", 20, "--clip", clip, *more)


def nccl(folder):
    for clip, passes, more in CASES:
        flags = flags_of(clip, passes, more)
        plain = train(folder, *flags)
        same = {}
        for stage in (0, 1, 2, 3):
            if stage == 0 and "backward" in more:
                continue
            document = train(folder, *flags, "--ranks", 1, "--zero-stage", stage, "--backend", "nccl")
            same[stage] = bool(document) and document["backend"] == "NCCL" and document["numbers"] == plain["numbers"]
        print(f"one rank over NCCL {' '.join(map(str, flags[4:]))}: plain's numbers {same}", flush=True)


def exact(folder):
    for clip, passes, more in CASES:
        flags = flags_of(clip, passes, more)
        documents = [train(folder, *flags, "--ranks", 2, "--zero-stage", stage) for stage in (0, 1, 2, 3) if stage > 0 or "backward" not in more]
        numbers = [document and document["numbers"] for document in documents]
        pairs = numbers[-2] == numbers[-1], len(numbers) < 4 or numbers[0] == numbers[1], passes > 1 or numbers[0] == numbers[-1]
        bytes_off = [document and document["measured"]["peak_bytes"] - document["predicted"]["peak_bytes"] for document in documents]
        print(f"exact {' '.join(map(str, flags[4:]))}: stages 2 and 3 {pairs[0]}, 0 and 1 {pairs[1]}, all in one pass {pairs[2]}; tensors, measured - predicted {bytes_off}", flush=True)


def line(name, document):
    if document:
        predicted, measured = document["predicted"], document["measured"]
        print(f"{name:24} {document['tokens_per_second']:8.0f} tok/s {measured['step_seconds'] * 1e3:8.1f} ms  process {measured['process_bytes'] / GIB:.3f} GiB, predicted "
              f"{predicted['process_bytes'] / GIB:.3f}  states {measured['bytes']['optimizer'] / GIB:.2f}  loss {document['numbers'][0][0]:.9g} -> {document['numbers'][-1][0]:.9g}", flush=True)


def large(folder):
    for stage in (0, 1, 2, 3):
        line(f"2 ranks, stage {stage}", train(folder, "--model", "llama-1.3b", "--batch-size", 2, "--seq-len", 1024, "--steps", 4, "--ranks", 2, "--zero-stage", stage))


def one(folder):
    flags = ("--model", "llama-1.3b", "--batch-size", 8, "--seq-len", 4096, "--steps", 8)
    for _ in range(2):
        line("plain", train(folder, *flags))
        line("1 rank, stage 3", train(folder, *flags, "--ranks", 1, "--zero-stage", 3))
        line("1 rank, stage 3, NCCL", train(folder, *flags, "--ranks", 1, "--zero-stage", 3, "--backend", "nccl"))


with tempfile.TemporaryDirectory() as temporary:
    for part in PARTS:
        {"exact": exact, "nccl": nccl, "large": large, "one": one}[part](temporary)
