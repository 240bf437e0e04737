#!/usr/bin/env python3
"""Does a model load and train whose weights are larger than the GPU's budget and half of the host's?

  load_at_size.py build/bin/snug FOLDER [--layers 66]

Writes a Llama of 26 billion parameters (52 GB in one safetensors file, most of it holes: FOLDER needs 3 GB) and trains it by SGD from
there, within 24 GiB and with all of it on the device. The first loss must be the same, to the bit: so is what was loaded. (Later ones
differ from run to run: attention's backward adds in any order.) Anonymous memory is watched from the start: weights are there once.
"""
import argparse
import ctypes
import json
import pathlib
import struct
import subprocess
import sys
import time

import torch

HIDDEN, INNER, HEADS, KV_HEADS, WORDS = 6144, 16384, 48, 8, 32000
GIB = 2**30


def tensors(layers):
    of_kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (WORDS, HIDDEN)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (HIDDEN,)
        for part, shape in (("q", (HIDDEN, HIDDEN)), ("k", (of_kv, HIDDEN)), ("v", (of_kv, HIDDEN)), ("o", (HIDDEN, HIDDEN))):
            yield name + f"self_attn.{part}_proj.weight", shape
        yield name + "post_attention_layernorm.weight", (HIDDEN,)
        for part, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            yield name + f"mlp.{part}_proj.weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (WORDS, HIDDEN)


def write(folder, layers):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": False, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": WORDS, "max_position_embeddings": 8192,
        "torch_dtype": "bfloat16"}))
    header, end = {}, 0
    for name, shape in tensors(layers):
        begin, end = end, end + 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    torch.manual_seed(26)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, entry in header.items():
            is_norm = len(entry["shape"]) == 1
            if not is_norm and name.startswith("model.layers.") and int(name.split(".")[2]) not in (0, layers // 2):
                continue  # a hole
            values = torch.ones(entry["shape"]) if is_norm else 0.02 * torch.randn(entry["shape"])
            file.seek(8 + len(text) + entry["data_offsets"][0])
            stored = values.bfloat16()
            file.write(ctypes.string_at(stored.data_ptr(), stored.nbytes))
        file.truncate(8 + len(text) + end)
    return end


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    return 0


def train(arguments, name, *flags):
    out = arguments.folder / name
    command = [arguments.snug, "train", "--device", "cuda", "--model", arguments.folder / "model", "--optimizer", "sgd", "--lr", "0.01", "--clip", "0", "--update", "backward",
               "--batch-size", "1", "--seq-len", "4096", "--steps", "3", "--no-save", "--json", "--hardware", arguments.hardware, "--out-dir", out, *flags]
    began, most = time.time(), 0
    with open(arguments.folder / f"{name}.out", "w") as stdout, open(arguments.folder / f"{name}.err", "w") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)
        while process.poll() is None:
            try:
                most = max(most, resident(process.pid))
            except OSError:
                pass
            time.sleep(0.2)
    if process.returncode:
        sys.exit((arguments.folder / f"{name}.err").read_text()[-600:])
    result = json.loads((arguments.folder / f"{name}.out").read_text())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    print(f"{name}: {time.time() - began:.0f} s in all, {1e3 * lines[-1]['seconds']:.0f} ms a step, process {result['measured']['process_bytes'] / GIB:.2f} GiB, host "
          f"{result['measured']['host_bytes'] / GIB:.2f} GiB, most anonymous memory {most / GIB:.2f} GiB, losses {[line['loss'] for line in lines]}", flush=True)
    return [line["loss"] for line in lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=66)
    parser.add_argument("--hardware", default="hardware/h200.json")
    arguments = parser.parse_args()
    print(f"weights of {write(arguments.folder / 'model', arguments.layers) / GIB:.2f} GiB", flush=True)
    there = train(arguments, "there", "--budget", "24GiB", "--host-budget", "105GiB")
    here = train(arguments, "here", "--budget", "138GiB", "--host-budget", "1MiB")
    print("the same first loss" if there[0] == here[0] else "ANOTHER FIRST LOSS")
    return there[0] != here[0]


if __name__ == "__main__":
    sys.exit(main())
