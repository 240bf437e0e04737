#!/usr/bin/env python3
"""Checks who includes whom: every #include "snug/..." must be allowed by the table below, every entry of the table be used, the
table be free of cycles, and the core see no torch. And no text of the library speaks of flags: a library user has none.

    check_includes.py            check, for CI
    check_includes.py --table    print the table as docs/architecture.md shows it
"""
import pathlib
import re
import sys

# Mechanisms (tape, optim, precision) never include one another: session knows them all. train is a client of session: tape,
# memory, host and capture are none of its business.
ALLOWED = {
    "base": "",
    "trace": "base",
    "plan": "base trace",
    "report": "base trace",
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
    "zero": "base hooks host optim",
    "machine": "base plan hooks memory host capture ops optim",
    "session": "base trace plan hooks memory host tape capture zero machine",
    "train": "base plan ops precision models io zero optim machine session",
}
TORCH_FREE = {"base", "trace", "plan", "report"}
TORCH = re.compile(r'#include [<"](torch|ATen|c10|caffe2|cuda)')
FLAG = re.compile(r'^(?!\s*//)[^"]*"[^"]*--[a-z]')
OURS = re.compile(r'#include "(snug|cli|tests|bench|examples)/([^/"]+)')


def table_problems():
    seen = set()
    for folder, allowed in ALLOWED.items():
        for other in allowed.split():
            if other not in seen:
                yield f"the table: {folder} may include {other}, which does not stand above it"
        seen.add(folder)


def problems(root):
    yield from table_problems()
    used = {folder: set() for folder in ALLOWED}
    for path in sorted((root / "snug").rglob("*")):
        if path.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
            continue
        folder = path.relative_to(root / "snug").parts[0]
        if folder == path.name:  # the umbrella header
            continue
        if folder not in ALLOWED:
            yield f"{path}: folder {folder} is not in the table"
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if folder in TORCH_FREE and TORCH.match(line):
                yield f"{path}:{number}: {folder} is free of torch: {line}"
            if FLAG.match(line):
                yield f"{path}:{number}: name the setting in backquotes, not a flag: {line.strip()}"
            match = OURS.match(line)
            if not match:
                continue
            if match[1] != "snug":
                yield f"{path}:{number}: the library includes only itself: {line}"
            elif match[2] != folder and match[2] not in ALLOWED[folder].split():
                yield f"{path}:{number}: {folder} may not include {match[2]}"
            used[folder].add(match[2])
    for folder, allowed in ALLOWED.items():
        for other in set(allowed.split()) - used[folder]:
            yield f"the table: {folder} may include {other} and never does"


def main():
    if sys.argv[1:] == ["--table"]:
        print("| folder | may include |\n|---|---|")
        for folder, allowed in ALLOWED.items():
            print(f"| {folder}{' (no torch)' if folder in TORCH_FREE else ''} | {allowed or '-'} |")
        return 0
    root = pathlib.Path(__file__).resolve().parent.parent
    found = list(problems(root))
    for line in found:
        print(line)
    print(f"check_includes: {len(found)} problems")
    return 1 if found else 0


sys.exit(main())
