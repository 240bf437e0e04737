#!/usr/bin/env python3
"""Checks who includes whom: every #include "snug/..." must be allowed by the table below, and the core must not see torch.

The table is that of docs/architecture.md. It is acyclic, so a folder can be read knowing only those above it.
"""
import pathlib
import re
import sys

ALLOWED = {
    "base": "",
    "trace": "base",
    "plan": "base trace",
    "report": "base trace plan",
    "hooks": "base",
    "memory": "base trace report hooks",
    "host": "base trace",
    "tape": "base trace hooks host",
    "ops": "base hooks",
    "precision": "base",
    "io": "base",
    "capture": "base trace hooks memory tape",
    "nn": "base hooks ops",
    "models": "base ops nn io",
    "optim": "base hooks host ops",
    "session": "base trace plan report hooks memory host tape capture ops precision optim",
    "train": "base trace plan report hooks memory host tape capture ops precision nn models io optim session",
}
TORCH_FREE = {"base", "trace", "plan", "report"}
TORCH = re.compile(r'#include [<"](torch|ATen|c10|caffe2|cuda)')
OURS = re.compile(r'#include "(snug|cli|tests|bench|examples)/([^/"]+)')


def problems(root):
    for path in sorted((root / "snug").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu"}:
            continue
        folder = path.relative_to(root / "snug").parts[0]
        if folder == path.name:  # the umbrella header
            continue
        if folder not in ALLOWED:
            yield f"{path}: folder {folder} is not in the table"
            continue
        allowed = set(ALLOWED[folder].split()) | {folder}
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if folder in TORCH_FREE and TORCH.match(line):
                yield f"{path}:{number}: {folder} is free of torch: {line}"
            match = OURS.match(line)
            if not match:
                continue
            if match[1] != "snug":
                yield f"{path}:{number}: the library includes only itself: {line}"
            elif match[2] not in allowed:
                yield f"{path}:{number}: {folder} may not include {match[2]}"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    found = list(problems(root))
    for line in found:
        print(line)
    print(f"check_includes: {len(found)} problems")
    return 1 if found else 0


sys.exit(main())
