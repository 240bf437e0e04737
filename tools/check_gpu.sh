#!/usr/bin/env bash
# Builds with CUDA, runs every test, the benchmarks and memcheck on this machine's GPU, and leaves their output in a folder:
#   tools/check_gpu.sh BUILD RESULTS [tests|bench|memcheck]...     (all three unless some are named)
# CMAKE_PREFIX_PATH says where packages are on a machine without a network, LIGER where Liger's wheel is unpacked.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: check_gpu.sh BUILD RESULTS [tests|bench|memcheck]...}
results=${2:?usage: check_gpu.sh BUILD RESULTS [tests|bench|memcheck]...}
shift 2
stages=${*:-tests bench memcheck}
mkdir -p "$results"
cmake -S . -B "$build" -G Ninja -DSNUG_CUDA=ON -DSNUG_BENCH=ON >"$results/configure.log"
cmake --build "$build" >"$results/build.log" 2>&1 || { tail -40 "$results/build.log"; exit 1; }

tests() {
  ctest --test-dir "$build" --output-on-failure -j4 >"$results/ctest.log" 2>&1
  local status=$?
  tail -45 "$results/ctest.log"
  return $status
}

bench() {
  {
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    for problem in "cuda" "cuda small" "cpu"; do
      echo "\$ tracking_overhead $problem"
      "$build/bin/tracking_overhead" $problem
    done
    echo "\$ operators"
    "$build/bin/operators"
    echo "\$ host_gap"
    "$build/bin/host_gap"
    echo "\$ python3 bench/peers.py"
    PYTHONPATH=${LIGER:-} python3 bench/peers.py || true
    echo "\$ recompute cuda; python3 bench/recompute_twin.py"
    "$build/bin/recompute" cuda
    python3 bench/recompute_twin.py
    for example in 01_track 02_checkpoint 03_offload; do
      echo "\$ $example cuda"
      "$build/bin/$example" cuda
    done
    run=$(mktemp -d)
    for options in "--batch-size 8 --micro-batch 1 --seq-len 4096" "--batch-size 8 --micro-batch 8 --seq-len 1024 --budget 40GiB" \
      "--batch-size 8 --seq-len 4096" "--batch-size 8 --seq-len 4096 --recompute cheap" "--batch-size 8 --seq-len 4096 --recompute block"; do
      echo "\$ snug train --model llama-1.3b --steps 4 $options"
      "$build/bin/snug" train --model llama-1.3b --steps 4 $options --no-save --out-dir "$run/$RANDOM" 2>&1
    done
    echo "\$ snug train --model llama-1.3b --steps 2 --batch-size 8 --seq-len 4096 --budget 20GiB     (does not fit)"
    "$build/bin/snug" train --model llama-1.3b --steps 2 --batch-size 8 --seq-len 4096 --budget 20GiB --out-dir "$run/none" 2>&1 ||
      echo "exit status $?"
    rm -rf "$run"
  } >"$results/bench.log" 2>&1
  local status=$?
  cat "$results/bench.log"
  return $status
}

# Every GPU test but those on billions of elements, in shards side by side: it is slow. Calls that are meant to fail are no errors here.
memcheck() {
  local shards=12 pids=() status=0
  for test in memory_cuda ops_cuda optim_cuda precision_cuda session_cuda tape_cuda; do
    for ((shard = 0; shard < shards; ++shard)); do
      [[ $test == tape_cuda || $shard == 0 ]] || continue
      local here=$results/memcheck-$test-$shard.log
      GTEST_TOTAL_SHARDS=$([[ $test == tape_cuda ]] && echo $shards || echo 1) GTEST_SHARD_INDEX=$shard OMP_NUM_THREADS=1 \
        compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1 "$build/bin/${test}_test" --gtest_filter=-*MoreElements* --gtest_brief=1 >"$here" 2>&1 &
      pids+=($!)
    done
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=1; done
  grep -H "ERROR SUMMARY\|PASSED\|FAILED\|SKIPPED" "$results"/memcheck-*.log
  return $status
}

failed=""
for stage in $stages; do "$stage" || failed+=" $stage"; done
[[ -z $failed ]] || { echo "failed:$failed"; exit 1; }
