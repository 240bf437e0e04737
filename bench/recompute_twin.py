"""The model of bench/recompute.cpp in Python, plain and under torch.utils.checkpoint, on the first GPU."""
import statistics
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

LAYERS, HIDDEN, FFN, HEADS, VOCABULARY, BATCH, TOKENS = 22, 2048, 5632, 16, 32768, 8, 4096


class Model:
    def __init__(self):
        torch.manual_seed(7)
        self.parameters = []
        weight = lambda *sizes: self.keep(torch.randn(*sizes, dtype=torch.bfloat16, device="cuda") * HIDDEN ** -0.5)
        ones = lambda: self.keep(torch.ones(HIDDEN, dtype=torch.bfloat16, device="cuda"))
        self.words = weight(VOCABULARY, HIDDEN)
        self.blocks = [[weight(HIDDEN, HIDDEN) for _ in range(4)] +
                       [weight(FFN, HIDDEN), weight(FFN, HIDDEN), weight(HIDDEN, FFN), ones(), ones()]
                       for _ in range(LAYERS)]
        self.norm, self.head = ones(), weight(VOCABULARY, HIDDEN)
        half = HIDDEN // HEADS // 2
        angles = torch.outer(torch.arange(TOKENS, device="cuda").float(),
                             10000.0 ** (torch.arange(half, device="cuda").float() / -half))
        angles = torch.cat([angles, angles], -1)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        self.input = torch.randint(VOCABULARY, (BATCH, TOKENS), device="cuda")
        self.target = torch.randint(VOCABULARY, (BATCH * TOKENS,), device="cuda")

    def keep(self, tensor):
        self.parameters.append(tensor.requires_grad_())
        return tensor

    def rope(self, x):
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def block(self, x, q, k, v, o, gate, up, down, norm1, norm2):
        heads = lambda t: t.view(BATCH, TOKENS, HEADS, -1).transpose(1, 2)
        n = F.rms_norm(x, (HIDDEN,), norm1, 1e-5)
        attended = F.scaled_dot_product_attention(self.rope(heads(F.linear(n, q))), self.rope(heads(F.linear(n, k))),
                                                  heads(F.linear(n, v)), is_causal=True)
        x = x + F.linear(attended.transpose(1, 2).reshape(BATCH, TOKENS, HIDDEN), o)
        n = F.rms_norm(x, (HIDDEN,), norm2, 1e-5)
        return x + F.linear(F.silu(F.linear(n, gate)) * F.linear(n, up), down)

    def loss(self, run):
        x = F.embedding(self.input, self.words)
        for weights in self.blocks:
            x = run(self.block, x, *weights)
        logits = F.linear(F.rms_norm(x, (HIDDEN,), self.norm, 1e-5), self.head)
        return F.cross_entropy(logits.view(-1, VOCABULARY), self.target)


def main():
    model = Model()
    ways = {"python, plain": lambda f, *a: f(*a),
            "python, torch.utils.checkpoint": lambda f, *a: checkpoint(f, *a, use_reentrant=False)}
    seconds, peaks = {name: [] for name in ways}, {}
    for round in range(11):
        for name, run in ways.items():
            for parameter in model.parameters:
                parameter.grad = None
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            model.loss(run).backward()
            torch.cuda.synchronize()
            if round >= 2:
                seconds[name].append(time.perf_counter() - start)
                peaks[name] = torch.cuda.max_memory_allocated()
    plain = statistics.median(seconds["python, plain"])
    for name in ways:
        median = statistics.median(seconds[name])
        print(f"{name:32s} {1e3 * median:9.2f} ms, ratio of medians {median / plain:.4f}, peak {peaks[name] / 2**30:.3f} GiB")


if __name__ == "__main__":
    main()
