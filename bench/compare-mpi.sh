#!/bin/sh
# Sets pith's uncompressed allreduce over shared memory beside Open MPI's on this machine. The two take turns, so that whatever
# else runs here disturbs both; of each size the best of all rounds counts. A ratio above 1: pith is faster.
#
#   bench/compare-mpi.sh [BUILD]       BUILD: a folder with pith and bench/mpi_allreduce (build)
#   ROUNDS=3 RANKS="2 4"
set -eu
build=${1:-build}
rounds=${ROUNDS:-3}
[ -x "$build/bench/mpi_allreduce" ] || { echo "no $build/bench/mpi_allreduce: install Open MPI (mpicc) and build again"; exit 0; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# sizes RANKS FROM TO FACTOR REPETITIONS WARM-UP: the first must last until the system has moved every rank to a core of its own
sizes() {
  : >"$log"
  for round in $(seq "$rounds"); do
    mpirun --allow-run-as-root --oversubscribe -n "$1" "$build/bench/mpi_allreduce" "$2" "$3" "$4" "$5" "$6" 2>/dev/null |
      sed -n 's/^ *\([0-9][0-9]* .*\)/mpi \1/p' >>"$log"
    "$build/pith" run -n "$1" -- "$build/pith" bench allreduce --transport shm -b "$2" -e "$3" -f "$4" -n "$5" -w "$6" 2>/dev/null |
      sed -n 's/^\[0\] *\([0-9][0-9]* .*\)/pith \1/p' >>"$log"
  done
  awk -v ranks="$1" '
    { if (!($2 in seen)) { seen[$2] = 1; size[++n] = $2 } key = $1 " " $2; if (!(key in best) || $6 < best[key]) best[key] = $6 }
    END { for (i = 1; i <= n; i++) { m = best["mpi " size[i]]; p = best["pith " size[i]]
          printf "%5d %10d %12.2f %12.2f %8.2f\n", ranks, size[i], p, m, (p > 0 ? m / p : 0) } }' "$log"
}

printf '%5s %10s %12s %12s %8s\n' ranks size "pith us" "Open MPI us" ratio
for ranks in ${RANKS:-2 4}; do
  sizes "$ranks" 8 4096 8 5000 20000
  sizes "$ranks" 1048576 67108864 4 10 5
done
