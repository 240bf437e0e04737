#!/usr/bin/env python3
"""Ranks on one GPU, over Gloo: losses of every stage under every placement, their memory, and what stage 3 costs one rank.

    python3 bench/ranks.py bin/snug [exact] [large] [one]         (all three unless some are named)
"""
import json
import pathlib
import subprocess
import sys
import tempfile

SNUG, PARTS = sys.argv[1], sys.argv[2:] or ["exact", "large", "one"]
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


def exact(folder):
    on_host = ("--states-on-host", "all")
    for clip, passes, more in ((1, 1, ()), (1, 2, ()), (1, 2, ("--recompute", "block")), (1, 1, (*on_host, "--update", "step")), (1, 2, (*on_host, "--update", "forward")),
                               (0, 1, (*on_host, "--update", "backward")), (0, 2, on_host), (1, 1, ("--recompute", "cheap", "--offload", "all")), (1, 1, ("--precision", "fp16"))):
        flags = ("--model", "tiny", "--batch-size", 8, "--accumulation", passes, "--seq-len", 256, "--steps", 20, "--clip", clip, *more)
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


with tempfile.TemporaryDirectory() as temporary:
    for part in PARTS:
        {"exact": exact, "large": large, "one": one}[part](temporary)
