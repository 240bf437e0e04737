"""What peers reach where bench/operators.cpp and `snug train` stand: Liger's and torch's own operators, and a whole step.

  peers.py [operators | step [--micro-batch 1]]     (operators and both steps unless one is named)

Liger is pure Python and no dependency of snug: without a network, carry it unpacked, and packaging, which it imports.
  pip download --no-deps --python-version 3.12 --only-binary=:all: liger-kernel packaging
  PYTHONPATH=where/they/are/unpacked python3 bench/peers.py

Operators: bf16, the shapes of operators.cpp, medians of 20 runs after 3. A short sleep on the GPU goes before every run, so
that Python's launches are hidden, as they are in a step. Memory is that of a run after the first: cuBLAS has its workspace.

The step is Llama-like, 1.26B parameters, 8 x 4096 tokens, with exact states (fp32 masters and moments), in the fastest way that
we know for it: bf16 weights and gradients beside the masters, not autocast, which casts every weight in every forward and
carries the residual in fp32; Liger's norm, rope, swiglu and loss head; cuDNN's attention; the norm to clip to as a factor while
gradients are widened; one fused AdamW over all masters. Segments of the allocator may grow, as snug's do.
"""
import argparse
import contextlib
import gc
import importlib
import os
import statistics
import subprocess
import sys
import time
import traceback
from types import SimpleNamespace

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # read when torch is imported

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from recompute_twin import BATCH, FFN, HEADS, HIDDEN, TOKENS, VOCABULARY, Model

ROWS, HEAD_DIM, EPS, DEVICE = BATCH * TOKENS, HIDDEN // HEADS, 1e-5, "cuda"


def load_liger():
    """Liger's Triton operators, from modules that do not import transformers; None where it is missing."""
    names = dict(loss="fused_linear_cross_entropy", rms_norm="rms_norm", rope="rope", swiglu="swiglu")
    try:
        return SimpleNamespace(**{name: importlib.import_module("liger_kernel.ops." + module) for name, module in names.items()})
    except Exception as error:  # whatever a version of it wants at import
        print(f"Liger's figures are left out, {type(error).__name__}: {error}; PYTHONPATH should have it unpacked", flush=True)
        return None


failures = []


@contextlib.contextmanager
def attempt(name):
    """A measurement that may fail alone."""
    try:
        yield
    except Exception as error:
        failures.append(name)
        print(f"{name}: failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}", flush=True)
        traceback.print_exc()
        traceback.clear_frames(error.__traceback__)  # they hold tensors


def random(*sizes):
    return torch.randn(*sizes, dtype=torch.bfloat16, device=DEVICE)


def nbytes(*tensors):
    return sum(tensor.nbytes for tensor in tensors)


def median_seconds(run, prepare=lambda: None):
    seconds = []
    for _ in range(23):
        prepare()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(5_000_000)  # cycles: about 2.5 ms
        begin.record()
        run()
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(seconds[3:])


def peak_beyond(run, results):
    """The most bytes allocated during a run, without what was there before and `results` bytes that it must make."""
    run()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - results


def show(name, moved, seconds, copy):
    rate = moved / seconds
    print(f"{name:32s} {1e3 * seconds:8.3f} ms {1e-12 * rate:8.2f} TB/s {100 * rate / copy:6.1f} % of the copy", flush=True)


def copy_rate():
    source = torch.empty(1 << 29, dtype=torch.bfloat16, device=DEVICE)
    target = torch.empty_like(source)
    rate = nbytes(source, target) / median_seconds(lambda: target.copy_(source))
    print(f"copy {1e-12 * rate:.2f} TB/s; {ROWS} tokens, hidden {HIDDEN}, ffn {FFN}, bf16", flush=True)
    return rate


def liger_loss(liger, hidden, weight, targets, reduction, sums=None, logits=1):
    """`sums`: the dtype that adds up the weight's gradient, the weight's own if None. `logits`: in units of the hidden states."""
    plain = dict(bias=None, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction=reduction,
                 softcap=None, return_z_loss=False, accum_dtype=sums, use_token_scaling=False, return_token_accuracy=False,
                 return_predicted_tokens=False, ce_impl=None, ce_mode=None, chunk_mem_const=logits)
    return liger.loss.LigerFusedLinearCrossEntropyFunction.apply(hidden, weight, targets, *plain.values())[0]


def loss_heads(liger):
    hidden, weight = random(ROWS, HIDDEN).requires_grad_(), random(VOCABULARY, HIDDEN).mul_(0.02).requires_grad_()
    targets = torch.randint(VOCABULARY, (ROWS,), device=DEVICE)
    heads = {"loss head, torch unfused": lambda: F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="sum")}
    if liger:
        heads |= {"loss head, Liger": lambda: liger_loss(liger, hidden, weight, targets, "sum"),
                  "loss head, Liger, fp32 sums": lambda: liger_loss(liger, hidden, weight, targets, "sum", torch.float32),
                  "loss head, Liger, 4 x logits": lambda: liger_loss(liger, hidden, weight, targets, "sum", None, 4)}
    for name, head in heads.items():
        def run():
            torch.autograd.grad(head(), (hidden, weight))
        with attempt(name):
            peak = peak_beyond(run, nbytes(hidden, weight))
            print(f"{name:32s} {1e3 * median_seconds(run):8.3f} ms, {peak / 2**20:.0f} MiB beyond inputs and gradients", flush=True)


def attention():
    for batch, tokens in (BATCH, TOKENS), (1, ROWS):
        inputs = [random(batch, tokens, HEADS, HEAD_DIM).requires_grad_() for _ in range(3)]
        grad = random(batch, tokens, HEADS, HEAD_DIM).transpose(1, 2)
        work = 3.5 * 4 * batch * HEADS * tokens**2 * HEAD_DIM / 2  # backward 2.5 times the forward, half of it masked

        def run():
            out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in inputs), is_causal=True)
            torch.autograd.grad(out, inputs, grad)
        for backend, known_as in (SDPBackend.CUDNN_ATTENTION, "cuDNN"), (SDPBackend.FLASH_ATTENTION, "flash"):
            name = f"attention {batch} x {tokens}, {known_as}"
            with attempt(name), sdpa_kernel(backend):
                peak = peak_beyond(run, nbytes(*inputs, grad))
                seconds = median_seconds(run)
                print(f"{name:32s} {1e3 * seconds:8.3f} ms {1e-12 * work / seconds:6.0f} TFLOP/s, "
                      f"{peak / 2**20:.0f} MiB beyond inputs, gradients and output", flush=True)


def liger_norm(liger, copy):
    x, grad, given, weight = random(ROWS, HIDDEN), random(ROWS, HIDDEN), random(ROWS, HIDDEN), random(HIDDEN)
    forward = lambda: liger.rms_norm.rms_norm_forward(x, weight, EPS, 0.0, "llama", None)
    _, _, rstd, block, warps, mode = forward()
    show("rms_norm, Liger", nbytes(x, x, rstd), median_seconds(forward), copy)
    # Leaves its result where the gradient was.
    backward = lambda: liger.rms_norm.rms_norm_backward(grad, x, weight, rstd, 0.0, mode, block, warps, True, None)
    show("rms_norm backward, Liger", nbytes(x, x, x, rstd), median_seconds(backward, lambda: grad.copy_(given)), copy)


def liger_swiglu(liger, copy):
    gate, up, grad = (random(ROWS, FFN) for _ in range(3))
    given = gate.clone(), up.clone()

    def restore():
        gate.copy_(given[0])
        up.copy_(given[1])
    show("swiglu, Liger", nbytes(gate, up, grad), median_seconds(lambda: liger.swiglu.swiglu_forward(gate, up)), copy)
    # Leaves its results where gate and up were.
    backward = lambda: liger.swiglu.swiglu_backward(gate, up, grad)
    show("swiglu backward, Liger", nbytes(gate, up, grad, gate, up), median_seconds(backward, restore), copy)


class MasterAdamW:
    """fp32 masters and moments of bf16 weights, by torch's fused kernel."""

    def __init__(self, weights):
        self.weights, self.masters = weights, [weight.detach().float() for weight in weights]
        self.optimizer = torch.optim.AdamW(self.masters, lr=3e-4, fused=True)

    @torch.no_grad()
    def step(self, clip):
        factor = torch.ones(1, device=DEVICE)
        if clip:
            norms = torch._foreach_norm([weight.grad for weight in self.weights], 2, torch.float32)
            factor = (1 / (torch.linalg.vector_norm(torch.stack(norms)) + 1e-6)).clamp(max=1).view(1)
        for master, weight in zip(self.masters, self.weights):
            master.grad, weight.grad = weight.grad * factor, None  # [1] in fp32 widens the product
        self.optimizer.step()
        self.optimizer.zero_grad()
        torch._foreach_copy_(self.weights, self.masters)


def adamw(copy):
    sizes, moved = (25600, HIDDEN), 24 * 25600 * HIDDEN * 28
    masters = [torch.randn(sizes, device=DEVICE) for _ in range(24)]
    for master in masters:
        master.grad = torch.randn(sizes, device=DEVICE)
    optimizer = torch.optim.AdamW(masters, lr=3e-4, fused=True)
    show("adamw step, 1.26B fp32, torch", moved, median_seconds(optimizer.step), copy)


def master_adamw(copy):
    weights = [random(25600, HIDDEN).requires_grad_() for _ in range(24)]
    grads, moved = [torch.randn_like(weight) for weight in weights], 24 * 25600 * HIDDEN * 28
    optimizer = MasterAdamW(weights)

    def prepare():
        for weight, grad in zip(weights, grads):
            weight.grad = grad
    show("  with bf16 weights and gradients", moved, median_seconds(lambda: optimizer.step(False), prepare), copy)


def operators(liger):
    copy = float("nan")
    with attempt("copy"):
        copy = copy_rate()
    sections = {"attention": attention, "adamw": lambda: adamw(copy), "adamw with masters": lambda: master_adamw(copy),
                "loss heads": lambda: loss_heads(liger)}
    if liger:
        sections |= {"rms_norm": lambda: liger_norm(liger, copy), "swiglu": lambda: liger_swiglu(liger, copy)}
    for name, section in sections.items():
        with attempt(name):
            gc.collect()
            torch.cuda.empty_cache()
            section()


class LigerModel(Model):
    """The twin's weights and order of operators, with Liger's operators."""

    def __init__(self, liger):
        super().__init__()
        self.liger, self.cos, self.sin = liger, self.cos[None], self.sin[None]

    def rms_norm(self, x, weight):
        return self.liger.rms_norm.LigerRMSNormFunction.apply(x, weight, EPS)

    def block(self, x, q, k, v, o, gate, up, down, norm1, norm2):
        heads = lambda t: t.view(-1, TOKENS, HEADS, HEAD_DIM).transpose(1, 2)
        n = self.rms_norm(x, norm1)
        query, key = self.liger.rope.LigerRopeFunction.apply(heads(F.linear(n, q)), heads(F.linear(n, k)), self.cos, self.sin)
        attended = F.scaled_dot_product_attention(query, key, heads(F.linear(n, v)), is_causal=True)
        x = x + F.linear(attended.transpose(1, 2).reshape(x.shape), o)
        n = self.rms_norm(x, norm2)
        return x + F.linear(self.liger.swiglu.LigerSiLUMulFunction.apply(F.linear(n, gate), F.linear(n, up)), down)

    def loss(self, first, count):
        """Of `count` sequences, their mean."""
        x = F.embedding(self.input[first:first + count], self.words)
        for weights in self.blocks:
            x = self.block(x, *weights)
        hidden = self.rms_norm(x, self.norm).view(-1, HIDDEN)
        return liger_loss(self.liger, hidden, self.head, self.target[first * TOKENS:(first + count) * TOKENS], "mean")


def train_step(model, optimizer, micro_batch):
    passes, total = BATCH // micro_batch, 0
    for parameter in model.parameters:
        parameter.grad = None
    for first in range(0, BATCH, micro_batch):
        loss = model.loss(first, micro_batch)
        loss = loss / passes if passes > 1 else loss  # Liger skips a pass over gradients that come with factor 1
        loss.backward()
        total = total + loss.detach()
    optimizer.step(clip=True)
    return total


def step(liger, micro_batch):
    model = LigerModel(liger)
    optimizer = MasterAdamW(model.parameters)
    seconds, losses = [], []
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        for _ in range(13):
            torch.cuda.synchronize()
            start = time.perf_counter()
            losses.append(train_step(model, optimizer, micro_batch))
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    median, (free, total) = statistics.median(seconds[3:]), torch.cuda.mem_get_info()
    gib = lambda value: f"{value / 2**30:.2f} GiB"
    print(f"step, Liger exact, micro-batch {micro_batch}: {1e3 * median:.1f} ms ({1e3 * min(seconds[3:]):.1f} to "
          f"{1e3 * max(seconds[3:]):.1f}), {ROWS / median:.0f} tok/s, process {gib(total - free)}, "
          f"allocated {gib(torch.cuda.max_memory_allocated())}, reserved {gib(torch.cuda.max_memory_reserved())}, "
          f"loss {losses[0].item():.3f} to {losses[-1].item():.3f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["operators", "step"])
    parser.add_argument("--micro-batch", type=int, choices=[1, 2, 4, 8], default=BATCH, help="sequences at a time in a step")
    options = parser.parse_args()
    if options.part is None:  # a process each, so that a step's memory is its own
        parts = ["operators"], ["step"], ["step", "--micro-batch", "1"]
        sys.exit(max([subprocess.run([sys.executable, __file__, *part]).returncode != 0 for part in parts]))
    if not torch.cuda.is_available():
        sys.exit("peers.py needs a GPU")
    liger = load_liger()
    if options.part == "operators":
        operators(liger)
    elif liger:
        with attempt(f"step, micro-batch {options.micro_batch}"):
            step(liger, options.micro_batch)
    sys.exit(len(failures) > 0)


if __name__ == "__main__":
    main()
