#!/usr/bin/env python3
"""How fast is training where states, gradients and weights wait on the host, and is memory what was predicted?

  placements.py build/bin/snug --plans DIR --only-plan       # anywhere: needs no GPU
  placements.py build/bin/snug --plans DIR [CASE ...]        # there: a row of a table for each case

Without --plans both at once. CASE is a name, or the beginning of some: `1.3b`, `random`. Whole processes: what the driver says
against the plan's figure; tokens per second by the median of the steps from the third on (with fewer steps, the last).
"""
import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

GIB = 2**30
LLAMA = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False}


def shape(hidden, inner, layers, heads, kv_heads, words, positions=8192, tied=False):
    return {**LLAMA, "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "vocab_size": words, "max_position_embeddings": positions, "tie_word_embeddings": tied}


LONG_8B = shape(4096, 14336, 32, 32, 8, 128256, 262144)
MODELS = {"8b-long": LONG_8B, "9.5b": shape(4096, 14336, 39, 32, 8, 128256), "14b": shape(5120, 17408, 40, 40, 8, 32000),
          "20b": shape(6144, 16384, 51, 48, 8, 32000)}


def case(model, batch, seq_len, budget, *flags, steps=6):
    return {"model": model, "batch": batch, "seq_len": seq_len, "budget": budget, "flags": list(flags), "steps": steps}


CASES = {
    **{f"1.3b-{gib}": case("llama-1.3b", 8, 4096, gib) for gib in (16, 13, 9.8, 7.3)},
    **{f"1.3b-{gib}-by-{rows}": case("llama-1.3b", 8, 4096, gib, "--micro-batch", str(rows)) for gib in (16, 13) for rows in (4, 2, 1)},
    **{f"7b-{gib}": case("llama2-7b", 8, 4096, gib, steps=4) for gib in (24, 13)},
    **{f"7b-{gib}-unclipped": case("llama2-7b", 8, 4096, gib, "--clip", "0", steps=4) for gib in (24, 13)},
    "qwen3-8b-24": case("qwen3-8b", 8, 4096, 24, steps=4),
    "9.5b-32": case("9.5b", 8, 4096, 32, steps=3),
    "14b-96": case("14b", 8, 4096, 96, steps=8),
    "20b-136-unclipped": case("20b", 2, 4096, 136, "--clip", "0", steps=3),
    "long-32k-24": case("8b-long", 1, 32768, 24, steps=3),
    "long-48k-24-unclipped": case("8b-long", 1, 49152, 24, "--clip", "0", steps=3),
    "long-128k-80": case("8b-long", 1, 131072, 80, steps=2),
}


def random_cases(count=15, seed=21):
    """Models of 0.1 to 3 billion parameters at budgets that their states, or more, do not fit."""
    draw = random.Random(seed)
    for number in range(count):
        hidden, heads = draw.choice([(1024, 16), (1280, 20), (1536, 12), (2048, 16), (2560, 20), (3072, 24)])
        model = shape(hidden, 128 * round(hidden * draw.uniform(2.5, 3.6) / 128), draw.randint(8, 28), heads,
                      draw.choice([heads, heads // 2, heads // 4]), draw.choice([32000, 50304, 128256]), tied=draw.random() < 0.3)
        batch, seq_len = draw.choice([(4, 2048), (8, 2048), (4, 4096), (8, 4096), (2, 8192)])
        weights = parameters(model)
        budget = round(0.7 + 14 * weights / GIB * draw.uniform(0.45, 1.0) + draw.uniform(0.5, 2), 2)
        flags = ["--clip", "0"] if draw.random() < 0.3 else []
        if draw.random() < 0.2:
            flags += ["--precision", "fp16"]
        name = f"random-{number}"
        MODELS[name] = model
        CASES[name] = case(name, batch, seq_len, budget, *flags, steps=10)


def parameters(model):
    hidden, of_head = model["hidden_size"], model["hidden_size"] // model["num_attention_heads"]
    block = 2 * hidden * hidden + 2 * hidden * of_head * model["num_key_value_heads"] + 3 * hidden * model["intermediate_size"]
    return model["num_hidden_layers"] * block + (1 if model["tie_word_embeddings"] else 2) * model["vocab_size"] * hidden


def flags_of(one, folder):
    model = one["model"]
    if model in MODELS:
        path = folder / f"{model}.config.json"
        path.write_text(json.dumps(MODELS[model]))
        model = str(path)
    return ["--model", model, "--batch-size", str(one["batch"]), "--seq-len", str(one["seq_len"])]


def split_of(one):  # a plan says it
    kept, skip = [], False
    for flag in one["flags"]:
        if skip or flag == "--micro-batch":
            skip = not skip
            continue
        kept.append(flag)
    return kept


def plan(arguments, folder, name, one):
    path = folder / f"{name}.plan.json"
    if not path.exists():
        made = subprocess.run([arguments.snug, "plan", *flags_of(one, folder), *one["flags"], "--budget", f"{one['budget']}GiB", "--hardware",
                               arguments.hardware, "--host-budget", arguments.host_budget, "--out", path], capture_output=True, text=True)
        if made.returncode:
            print(f"| {name} | {one['budget']} GiB | {made.stderr.splitlines()[0] if made.stderr else made.returncode} |", flush=True)
            return None
    return path


def run(arguments, folder, name, one):
    path = plan(arguments, folder, name, one)
    if not path or arguments.only_plan:
        return
    ran = subprocess.run([arguments.snug, "train", "--device", "cuda", *flags_of(one, folder), *split_of(one), "--plan", path, "--host-budget", arguments.host_budget,
                          "--steps", str(one["steps"]), "--no-save", "--json", "--out-dir", folder / f"{name}.run"], capture_output=True, text=True)
    planned = json.loads(path.read_text())
    if ran.returncode not in (0, 1) or not ran.stdout:
        print(f"| {name} | {one['budget']} GiB | failed: {' '.join(ran.stderr.split())[-300:]} |", flush=True)
        return
    result = json.loads(ran.stdout)
    lines = [json.loads(line) for line in (folder / f"{name}.run" / "metrics.jsonl").read_text().splitlines()]
    seconds = statistics.median([line["seconds"] for line in lines[2:]] or [lines[-1]["seconds"]])
    process, predicted = result["measured"]["process_bytes"], planned["predicted"]["peak_bytes"]
    print(f"| {name} | {one['budget']} GiB | {planned.get('micro_batch')}, {planned.get('states_on_host')} / {planned.get('gradients_on_host')} "
          f"/ {planned.get('weights_on_host')}, {planned.get('stepped_on_host')} | {one['batch'] * one['seq_len'] / seconds / 1e3:.2f}k "
          f"| {1e3 * seconds:.0f} ms | {1e3 * planned['predicted']['step_seconds']:.0f} ms | {process / GIB:.3f} GiB | {predicted / GIB:.3f} GiB "
          f"| {100 * (process - predicted) / predicted:+.3f} % | {result['measured']['host_bytes'] / GIB:.1f} GiB "
          f"| {result['measured']['allocation_retries']} | {result['first_loss']:.3f}, {result['last_loss']:.3f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("case", nargs="*", help="default: all")
    parser.add_argument("--plans", type=pathlib.Path)
    parser.add_argument("--only-plan", action="store_true")
    parser.add_argument("--hardware", default="hardware/h200.json")
    parser.add_argument("--host-budget", default="105GiB")
    arguments = parser.parse_intermixed_args()
    random_cases()
    print("| case | budget | micro-batch, per cent on the host of states / gradients / weights, by the CPU | tokens/s | step | planned | process "
          "| planned | off by | host | emptied caches | first, last loss |\n|---|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.plans or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, one in CASES.items():
            if not arguments.case or any(name == wanted or name.startswith(wanted) for wanted in arguments.case):
                run(arguments, folder, name, one)
    return 0


if __name__ == "__main__":
    sys.exit(main())
