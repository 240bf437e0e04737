#!/usr/bin/env bash
# Installs a build into a scratch folder, then configures, builds and runs a project that finds it there.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --prefix "$scratch/snug" >/dev/null
"$scratch/snug/bin/snug" --help >/dev/null
cmake -S examples/find_package -B "$scratch/example" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/snug" >/dev/null
cmake --build "$scratch/example"
"$scratch/example/uses_core"
"$scratch/example/uses_snug"
