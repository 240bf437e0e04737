#!/usr/bin/env bash
# Every C++ and CUDA file is as clang-format 14 would write it. Other versions differ in details, so that one is used.
set -euo pipefail
cd "$(dirname "$0")/.."
format=clang-format
if ! $format --version 2>/dev/null | grep -q ' 14\.'; then
  format=.venv/bin/clang-format
  if [ ! -x $format ]; then
    [ -x .venv/bin/python ] || python3 -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check clang-format==14.0.6
  fi
fi
git ls-files '*.h' '*.cpp' '*.cu' | xargs $format --dry-run --Werror
