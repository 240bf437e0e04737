#!/usr/bin/env bash
# Builds with CUDA, runs every test and the benchmarks on this machine's GPU, and leaves their output in a folder:
#   tools/check_gpu.sh BUILD RESULTS        (CMAKE_PREFIX_PATH says where packages are on a machine without a network)
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: check_gpu.sh BUILD RESULTS}
results=${2:?usage: check_gpu.sh BUILD RESULTS}
mkdir -p "$results"
cmake -S . -B "$build" -G Ninja -DSNUG_CUDA=ON -DSNUG_BENCH=ON >"$results/configure.log"
cmake --build "$build" >"$results/build.log" 2>&1 || { tail -40 "$results/build.log"; exit 1; }
failed=0
ctest --test-dir "$build" --output-on-failure -j4 >"$results/ctest.log" 2>&1 || failed=1
tail -45 "$results/ctest.log"
{
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
  for problem in "cuda" "cuda small" "cpu"; do
    echo "\$ tracking_overhead $problem"
    "$build/bin/tracking_overhead" $problem
  done
  echo "\$ recompute cuda; python3 bench/recompute_twin.py"
  "$build/bin/recompute" cuda
  python3 bench/recompute_twin.py
  for example in 01_track 02_checkpoint; do
    echo "\$ $example cuda"
    "$build/bin/$example" cuda
  done
  run=$(mktemp -d)
  for options in "--batch-size 8 --micro-batch 1 --seq-len 4096" "--batch-size 8 --micro-batch 8 --seq-len 1024 --budget 40GiB" \
    "--batch-size 8 --seq-len 4096" "--batch-size 8 --seq-len 4096 --recompute cheap" "--batch-size 8 --seq-len 4096 --recompute block"; do
    echo "\$ snug train --model llama-1.3b --steps 4 $options"
    "$build/bin/snug" train --model llama-1.3b --steps 4 $options --out-dir "$run/$RANDOM" 2>&1
  done
  echo "\$ snug train --model llama-1.3b --steps 2 --batch-size 8 --seq-len 4096 --budget 20GiB     (does not fit)"
  "$build/bin/snug" train --model llama-1.3b --steps 2 --batch-size 8 --seq-len 4096 --budget 20GiB --out-dir "$run/none" 2>&1 ||
    echo "exit status $?"
  rm -rf "$run"
} >"$results/bench.log" 2>&1 || failed=1
cat "$results/bench.log"
if command -v compute-sanitizer >/dev/null; then
  for test in memory_cuda optim_cuda tape_cuda; do
    # Requests that are meant to fail are errors to the sanitizer.
    compute-sanitizer --tool memcheck --error-exitcode 1 "$build/bin/${test}_test" --gtest_brief=1 \
      --gtest_filter="*:-*Refusal*:*Threads*:*ComesAndGoes*:*RandomFates*:*GraphCapture*" >"$results/memcheck-$test.log" 2>&1 || failed=1
    echo "memcheck $test: $(grep "ERROR SUMMARY" "$results/memcheck-$test.log")"
  done
fi
exit $failed
