#!/bin/sh
# Everything about CUDA in one command, on a machine with a GPU: builds, compares with the CPU, measures, and looks for bad memory
# accesses and races.
#   tests/cuda/run.sh FOLDER [test|bench|check]…     all three by default
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
[ $# -gt 0 ] || set -- test bench check
"$here/build.sh" "$out"
failed=0

sanitize() { # tool [test…]
  tool=$1
  shift
  PITH_CUDA_QUICK=1 compute-sanitizer --tool "$tool" --target-processes all --error-exitcode 9 "$out/cuda_test" "$@"
}

for what in "$@"; do
  case $what in
    test) "$out/cuda_test" || failed=1 ;;
    bench) "$out/cuda_bench" || failed=1 ;;
    check)
      sanitize memcheck || failed=1
      sanitize racecheck 'one_round*' 'many_layers*' 'payloads*' 'low_rank_repeats*' 'errors*' 'magnitudes*' || failed=1
      ;;
  esac
done
exit $failed
