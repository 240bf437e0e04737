#!/usr/bin/env bash
# Configures (once) and builds into the folder given, against the torch that setup.sh chose.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
torch=$(cat build/torch.path)
if [ ! -f "$build/build.ninja" ] || ! grep -qxF "SNUG_TORCH:STRING=$torch" "$build/CMakeCache.txt"; then
  cmake -S . -B "$build" -G Ninja -DSNUG_TORCH="$torch" >"$build/configure.log" || { cat "$build/configure.log" >&2; exit 1; }
fi
cmake --build "$build"
