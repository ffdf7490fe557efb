#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The tests of the CUDA kernels, and of allreduces over NCCL and over Pith's own transports with two ranks, where the module was built.
# Without a GPU they say so and are skipped.
build=${1:-build}
if [ ! -e "$build/libpith_cuda.so" ]; then
  if [ -e /dev/nvidia0 ]; then why="the CUDA module is not built (make cuda)"; else why="[gpu] there is no GPU here"; fi
  echo "skip cuda_test: $why"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
passed=0 failed=0 skipped=0

# Shows what a program says, and adds up its last line; one that ends without it has failed.
count() {
  said=$("$@" 2>&1)
  last=$(echo "$said" | grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' | tail -n 1)
  echo "$said" | grep -v ' passed, '
  [ -n "$last" ] || { last="0 passed, 1 failed, 0 skipped" && echo "FAIL $*"; }
  # shellcheck disable=SC2086
  set -- $last
  passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}

# shellcheck disable=SC2016
on_two_ranks() { # ranks that share a GPU are hosts to NCCL
  count "$build/pith" run -n 2 --no-prefix -- sh -c 'NCCL_HOSTID=host$RANK NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} exec "$0"' "$1"
}

count "$build/cuda_test"
on_two_ranks "$build/nccl_test"
on_two_ranks "$build/device_test"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
