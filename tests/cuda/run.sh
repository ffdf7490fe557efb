#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything about CUDA in one command, on a machine with a GPU: builds (with CMake, as everywhere), compares with the CPU, measures, and
# looks for bad memory accesses and races. With PITH_MODULE_PATH set the module is the one there, and only the programs are built.
#   tests/cuda/run.sh FOLDER [test|bench|check|nccl|nccl-bench|device|device-bench|device-killed]…     the first three by default
# RANKS says how many ranks the last five have (4); they share GPUs if there are fewer, and then need MPS (nvidia-cuda-mps-control -d).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
[ $# -gt 0 ] || set -- test bench check
failed=0

build() {
  targets="cuda_test cuda_bench nccl_test device_test" module=OFF
  [ -n "${PITH_MODULE_PATH:-}" ] || targets="$targets pith_cuda" module=ON
  cmake -S "$here/../.." -B "$out" -DPITH_CUDA=$module -DPITH_CUDA_FLAGS=-lineinfo | grep "CUDA module"
  # shellcheck disable=SC2086
  cmake --build "$out" --parallel "${JOBS:-$(nproc)}" --target $targets >"$out/log" 2>&1 || { cat "$out/log" && exit 1; }
}
build

sanitize() { # tool [test…]
  tool=$1
  shift
  PITH_CUDA_QUICK=1 compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 "$out/cuda_test" "$@"
}

# NCCL as the system has it, or as it comes with PyTorch.
find_nccl() {
  "${PYTHON:-python3}" -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2>/dev/null || true
}

on_ranks() { # program of the build folder [bench]
  program=$out/$1
  shift
  on_ranks_of "$program" "$@"
}

on_ranks_of() { # command…
  ranks=${RANKS:-4} pids='' rank=0
  while [ $rank -lt "$ranks" ]; do
    RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$ranks LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}:$(find_nccl)" \
      timeout 400 "$@" &
    pids="$pids $!" rank=$((rank + 1))
  done
  for pid in $pids; do
    wait "$pid" || return 1
  done
}

# From GPU to GPU, and through pinned memory; ranks that share a GPU should have MPS.
on_comms() {
  for way in ipc:shm staged:shm staged:tcp; do
    echo "by ${way%:*} over ${way#*:}"
    (export PITH_CUDA_CARRIER="${way%:*}" PITH_TRANSPORT="${way#*:}" && on_ranks device_test) || return 1
  done
}

# Rank 1 ends by a signal: the others must end well.
on_killed() { # what
  ranks=${RANKS:-4} pids='' rank=0
  while [ $rank -lt "$ranks" ]; do
    RANK=$rank WORLD_SIZE=$ranks LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$ranks timeout 60 "$out/device_test" "$1" &
    [ $rank -eq 1 ] || pids="$pids $!"
    rank=$((rank + 1))
  done
  for pid in $pids; do
    wait "$pid" || return 1
  done
}

check_messages() {
  PITH_CUDA_CARRIER=ipc RANKS=2 on_ranks_of compute-sanitizer --tool memcheck --error-exitcode 9 "$out/device_test" quick
}

for what in "$@"; do
  case $what in
    test) "$out/cuda_test" || failed=1 ;;
    bench) "$out/cuda_bench" || failed=1 ;;
    nccl) on_ranks nccl_test || failed=1 ;;
    nccl-bench) on_ranks nccl_test bench || failed=1 ;;
    device) on_comms || failed=1 ;;
    device-bench) on_ranks device_test bench || failed=1 ;;
    device-killed) { on_killed killed && on_killed killed-graph; } || failed=1 ;;
    check)
      sanitize memcheck || failed=1
      sanitize racecheck 'one_round*' 'one_kernel*' 'many_layers*' 'payloads*' 'low_rank_repeats*' 'statistics_repeat*' || failed=1
      check_messages || failed=1
      ;;
  esac
done
exit $failed
