#!/usr/bin/env bash
# Makes the environment with transformers that the reference tests compare with, and prints its interpreter. Only tests need it.
# torch is the one that setup.sh chose.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/reference
version=5.22.2
torch=$(cat build/torch.path)
python=$venv/bin/python
if ! "$python" -c "import torch, transformers; assert transformers.__version__ == '$version'" 2>/dev/null; then
  rm -rf "$venv"
  python3 -m venv "$venv"
  echo "reference_env: installing transformers $version into $venv (once)" >&2
  dirname "$torch" >"$("$python" -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
  "$python" -m pip install --quiet --disable-pip-version-check "transformers==$version"
fi
echo "$PWD/$python"
