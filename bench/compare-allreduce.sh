#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Sets pith's uncompressed allreduce beside Open MPI's and gloo's on this machine: pith over shared memory against both, pith over
# tcp on loopback against gloo. All take turns, so that whatever else runs here disturbs all of them; of each size the best of all
# rounds counts. A ratio above 1: pith is faster. Who is not installed is named and left out.
#
#   bench/compare-allreduce.sh [BUILD]   BUILD: a folder with pith and, where CMake found an MPI, bench/mpi_allreduce (build)
#   ROUNDS=3 RANKS="2 4" SIZES="short long" PYTHON=python3 (one that has torch)
set -eu
cd "$(dirname "$0")/.."
build=${1:-build} rounds=${ROUNDS:-3}
python=${PYTHON:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)}
pith=$build/pith
log=$(mktemp)
trap 'rm -f "$log"' EXIT

has_mpi=1 has_gloo=1
if ! [ -x "$build/bench/mpi_allreduce" ] || ! command -v mpirun >/dev/null; then
  has_mpi=0
  echo "# Open MPI is left out: no mpirun, or no $build/bench/mpi_allreduce (install Open MPI with its mpicc, and build again)"
fi
if ! "$python" -c 'import torch.distributed as d; assert d.is_gloo_available()' 2>/dev/null; then
  has_gloo=0
  echo "# gloo is left out: $python has no torch with gloo (pip install torch numpy; PYTHON names another python)"
fi

# keep NAME: rank 0's lines of figures, as NAME SIZE TIME
keep() { sed -n 's/^ *\([0-9][0-9]* .*\)/\1/p' | awk -v name="$1" 'NF >= 8 { print name, $1, $5 }' >>"$log"; }

# No rank of any of them is bound to a core.
mpi() { mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$1" "$build/bench/mpi_allreduce" "$2" "$3" "$4" "$5" "$6" 2>/dev/null; }
gloo() { "$pith" run --no-prefix -n "$1" -- "$python" bench/gloo_allreduce.py "$2" "$3" "$4" "$5" "$6" 2>/dev/null; }
pith() {
  transport=$1
  shift
  "$pith" run --no-prefix -n "$1" -- "$pith" bench allreduce --wide --transport "$transport" -b "$2" -e "$3" -f "$4" -n "$5" -w "$6" 2>/dev/null
}

table() {
  awk -v ranks="$1" '
    { if (!($2 in seen)) { seen[$2] = 1; size[++n] = $2 } key = $1 " " $2; if (!(key in best) || $3 < best[key]) best[key] = $3 }
    function figure(who, s) { return (who " " s) in best ? sprintf("%.2f", best[who " " s]) : "-" }
    function ratio(a, b, s) { return (a " " s) in best && (b " " s) in best ? sprintf("%.2f", best[a " " s] / best[b " " s]) : "-" }
    END { for (i = 1; i <= n; i++) { s = size[i]
          printf "%5d %9d %11s %11s %7s %11s %7s %11s %7s\n", ranks, s, figure("shm", s), figure("mpi", s), ratio("mpi", "shm", s),
                 figure("gloo", s), ratio("gloo", "shm", s), figure("tcp", s), ratio("gloo", "tcp", s) } }' "$log"
}

# sizes GLOO RANKS FROM TO FACTOR REPETITIONS WARM-UP; the warm-up lasts until the system has moved every rank to a core of its own
sizes() {
  with_gloo=$1
  shift
  : >"$log"
  for round in $(seq "$rounds"); do
    pith shm "$@" | keep shm
    [ $has_mpi = 0 ] || mpi "$@" | keep mpi
    [ "$with_gloo" = 0 ] || pith tcp "$@" | keep tcp
    [ "$with_gloo" = 0 ] || [ $has_gloo = 0 ] || gloo "$@" | keep gloo
  done
  table "$1"
}

printf '%5s %9s %11s %11s %7s %11s %7s %11s %7s\n' ranks bytes "shm us" "MPI us" MPI/shm "gloo us" gloo/shm "tcp us" gloo/tcp
for ranks in ${RANKS:-2 4}; do
  for which in ${SIZES:-short long}; do
    case $which in
      short) sizes 0 "$ranks" 8 4096 8 5000 20000 ;;
      long) sizes 1 "$ranks" 1048576 67108864 4 10 5 ;;
    esac
  done
done
