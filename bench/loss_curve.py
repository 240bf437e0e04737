#!/usr/bin/env python3
"""Does a model learn as with transformers and Liger? The loss of every step from the same weights, on the same tokens, by the same schedule.

  PYTHONPATH=where/Liger/is/unpacked loss_curve.py build/bin/snug [--steps 200] [--budget 12GiB] [--out curve.csv]

A model like Qwen3-0.6B is made twice with transformers, from two seeds. The peer trains both as Trainer(bf16=True) would: fp32 weights under
autocast, Liger's operators, torch's fused AdamW. snug trains both from the same folders in bf16 with exact masters. The text is torch's own
Python files, its vocabulary of 32,768 learnt from them. Two seeds of the peer differ by chance alone: in every stretch of 20 steps, snug must
be nearer to the peer of its own seed than the two seeds of the peer are to each other.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch

BATCH, SEQ_LEN, VOCABULARY, STRETCH = 8, 2048, 32768, 20
LR, WARMUP, DECAY, BETAS, CLIP = 3e-4, 20, 0.1, (0.9, 0.95), 1.0
SIZES = dict(vocab_size=VOCABULARY, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
             num_key_value_heads=8, head_dim=128, max_position_embeddings=SEQ_LEN, tie_word_embeddings=True, eos_token_id=0)
TOKENIZE = pathlib.Path(__file__).parent.parent / "tools" / "tokenize.py"


def write_tokens(folder, steps):
    """folder/tokens.bin, enough for `steps`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    texts, size = [], 0
    for path in sorted(pathlib.Path(torch.__file__).parent.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        texts.append(text)
        size += len(text)
        if size > 6 * BATCH * SEQ_LEN * steps:  # a token is three to four characters
            break
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=["<end>"], show_progress=False,
                                                             initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    subprocess.run([sys.executable, TOKENIZE, "--model", folder, folder / "text.jsonl", "--eos", "0", "--bits", "16",
                    "--out", folder / "tokens.bin"], check=True)


def write_model(folder, seed):
    import transformers
    torch.manual_seed(seed)
    transformers.AutoModelForCausalLM.from_config(transformers.Qwen3Config(**SIZES)).to(torch.bfloat16).save_pretrained(folder)


def peer(folder, tokens, steps):
    """The loss of every step."""
    import numpy
    import transformers
    from liger_kernel.transformers import AutoLigerKernelForCausalLM
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoLigerKernelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=DECAY, fused=True)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, WARMUP, steps)
    text = torch.from_numpy(numpy.fromfile(tokens, dtype="<u2", offset=1024).astype("int64"))
    losses = []
    for step in range(steps):
        first = [SEQ_LEN * (step * BATCH + row) for row in range(BATCH)]
        rows = torch.stack([text[at:at + SEQ_LEN + 1] for at in first]).to(device)
        with torch.autocast(device, torch.bfloat16):
            loss = model(input_ids=rows, labels=rows, use_cache=False).loss  # the target of a token is the next: SEQ_LEN of them
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def snug(program, folder, tokens, steps, options):
    run = folder / "run"
    subprocess.run([program, "train", "--model", folder, "--data", tokens, "--out-dir", run, "--no-save", "--precision", "bf16",
                    "--batch-size", str(BATCH), "--seq-len", str(SEQ_LEN), "--steps", str(steps), "--lr", str(LR), "--schedule", "cosine",
                    "--warmup", str(WARMUP), "--clip", str(CLIP), "--weight-decay", str(DECAY), "--beta1", str(BETAS[0]),
                    "--beta2", str(BETAS[1]), *options], check=True, stdout=sys.stderr)
    return [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def mean(values):
    return sum(values) / len(values)


def distance(a, b, first):
    return mean([abs(x - y) for x, y in zip(a[first:first + STRETCH], b[first:first + STRETCH])])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("--steps", type=int, default=200, help=f"a multiple of {STRETCH}, more than {WARMUP}")
    parser.add_argument("--out", type=pathlib.Path, help="the loss of every step as CSV")
    parser.add_argument("--budget", help="of snug train; default: none, nothing recomputed")
    options = parser.parse_args()
    if options.steps <= WARMUP or options.steps % STRETCH:
        parser.error(f"--steps: expected a multiple of {STRETCH} above {WARMUP}, got {options.steps}")
    curves = {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_tokens(folder, options.steps)
        for seed in 1, 2:
            write_model(folder / f"seed-{seed}", seed)
        for seed in 1, 2:  # the peer in a process of its own: its memory is gone when snug runs
            code = f"import json, loss_curve; print(json.dumps(loss_curve.peer(*{[f'{folder}/seed-{seed}', f'{folder}/tokens.bin', options.steps]})))"
            result = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True,
                                    cwd=pathlib.Path(__file__).parent)
            curves["peer", seed] = json.loads(result.stdout.splitlines()[-1])
            curves["snug", seed] = snug(pathlib.Path(options.snug).absolute(), folder / f"seed-{seed}", folder / "tokens.bin",
                                        options.steps, ["--budget", options.budget] if options.budget else [])
    if options.out:
        lines = [",".join(["step", *(f"{who} {seed}" for who, seed in curves)])]
        lines += [",".join([str(step + 1), *(f"{curve[step]:.6f}" for curve in curves.values())]) for step in range(options.steps)]
        options.out.write_text("\n".join(lines) + "\n")
    print("| steps | peer's loss | between its seeds | snug from the peer, seed 1 | seed 2 |\n|---|---|---|---|---|")
    inside = True
    for first in range(0, options.steps, STRETCH):
        spread = distance(curves["peer", 1], curves["peer", 2], first)
        ours = [distance(curves["snug", seed], curves["peer", seed], first) for seed in (1, 2)]
        inside = inside and max(ours) <= spread
        print(f"| {first + 1} to {first + STRETCH} | {mean(curves['peer', 1][first:first + STRETCH]):.4f} | {spread:.4f} | {ours[0]:.4f} | {ours[1]:.4f} |")
    print("inside the spread of two seeds" if inside else "OUTSIDE the spread of two seeds")
    sys.exit(not inside)


if __name__ == "__main__":
    main()
