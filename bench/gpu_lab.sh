#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that share one GPU, each in a network namespace behind a link of its own: NCCL takes them for hosts and talks TCP.
#
#   sudo bench/gpu_lab.sh RANKS RATE PROGRAM [ARGUMENT…]        as in bench/gpu_lab.sh 4 10gbit bench/gpu_training.py
#
# PER_HOST=2: two ranks share a namespace, and its link; between them NCCL talks TCP over loopback.
# With "none" for RATE there are no namespaces: NCCL talks TCP over the loopback device, as fast as that goes.
# Needs a GPU, its multi-process service, ip and tc, and a Python that has torch with CUDA and Pith (PYTHON, or python3). PITH names the
# command (build/pith).
set -eu
[ $# -ge 3 ] || { sed -n '3,10s/^# \{0,1\}//p' "$0" && exit 2; }
ranks=$1 rate=$2
shift 2
pith=${PITH:-build/pith}
folder=$(mktemp -d)
export CUDA_MPS_PIPE_DIRECTORY="$folder/pipe" CUDA_MPS_LOG_DIRECTORY="$folder/log"
mkdir "$folder/pipe" "$folder/log"
trap 'echo quit | nvidia-cuda-mps-control >/dev/null 2>&1 || true; rm -rf "$folder"' EXIT
nvidia-cuda-mps-control -d
if [ "$rate" = none ]; then
  export NCCL_SOCKET_IFNAME=lo
  launch="run -n $ranks"
else
  launch="lab -n $ranks --per-host ${PER_HOST:-1} --rate $rate"
fi
# shellcheck disable=SC2016,SC2086
"$pith" $launch --no-prefix -- sh -c 'NCCL_HOSTID=host$RANK LOCAL_RANK=0 exec "$@"' sh "${PYTHON:-python3}" "$@"
