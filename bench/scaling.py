#!/usr/bin/env python3
"""The tables of docs/scaling.md: what ranks send, and steps of 8 to 1,024 GPUs as the planner simulates them. Needs no GPU.

    python3 bench/scaling.py build/bin/snug [steps] [slow] [hybrid] [published]        (all of them unless some are named)
"""
import functools
import json
import subprocess
import sys

SNUG, PARTS = sys.argv[1], sys.argv[2:] or ["steps", "slow", "hybrid", "published"]
PER_MACHINE = 8
H100 = {"network_rate": 45e9, "hop_seconds": 14e-6, "slowdown": 0.13}  # as plan/hardware_presets and plan/collectives have it


@functools.cache
def plan(model, tokens, each, gpus, hardware, stage, *more):
    """Of one rank's step with `each` sequences of `tokens` tokens on every GPU; None if nothing fits."""
    flags = ("--model", model, "--seq-len", tokens, "--batch-size", each * gpus, "--micro-batch", each, "--ranks", gpus, "--zero-stage", stage,
             "--hardware", hardware, *more)
    done = subprocess.run([SNUG, "plan", "--json", *map(str, flags)], capture_output=True, text=True)
    if done.returncode == 1:
        return None
    if done.returncode:
        sys.exit(done.stderr)
    document = json.loads(done.stdout)
    document["per_gpu"] = each * tokens / document["predicted"]["step_seconds"]
    return document


def row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def header(*cells):
    row(*cells)
    row(*["---"] * len(cells))


def ms(seconds):
    return f"{seconds * 1e3:,.0f} ms"


def cells_of(document):
    if not document:
        return ["does not fit"] + [""] * 4
    ranks = document["ranks"]
    return [f"{document['predicted']['peak_bytes'] / 2**30:.1f} GiB", f"{ranks['sent_bytes'] / 1e9:.1f} GB", ms(ranks["collective_seconds"]),
            f"{ms(document['predicted']['step_seconds'])}, {ms(ranks['cost_seconds'])} of it", f"{document['per_gpu']:,.0f}"]


def steps():
    for stage in (1, 2, 3):
        print(f"\nllama3-8b, 2 x 8192 tokens per GPU, h100, stage {stage}\n")
        header("GPUs", "process", "sent by each", "collectives", "step, for collectives", "tokens/s per GPU")
        for gpus in (8, 16, 32, 64, 128, 256, 512, 1024):
            row(gpus, *cells_of(plan("llama3-8b", 8192, 2, gpus, "h100", stage)))


def slow():
    """GPUs that share one card of 100 Gb/s per machine: rtx4090 has an office's network, 10 Gb/s."""
    print("\nllama-1.3b, 8 x 2048 tokens per GPU, stage 2\n")
    header("GPUs", "l4, 100 Gb/s", "rtx4090, 10 Gb/s")
    for gpus in (8, 16, 64):
        cells = [plan("llama-1.3b", 2048, 8, gpus, hardware, 2) for hardware in ("l4", "rtx4090")]
        row(gpus, *(f"{ms(one['predicted']['step_seconds'])}, {ms(one['ranks']['cost_seconds'])} of it" if one else "does not fit" for one in cells))


def hybrid():
    """Stage 3 inside a machine, gradients' pieces summed across machines, on paper: the step of one machine, and its pieces on the network."""
    print("\nllama3-8b, 2 x 8192 tokens per GPU, h100: stage 3 over all, and inside machines\n")
    header("GPUs", "process", "tokens/s per GPU", "inside: process", "over the network, each", "network", "tokens/s per GPU")
    inside = plan("llama3-8b", 8192, 2, PER_MACHINE, "h100", 3)
    sent_by_2 = plan("llama3-8b", 8192, 2, PER_MACHINE, "h100", 2)["ranks"]["sent_bytes"]  # gradients and weights, once each
    gradients = sent_by_2 / 2 / (PER_MACHINE - 1) * PER_MACHINE
    for gpus in (16, 64, 256, 1024):
        over_all = plan("llama3-8b", 8192, 2, gpus, "h100", 3)
        machines = gpus // PER_MACHINE
        sent = 2 * gradients / PER_MACHINE * (machines - 1) / machines
        network = sent / H100["network_rate"] + 2 * (machines - 1) * H100["hop_seconds"] * 34  # a layer at a time
        step = inside["predicted"]["step_seconds"]
        behind = 2 / 3 * step  # the backward
        step += H100["slowdown"] * min(network, behind) + max(0, network - behind)
        row(gpus, f"{over_all['predicted']['peak_bytes'] / 2**30:.1f} GiB", f"{over_all['per_gpu']:,.0f}", f"{inside['predicted']['peak_bytes'] / 2**30:.1f} GiB", f"{sent / 1e9:.2f} GB",
            ms(network), f"{2 * 8192 / step:,.0f}")


def published():
    """Tokens per second and GPU beside those of as few GPUs, theirs and predicted."""
    print("\n")
    header("run", "GPUs", "tokens/s per GPU there", "of the fewest", "predicted", "of the fewest")
    for name, shape, numbers in (
            ("torchtitan, Llama 3.1 8B, H100", ("llama3-8b", 8192, 2, "h100", 3), {8: 6667, 128: 6514}),
            ("llm-foundry, MPT-7B, H100", ("llama2-7b", 2048, 6, "h100", 3), {8: 10643, 128: 10475, 256: 10119, 512: 9670}),
            ("llm-foundry, MPT-1B, H100", ("llama-1.3b", 2048, 12, "h100", 2), {8: 45455, 128: 44123, 256: 42555, 512: 39837}),
            ("llm-foundry, MPT-7B, A100 40 GB", ("llama2-7b", 2048, 16, "a100-40", 3), {16: 3645, 32: 3725, 64: 3665, 128: 3623})):
        model, tokens, each, hardware, stage = shape
        fewest = min(numbers)
        first = plan(model, tokens, each, fewest, hardware, stage)
        for gpus, there in numbers.items():
            here = plan(model, tokens, each, gpus, hardware, stage)
            row(name, gpus, f"{there:,}", f"{there / numbers[fewest]:.3f}", f"{here['per_gpu']:,.0f}" if here else "does not fit",
                f"{here['per_gpu'] / first['per_gpu']:.3f}" if here and first else "")


for part in PARTS:
    {"steps": steps, "slow": slow, "hybrid": hybrid, "published": published}[part]()
