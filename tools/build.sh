#!/usr/bin/env bash
# build.sh [FOLDER [TARGET]]: configures (once) and builds, against the torch that setup.sh chose.
# From nothing a unity build takes about half the time; SNUG_UNITY=OFF or a preset is for those who edit the library.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
torch=$(cat build/torch.path)
if [ ! -f "$build/build.ninja" ] || ! grep -qxF "SNUG_TORCH:STRING=$torch" "$build/CMakeCache.txt"; then
  cmake -S . -B "$build" -G Ninja -DSNUG_TORCH="$torch" -DCMAKE_UNITY_BUILD="${SNUG_UNITY:-ON}" >"$build/configure.log" || { cat "$build/configure.log" >&2; exit 1; }
fi
cmake --build "$build" ${2:+--target "$2"}
