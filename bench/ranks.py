#!/usr/bin/env python3
"""Ranks on one GPU: losses of every stage under every placement, of two ranks over Gloo and of one over NCCL, their memory, and what stage 3 costs one rank.

    python3 bench/ranks.py bin/snug [exact] [nccl] [large] [one]         (all unless some are named)

Where only bits and bytes of tensors are compared four processes run at once.
"""
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import uuid

SNUG, PARTS = sys.argv[1], sys.argv[2:] or ["exact", "nccl", "large", "one"]
GIB = 2**30


def train(folder, *flags):
    """The document, with its losses and norms, or None."""
    run = pathlib.Path(folder) / uuid.uuid4().hex
    done = subprocess.run([SNUG, "train", "--device", "cuda", "--no-save", "--json", "--out-dir", str(run), *map(str, flags)], capture_output=True, text=True)
    if done.returncode != 0:
        print("  FAILED", *flags, done.stderr.strip().splitlines()[-1:], flush=True)
        return None
    document = json.loads(done.stdout)
    document["numbers"] = [(line["loss"], line["gradient_norm"]) for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]
    subprocess.run(["rm", "-r", str(run)], check=True)
    return document


ON_HOST, GRADIENTS_TOO, WEIGHTS_TOO = ("--states-on-host", "all"), ("--gradients-on-host", "all"), ("--weights-on-host", "50%")
# What to clip at, passes, flags, what of pieces is on the host as well.
CASES = ((1, 1, (), ()), (1, 2, (), ()), (1, 2, ("--recompute", "block"), ()), (1, 1, (*ON_HOST, "--update", "step"), ()), (1, 2, (*ON_HOST, "--update", "forward"), ()),
         (0, 1, (*ON_HOST, "--update", "backward"), ()), (0, 2, ON_HOST, ()), (1, 1, ("--recompute", "cheap", "--offload", "all"), ()), (1, 1, ("--precision", "fp16"), ()),
         (1, 2, (*ON_HOST, "--update", "step"), GRADIENTS_TOO), (0, 1, (*ON_HOST, "--update", "backward"), (*GRADIENTS_TOO, *WEIGHTS_TOO)),
         (1, 2, (*ON_HOST, "--update", "forward", "--stepped-on-host", "30%", "--recompute", "block"), (*GRADIENTS_TOO, *WEIGHTS_TOO)))


class Case:
    def __init__(self, clip, passes, more, placed):
        self.passes, self.placed = passes, placed
        self.flags = ("--model", "tiny", "--batch-size", 8, "--accumulation", passes, "--seq-len", 256, "--steps", 20, "--clip", clip, *more)
        self.stages = range(3 if placed and "--weights-on-host" in placed else 2 if placed else 1 if "backward" in more else 0, 4)
        self.name = " ".join(map(str, (*self.flags[4:], *placed)))

    def train(self, folder, stage, ranks, *more, placed=None):
        return train(folder, *self.flags, *(self.placed if placed is None else placed), "--ranks", ranks, "--zero-stage", stage, *more)


def each_case(check):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda case: check(Case(*case)), CASES))


def nccl(folder):
    def check(case):
        same = {}
        for stage in case.stages:
            alone, over_nccl = (case.train(folder, stage, 1, "--backend", name) for name in ("gloo", "nccl"))  # over Gloo one rank carries nothing
            same[stage] = bool(alone and over_nccl) and (alone["backend"], over_nccl["backend"]) == ("", "NCCL") and alone["numbers"] == over_nccl["numbers"]
        print(f"one rank over NCCL has the numbers of one that carries nothing, by stage {same}: {case.name}", flush=True)

    each_case(check)


def exact(folder):
    def check(case):
        documents = {stage: case.train(folder, stage, 2) for stage in case.stages}
        if not all(documents.values()):
            return
        # 0 and 1 sum gradients once a step, 2 and 3 in every pass.
        pairs = [(0, 1), (2, 3)] + [(1, 2)] * (case.passes == 1)
        same = {f"{one} and {other}": documents[one]["numbers"] == documents[other]["numbers"] for one, other in pairs if one in documents and other in documents}
        if case.placed:
            same["3 and 3 with these on the GPU"] = documents[3]["numbers"] == (case.train(folder, 3, 2, placed=()) or {}).get("numbers")
        bytes_off = {stage: document["measured"]["peak_bytes"] - document["predicted"]["peak_bytes"] for stage, document in documents.items()}
        print(f"same numbers of stages {same}; tensors, measured - predicted {bytes_off}: {case.name}", flush=True)

    each_case(check)


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
