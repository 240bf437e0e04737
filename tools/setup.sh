#!/usr/bin/env bash
# Installs what building snug needs and is not there: Debian packages by apt, and torch 2.11 in an environment of its own.
# Says in one line what is missing when it may not install. Prints nothing when everything is there.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

has_header() {
  local prefix prefixes=${CMAKE_PREFIX_PATH:-}
  for prefix in ${prefixes//[:;]/ } /usr /usr/local; do [ -e "$prefix/include/$1" ] && return 0; done
  return 1
}

missing=()
need_command() { command -v "$1" >/dev/null || missing+=("$2"); }
need_header() { has_header "$1" || missing+=("$2"); }
need_command cmake cmake
need_command ninja ninja-build
need_command g++ g++
need_command python3 python3
need_command git git
need_header CLI/CLI.hpp libcli11-dev
need_header nlohmann/json.hpp nlohmann-json3-dev
need_header fmt/format.h libfmt-dev
need_header hwy/highway.h libhwy-dev
need_header gtest/gtest.h libgtest-dev
need_header xxhash.h libxxhash-dev
need_header benchmark/benchmark.h libbenchmark-dev
command -v ccache >/dev/null || missing+=(ccache)

if [ ${#missing[@]} -gt 0 ]; then
  sudo=""
  if [ "$(id -u)" -ne 0 ]; then sudo="sudo -n"; fi
  if ! command -v apt-get >/dev/null || ! $sudo true 2>/dev/null; then
    die "cannot install packages here; please run: sudo apt-get install ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  $sudo apt-get update -qq || die "apt-get update failed; please install by hand: ${missing[*]}"
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null ||
    die "apt-get could not install: ${missing[*]}"
fi

# torch: SNUG_TORCH, else python3's own, else the private one. tools/build.sh reads build/torch.path.
version_of() { sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$1/version.py" 2>/dev/null || true; }
is_2_11() { case "$(version_of "$1")" in 2.11 | 2.11.*) return 0 ;; *) return 1 ;; esac; }
python_torch() {
  "$1" -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')" 2>/dev/null || true
}
choose() { mkdir -p build && echo "$1" >build/torch.path; exit 0; }

if [ -n "${SNUG_TORCH:-}" ]; then
  is_2_11 "$SNUG_TORCH" || die "torch 2.11 is needed, SNUG_TORCH=$SNUG_TORCH holds '$(version_of "$SNUG_TORCH")'"
  choose "$SNUG_TORCH"
fi
found=$(python_torch python3)
if [ -n "$found" ] && is_2_11 "$found"; then choose "$found"; fi

# Outside of the clone: what is installed from here goes on finding it, and the next clone has nothing to download.
venv=${XDG_DATA_HOME:-${HOME:-$PWD}/.local/share}/snug/torch-2.11
mkdir -p "$venv" 2>/dev/null || die "cannot write $venv, where torch 2.11 is to go: set XDG_DATA_HOME, or SNUG_TORCH to a torch that is there"
exec 9>"$venv/lock" && flock 9  # another clone may be at it
if [ ! -x "$venv/bin/python" ]; then
  if ! python3 -m venv "$venv" 2>/dev/null; then
    rm -rf "$venv/bin"  # a half-made one would pass for whole the next time
    sudo=""; [ "$(id -u)" -eq 0 ] || sudo="sudo -n"
    say "installing python3-venv"
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv >/dev/null 2>&1 ||
      die "python3 cannot make a virtual environment; please run: sudo apt-get install python3-venv"
    python3 -m venv "$venv"
  fi
fi
# A CPU build needs three wheels of 543 MB; torch's own list of dependencies is 2.7 GB, and needed only with nvcc.
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  wheels=(torch==2.11.0)
  whole=nvidia/cudnn
else
  wheels=(--no-deps torch==2.11.0 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85)
  whole=torch/version.py
fi
found=$(python_torch "$venv/bin/python")
if [ -z "$found" ] || [ ! -e "$found/../$whole" ]; then
  say "downloading torch 2.11.0 into $venv (once)"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "${wheels[@]}" || die "pip could not install torch==2.11.0"
  found=$(python_torch "$venv/bin/python")
fi
is_2_11 "$found" || die "torch 2.11 is needed, $found holds '$(version_of "$found")'"
choose "$found"
