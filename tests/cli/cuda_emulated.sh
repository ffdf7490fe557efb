#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The CUDA kernels, emulated on the CPU (tests/cuda/emulated), give the bytes of the CPU's codecs: what cuda_test compares on a GPU, with
# fewer lengths. It has no graphs.
. "$(dirname "$0")/../shell.sh"
folder=$build/tests/emulated

kernels() { # test…
  [ -e "$folder/libpith_cuda.so" ] || lacks c++ "the kernels are not emulated: $(cat "$folder/problem.txt")"
  exits 0 env ASAN_OPTIONS=detect_leaks=0 LD_LIBRARY_PATH="$folder" PITH_MODULE_PATH="$folder" PITH_CUDA_QUICK=1 PITH_TEST_TIMEOUT=900 \
    "$build/cuda_test" "$@"
  tail -n 1 "$temp/out" | grep -q '^[1-9][0-9]* passed, 0 failed, 0 skipped$' || { cat "$temp/out" && return 1; }
}

block_codecs_have_the_bytes_of_the_cpu() { kernels 'one_round*' 'pieces*' 'many_layers_go*'; }
every_type_and_length_has_them() { kernels 'every_length*'; }
so_have_extreme_values() { kernels 'extreme_values_in_f32*'; }
so_has_lossless() { kernels 'lossless*'; }
low_rank_agrees() { kernels '*low_rank*'; }
sums_means_and_updates_have_the_bits_of_the_cpu() { kernels 'means*' 'many_sums*' 'one_kernel*' '*update*'; }
statistics_are_those_of_the_cpu() { kernels 'statistics*' 'bins*'; }
whole_tensors_have_the_bytes_of_the_cpu() { kernels 'large_tensors*' 'no_values*' 'payloads*' 'many_whole*' 'damaged*'; }
the_order_of_threads_changes_nothing() {
  PITH_EMULATED_ORDER=backwards
  export PITH_EMULATED_ORDER
  kernels 'one_round*' 'payloads*' 'low_rank_repeats*' 'statistics_repeat*' 'lossless_bits*'
}

run_tests block_codecs_have_the_bytes_of_the_cpu every_type_and_length_has_them so_have_extreme_values so_has_lossless low_rank_agrees \
  sums_means_and_updates_have_the_bits_of_the_cpu statistics_are_those_of_the_cpu whole_tensors_have_the_bytes_of_the_cpu \
  the_order_of_threads_changes_nothing
