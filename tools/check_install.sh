#!/usr/bin/env bash
# Installs a build into a scratch folder, then configures, builds and runs a project that finds it there.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --prefix "$scratch/snug" >/dev/null
"$scratch/snug/bin/snug" --help >/dev/null
# The clone may go.
if grep -rI --fixed-strings "$PWD" "$scratch/snug"; then
  echo "check_install: what is installed names the clone, $PWD" >&2
  exit 1
fi
for file in "$scratch"/snug/bin/* "$scratch"/snug/lib*/*.so*; do
  if readelf -d "$file" | grep RUNPATH | grep --fixed-strings "$PWD"; then
    echo "check_install: $file looks for libraries in the clone, $PWD" >&2
    exit 1
  fi
done
cmake -S examples/find_package -B "$scratch/example" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/snug" >/dev/null
cmake --build "$scratch/example"
"$scratch/example/uses_core"
"$scratch/example/uses_snug"
