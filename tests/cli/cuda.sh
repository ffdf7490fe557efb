#!/bin/sh
# The tests of the CUDA kernels, where the module was built. Without a GPU they say so and are skipped.
build=${1:-build}
if [ ! -e "$build/libpith_cuda.so" ]; then
  echo "skip cuda_test: the CUDA module is not built (make cuda)"
  echo "0 passed, 0 failed, 1 skipped"
  exit 0
fi
exec "$build/cuda_test"
