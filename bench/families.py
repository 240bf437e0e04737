#!/usr/bin/env python3
"""One training step of many models: snug beside what people would use instead, in one run, each in a process of its own.

  families.py SNUG [--shapes gpt2,qwen3-0.6b] [--lengths 512,2048,8192] [--tokens 16384] [--peers eager,compile,liger] [--half] [--probe] [--device cuda]

Peers are Hugging Face's models, plain (eager), under torch.compile, and with Liger's kernels where it has any, in bf16 (fp32 on the CPU), with
exact states (fp32 masters and moments beside bf16 weights) and with states in the weights' type; the best of both is shown with its states.
snug's states are exact. snug runs before and after the peers: a GPU's speed drifts. Memory is the process's on the GPU, the peak of the CPU's
resident set otherwise. `--half`: all within half of what snug's plain step takes: snug by --budget, a peer by recomputing its blocks and by
micro-batches, the fastest that fits.

Without a network carry transformers and Liger unpacked: PYTHONPATH=where/they/are. Peers run in --python (this one by default).
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # read when torch is imported
GIB, STEPS, FIRST = 2**30, 10, 4
LATER = GIB // 4  # kernels that CUDA loads while a step runs, about


def gpt2(width, layers, heads):
    return dict(model_type="gpt2", vocab_size=50257, n_embd=width, n_layer=layers, n_head=heads, n_positions=8192, activation_function="gelu_new",
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def llama(width, inner, layers, heads, kv_heads, vocabulary, kind="llama", **more):
    return dict(model_type=kind, vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
                num_key_value_heads=kv_heads, max_position_embeddings=32768, rms_norm_eps=1e-6, hidden_act="silu", **more)


TIED = dict(tie_word_embeddings=True)
SHAPES = {
    "tiny": llama(256, 688, 8, 4, 2, 256, **TIED),
    "gpt2": gpt2(768, 12, 12),
    "gpt2-medium": gpt2(1024, 24, 16),
    "gpt2-xl": gpt2(1600, 48, 25),
    "qwen2.5-0.5b": llama(896, 4864, 24, 14, 2, 151936, "qwen2", **TIED),
    "qwen3-0.6b": llama(1024, 3072, 28, 16, 8, 151936, "qwen3", head_dim=128, **TIED),
    "qwen3-1.7b": llama(2048, 6144, 28, 16, 8, 151936, "qwen3", head_dim=128, **TIED),
    "llama-3.2-1b": llama(2048, 8192, 16, 32, 8, 128256, **TIED),
    "llama-1.3b": llama(2048, 5632, 22, 16, 16, 32768, tie_word_embeddings=False),
    "grouped-4096": llama(4096, 14336, 8, 32, 8, 32768, tie_word_embeddings=False),
    "odd": llama(1040, 2808, 16, 13, 13, 50257, tie_word_embeddings=False),  # nothing is a multiple of 64
}


def work_of(config, length):
    """Floating-point operations of a step's products and attention, for one token."""
    gpt = config["model_type"] == "gpt2"
    width, layers = (config["n_embd"], config["n_layer"]) if gpt else (config["hidden_size"], config["num_hidden_layers"])
    heads = config["n_head"] if gpt else config["num_attention_heads"]
    head = width // heads if gpt else config.get("head_dim", width // heads)
    if gpt:
        weights = 12 * width * width
    else:
        weights = width * head * (2 * heads + 2 * config["num_key_value_heads"]) + 3 * width * config["intermediate_size"]
    return 6 * (layers * weights + width * config["vocab_size"]) + layers * 6 * heads * head * length  # causal: half of the square


def snug(options, config, batch, length, *flags):
    """Tokens per second, bytes, predicted bytes; or why not."""
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        precision = ("--precision", "bf16" if options.device == "cuda" else "fp32")
        command = [options.snug, "train", "--model", folder + "/config.json", "--device", options.device, "--steps", STEPS, "--batch-size", batch, "--seq-len", length, "--no-save",
                   "--json", "--out-dir", folder + "/run", *precision, *flags]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode != 0:
            return None, done.stderr.strip().splitlines()[-1:]
        document = json.loads(done.stdout)
        lines = [json.loads(line) for line in pathlib.Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    measured = document["measured"]
    seconds = statistics.median(line["seconds"] for line in lines[FIRST:])
    found = dict(rate=batch * length / seconds, bytes=measured["process_bytes"], loss=lines[0]["loss"])
    if options.device == "cuda":
        found["off"] = measured["process_bytes"] / document["predicted"]["process_bytes"] - 1
    return found, None


def peer(options, name, batch, length, who, *flags):
    command = [options.python, __file__, options.snug, "--device", options.device, "--as-peer", json.dumps([name, batch, length, who, *flags])]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode != 0:
        print(f"{who} failed on {name}, {batch} x {length} {flags}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}", file=sys.stderr, flush=True)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


def as_peer(device, name, batch, length, who, passes=1, recompute=False, most_bytes=None):
    """Prints, by states, tokens per second and bytes."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**{"attn_implementation": "sdpa", "use_cache": False, **SHAPES[name]})
    if who == "liger":
        from liger_kernel.transformers import AutoLigerKernelForCausalLM, _apply_liger_kernel
        _apply_liger_kernel(config.model_type)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    if most_bytes and device == "cuda":  # so that the allocator gives back what it caches before it takes more than that
        free, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(max(0, most_bytes - (total - free) - LATER) / total)
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    if recompute:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    run = torch.compile(model) if who == "compile" else model
    tokens = torch.randint(config.vocab_size, (batch, length), device=device)
    weights = list(model.parameters())

    def synchronize():
        if device == "cuda":
            torch.cuda.synchronize()

    class Masters:
        """fp32 masters and moments of bf16 weights, by torch's fused kernel; the factor to clip by goes in as gradients are widened."""

        def __init__(self):
            self.masters = [weight.detach().float() for weight in weights]
            self.inner = torch.optim.AdamW(self.masters, lr=3e-4, fused=True)

        @torch.no_grad()
        def step(self):
            norms = torch._foreach_norm([weight.grad for weight in weights], 2, torch.float32)
            factor = (1 / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)).clamp(max=1).view(1)
            for master, weight in zip(self.masters, weights):
                master.grad, weight.grad = weight.grad * factor, None
            self.inner.step()
            self.inner.zero_grad()
            torch._foreach_copy_(weights, self.masters)

    class Same:
        def __init__(self):
            self.inner = torch.optim.AdamW(weights, lr=3e-4, fused=True)

        def step(self):
            torch.nn.utils.clip_grad_norm_(weights, 1.0)
            self.inner.step()

    def step(optimizer):
        model.zero_grad(set_to_none=True)
        for part in tokens.chunk(passes):
            (run(input_ids=part, labels=part).loss / passes).backward()
        optimizer.step()

    def run_steps(kind):
        """Seconds of every step, none when memory was not enough, and bytes."""
        seconds = []
        try:
            optimizer = kind()
            for _ in range(STEPS):
                synchronize()
                begin = time.perf_counter()
                step(optimizer)
                synchronize()
                seconds.append(time.perf_counter() - begin)
        except torch.OutOfMemoryError:
            return [], 0
        if device == "cuda":
            free, total = torch.cuda.mem_get_info()
            return seconds, total - free
        return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    found = {}
    for states, kind in ("exact", Masters if dtype == torch.bfloat16 else Same), ("bf16", Same):
        if dtype == torch.float32 and states != "exact":
            continue
        seconds, used = run_steps(kind)
        if seconds and (most_bytes is None or used <= most_bytes):
            found[states] = dict(rate=batch * length / statistics.median(seconds[FIRST:]), bytes=used, flags=f"{passes} passes{', recomputed' if recompute else ''}")
        model.zero_grad(set_to_none=True)  # also after out of memory, when nothing else holds the step's tensors any more
        if device == "cuda":
            torch.cuda.empty_cache()
    print(json.dumps(found))


def best_within(options, name, batch, length, who, most_bytes):
    """The fastest micro-batches, with blocks recomputed and without: more passes are tried until they are slower."""
    best = {}
    for recompute in (False, True):
        before = {}
        for passes in (1, 2, 4, 8):
            if batch % passes:
                continue
            found = peer(options, name, batch, length, who, passes, recompute, most_bytes)
            for states, one in found.items():
                if states not in best or one["rate"] > best[states]["rate"]:
                    best[states] = one
            if before and all(one["rate"] < before.get(states, one)["rate"] for states, one in found.items()) and len(found) == len(before):
                break
            before = found
    return best


def gib(value):
    return f"{value / GIB:.2f}"


def row(options, name, length):
    config, batch = SHAPES[name], max(1, options.tokens // length)
    plain, why = snug(options, config, batch, length)
    if not plain:
        print(f"| {name} | {batch} x {length} | failed: {why} |", flush=True)
        return
    flags, most_bytes = (), None
    if options.half:
        most_bytes = plain["bytes"] // 2
        flags = ("--budget", most_bytes)
    first, why = snug(options, config, batch, length, *flags) if options.half else (plain, None)
    peers = {}
    for who in options.peers.split(","):
        if who == "liger" and config["model_type"] == "gpt2":
            continue  # it has no kernels for it
        found = best_within(options, name, batch, length, who, most_bytes) if options.half else peer(options, name, batch, length, who)
        for states, one in found.items():
            peers[f"{who}, {states}"] = one
    again, _ = snug(options, config, batch, length, *flags)
    if not first or not again:
        print(f"| {name} | {batch} x {length} | snug: {why} | peers: {peers}", flush=True)
        return
    rate = (first["rate"] + again["rate"]) / 2
    best = max(peers, key=lambda who: peers[who]["rate"], default=None)
    others = "; ".join(f"{who} {one['rate']:,.0f} ({gib(one['bytes'])}{', ' + one['flags'] if options.half else ''})" for who, one in peers.items())
    ratio = f"{rate / peers[best]['rate']:.3f} of {best}" if best else "no peer ran"
    off = f", predicted {100 * first['off']:+.3f} %" if "off" in first else ""
    print(f"| {name} | {batch} x {length} | {rate:,.0f} ({first['rate']:,.0f}, {again['rate']:,.0f}) | {gib(first['bytes'])} GiB{off} | "
          f"{rate * work_of(config, length) * 1e-12:.3g} TFLOP/s | **{ratio}** | {others} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("--shapes", default=",".join(name for name in SHAPES if name != "tiny"))
    parser.add_argument("--lengths", default="512,2048,8192")
    parser.add_argument("--tokens", type=int, default=16384, help="of a step")
    parser.add_argument("--peers", default="eager,compile,liger")
    parser.add_argument("--half", action="store_true")
    parser.add_argument("--probe", action="store_true", help="measure the machine first: predictions then know what CUDA holds outside of torch's allocator")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--as-peer", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_peer:
        return as_peer(options.device, *json.loads(options.as_peer))
    if options.probe:
        subprocess.run([options.snug, "probe", "--device", options.device], check=True, stdout=subprocess.DEVNULL)
    print("| model | tokens | snug, tok/s | memory | products and attention | snug / best peer | peers, tok/s (GiB) |\n|---|---|---|---|---|---|---|", flush=True)
    for name in options.shapes.split(","):
        for length in map(int, options.lengths.split(",")):
            row(options, name, length)


if __name__ == "__main__":
    main()
