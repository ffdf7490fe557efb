#!/bin/sh
# Every file of kernels compiles, up to PTX, where nvcc is; ptxas, which takes most of the time, has its turn in `make cuda`.
# shellcheck disable=SC2016
. "$(dirname "$0")/../shell.sh"
nvcc=$(command -v nvcc) || nvcc=${CUDA_HOME:-/usr/local/cuda}/bin/nvcc
export nvcc temp

kernels_compile() {
  need_plain_build
  [ -x "$nvcc" ] || skip "there is no nvcc"
  cd "$root"
  printf '%s\n' cuda/*.cu | xargs -P 2 -I{} sh -c '
    log=$temp/$(basename "$1").log
    "$nvcc" -ptx -arch=compute_80 -std=c++17 -O1 -fmad=false -Isrc -Iinclude -o /dev/null "$1" >"$log" 2>&1 || { cat "$log" && exit 1; }' sh {}
}

run_tests kernels_compile
