#!/usr/bin/env python3
"""Is a budget what an observer sees? Random steps under random budgets, the GPU's used memory sampled meanwhile by a process of its own.

  outside.py build/bin/snug [--runs 30] [--seed 1] [--steps 4]

Each run is one `snug train` of some steps, one after the other. Used memory is NVML's, of the whole device, every 3 ms: whoever else uses the
GPU counts too, so use it on an idle one. Exits with 1 if any run grew it beyond its budget, failed, or made torch's allocator empty its cache.
"""
import argparse
import ctypes
import multiprocessing
import pathlib
import random
import subprocess
import sys
import tempfile
import time

from frontier import GIB, train

# Model, numbers of sequences, tokens of each, budgets in GiB: from what offloads and recomputes a lot to what keeps all.
STEPS = [("llama-1.3b", (1,), 32768, (19.5, 36)), ("llama-1.3b", (2, 4), 8192, (19.5, 36)), ("llama-1.3b", (4, 8, 16), 2048, (19, 36)),
         ("qwen3-0.6b", (1,), 32768, (11, 30)), ("qwen3-0.6b", (2, 4, 8), 2048, (10, 24)), ("gpt2-medium", (8, 16), 1024, (7, 20)),
         ("gpt2", (8, 16, 32), 1024, (3.5, 16))]


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Device:
    """Takes no memory on the device itself."""

    def __init__(self):
        self.nvml, self.handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        if self.nvml.nvmlInit_v2() != 0 or self.nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.handle)) != 0:
            raise SystemExit("no GPU that NVML knows")

    def used(self):
        memory = Memory()
        if self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory)) != 0:
            raise RuntimeError("NVML does not say how much memory is used")
        return memory.used


def watch(stop, found):
    device = Device()
    peak = before = device.used()
    found.put(before)
    while not stop.is_set():
        peak = max(peak, device.used())
        time.sleep(0.003)
    found.put(peak)


def watched(run):
    """(what it returned, by how much used memory grew at most)."""
    stop, found = multiprocessing.Event(), multiprocessing.Queue()
    watcher = multiprocessing.Process(target=watch, args=(stop, found))
    watcher.start()
    before = found.get()
    try:
        result = run()
    finally:
        stop.set()
        peak = found.get()
        watcher.join()
    return result, peak - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snug")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--hardware", help="what 'snug probe' wrote; default: probed here first")
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    print(f"seed {arguments.seed}\n\n| step | budget | grew by | left | predicted | said | outside | predicted | host | retries | |\n"
          "|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        hardware = arguments.hardware or probe(arguments.snug, pathlib.Path(folder, "hardware.json"))
        passed = [run(arguments, hardware, draw) for _ in range(arguments.runs)]
    print(f"\n{sum(passed)} of {len(passed)} within their budgets, no cache emptied", flush=True)
    return 0 if all(passed) else 1


def probe(snug, path):
    subprocess.run([snug, "probe", "--device", "cuda", "--no-disk", "--out", path], check=True, capture_output=True)
    return path


def run(arguments, hardware, draw):
    model, batches, seq_len, (low, high) = draw.choice(STEPS)
    batch = draw.choice(batches)
    budget = round(draw.uniform(low, high), 2)
    host = draw.choice([(), (), ("--host-budget", "1MiB"), ("--host-budget", f"{draw.randint(1, 16)}GiB")])
    (result, plan), grew = watched(lambda: train(arguments.snug, model, batch, seq_len, arguments.steps, "--budget", f"{budget}GiB",
                                                 "--hardware", hardware, *host))
    what = " ".join([f"{model} {batch} x {seq_len}", *host])
    if not result and "does not fit" in plan:  # drawn too low
        return run(arguments, hardware, draw)
    if not result:
        print(f"| {what} | {budget} GiB | {plan} | FAILED |", flush=True)
        return False
    measured, predicted = result["measured"], plan["predicted"]
    passes = grew <= budget * GIB and measured["allocation_retries"] == 0
    mib = lambda size: f"{size / 2**20:.0f} MiB"
    print(f"| {what} | {budget:.2f} GiB | {grew / GIB:.3f} GiB | {mib(budget * GIB - grew)} | {predicted['peak_bytes'] / GIB:.3f} GiB "
          f"| {measured['process_bytes'] / GIB:.3f} GiB | {mib(measured['outside_bytes'])} | {mib(predicted['outside_bytes'])} "
          f"| {measured['host_bytes'] / GIB:.2f} GiB | {measured['allocation_retries']} | {'ok' if passes else 'FAILED'} |", flush=True)
    return passes


if __name__ == "__main__":
    sys.exit(main())
