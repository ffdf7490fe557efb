#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A job of many ranks on this machine, as processes on hosts that are network namespaces: how long it takes to start, how many
# connections, descriptors, threads and bytes of memory a rank has after hierarchical allreduces, whether their sums are right, and how
# long it takes until every other rank has an error that names a rank which was killed. Needs what `pith lab` needs.
#
#   bench/many_ranks.sh [-b BUILD, build] [-p RANKS OF A HOST, 32] [-r RATE, 10gbit] [-v VALUES, 65536] [-a ALGORITHM, hierarchical]
#                       [RANKS…, 512]
set -eu
build=build per_host=32 rate=10gbit values=65536 algorithm=hierarchical
while getopts b:p:r:v:a: option; do
  case $option in
    b) build=$OPTARG ;;
    p) per_host=$OPTARG ;;
    r) rate=$OPTARG ;;
    v) values=$OPTARG ;;
    a) algorithm=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))

cmake --build "$build" --target many_ranks pith >/dev/null
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

for ranks in ${*:-512}; do
  rm -f "$folder"/*
  started=$(awk '{ printf "%.3f", $1 }' /proc/uptime)
  "$build/pith" lab -n "$ranks" --per-host "$per_host" --rate "$rate" --grace 60 --no-prefix -- \
    "$build/tests/many_ranks" "$folder" "$started" "$values" "$algorithm" 2>"$folder/errors" || true
  told=$(find "$folder" -name '[0-9]*' | wc -l)
  if [ "$told" != $((ranks - 1)) ]; then
    echo "many_ranks: $told of $((ranks - 1)) ranks came to the end" >&2
    tail -n 20 "$folder/errors" >&2
    exit 1
  fi
  cat "$folder"/[0-9]* | awk -v ranks="$ranks" -v per_host="$per_host" -v algorithm="$algorithm" '
    function most(a, b) { return a > b ? a : b }
    {
      start = most(start, $1); first = most(first, $2); links = most(links, $3); sum += $3; fds = most(fds, $4)
      anonymous = most(anonymous, $5); shared = most(shared, $6); threads = most(threads, $7); reduce = most(reduce, $8)
      notice = most(notice, $9); unnamed += $9 < 0; wrong += $10
    }
    END {
      printf "%d ranks, %d on a host, %s\n", ranks, per_host, algorithm
      printf "  start                     %.1f s (from the launch to the first barrier)\n", start
      printf "  connections of a rank     %d at most after a barrier, %d in the end, %.1f on average\n", first, links, sum / NR
      printf "  descriptors of a rank     %d at most\n", fds
      printf "  threads of a rank         %d\n", threads
      printf "  memory of a rank          %.1f MB, and %.1f MB of shared memory, at most\n", anonymous / 1e3, shared / 1e3
      printf "  an allreduce              %.2f s\n", reduce
      printf "  wrong values              %d\n", wrong
      printf "  a killed rank was named   by %d of %d others, within %.2f s\n", NR - unnamed, NR, notice
      exit wrong > 0 || unnamed > 0
    }'
done
