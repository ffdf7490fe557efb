#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks of the command on this machine: every collective is right, by every algorithm, and what is said of it can be read.
# shellcheck disable=SC2016
. "$(dirname "$0")/../shell.sh"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT PITH_PORT PITH_HOSTID PITH_TRANSPORT PITH_ALGO PITH_INSIDE PITH_TRACE

all="allreduce reduce reduce_scatter all_gather all_to_all broadcast gather scatter sendrecv"

# finds LINES…: so many lines of results; uncompressed ones have no wrong value, compressed ones are near. With a column for
# the algorithm the others move by one.
finds() {
  awk -v wanted="$1" '/^ *size/ { moved = / algo / } /^ *[0-9]/ { lines++; wrong = $(8 + moved); error = $(9 + moved)
       if ($4 == "-" ? wrong != "0" : wrong != "N/A" || !(error < 0.2)) bad++ }
       END { exit !(lines == wanted && !bad) }' "$temp/out" ||
    { echo "not $1 lines, or some are wrong:" && cat "$temp/out" && return 1; }
}

# bench RANKS ARGUMENT…: all must end well.
bench() {
  ranks=$1 && shift
  exits 0 "$pith" run --no-prefix -n "$ranks" -- "$pith" bench "$@" --wide
}

# The same with two ranks for each host, as far as pith knows.
bench_hosts() {
  ranks=$1 && shift
  exits 0 "$pith" run --no-prefix -n "$ranks" -- sh -c 'PITH_HOSTID=$((RANK / 2)) exec "$0" bench "$@"' "$pith" "$@" --wide
}

every_collective_is_right_over_every_transport() {
  for collective in $all; do
    for transport in shm tcp; do
      bench 3 "$collective" --transport "$transport" -b 64 -e 64K -f 32 -n 2 -w 1
      says out "$collective on 3 ranks over $transport"
      finds 3
    done
  done
}

a_barrier_has_no_size_and_holds() {
  for ranks in 2 5; do
    bench $ranks barrier -n 3
    [ "$(awk '/^ *[0-9]/ { print $1, $8, $9 }' "$temp/out")" = "0 0 N/A" ] || { cat "$temp/out" && return 1; }
  done
}

collectives_take_codecs() {
  for collective in allreduce reduce reduce_scatter all_gather broadcast; do
    bench 3 "$collective" -b 64 -e 64K -f 32 -n 2 -w 1 --codec q:8 --codec ef/q:8
    says out ef/q:8
    finds 9
  done
}

# The least, and how many times that an operation took.
the_least_time_is_told() {
  bench 2 allreduce -b 1M -e 1M -n 2 -w 1 --codec q:8 --codec ef/topk:0.01 --link 1gbit --json "$temp/json"
  [ "$(awk '/×least/ { found = 1 } /^ *1048576/ { lines += $(NF - 1) > 0 && $NF > 0 } END { print found, lines }' "$temp/out")" = "1 3" ] ||
    { cat "$temp/out" && return 1; }
  # 1 MiB to a peer and back, in parts: the link needs 8 ns a byte
  grep -q '"link_seconds": 0.0083' "$temp/json" && grep -q '"memory_seconds": [0-9]' "$temp/json" || { cat "$temp/json" && return 1; }
  exits 2 "$pith" bench allreduce --link fast
  says err "--link fast is not a rate"
  exits 2 "$pith" bench broadcast --link 1gbit
  says err "for allreduce only"
}

moves_do_not() {
  for collective in all_to_all gather scatter barrier sendrecv; do
    exits 2 "$pith" bench $collective --codec q:4
    says err "$collective is not compressed"
  done
}

parts_are_equal_and_never_empty() {
  bench 3 all_gather -b 4 -e 400 -f 100 -n 1
  [ "$(awk '/^ *[0-9]/ { print $1 }' "$temp/out" | tr '\n' ' ')" = '12 396 ' ] || { cat "$temp/out" && return 1; }
}

checking_can_be_switched_off() {
  bench 2 allreduce -b 4K -e 4K -n 2 -c 0 --codec q:4
  [ "$(awk '/^ *[0-9]/ { print $8, $9 }' "$temp/out" | sort -u)" = 'N/A N/A' ] || { cat "$temp/out" && return 1; }
}

# That N/A is not all that #wrong can say: a codec that loses everything is seen.
errors_are_seen() {
  bench 2 allreduce -b 64K -e 64K -n 1 --codec topk:0.001
  awk '$4 == "topk:0.001" { found = $9 > 0.9 } END { exit !found }' "$temp/out"
}

algorithms_have_lines_of_their_own() {
  bench_hosts 4 allreduce -b 256K -e 256K -n 2 -w 1 --algo sra --algo hierarchical --algo ring --algo tree --codec q:8
  says out 'over shm and tcp'
  says out '# ring does not suit uncompressed values'
  finds 6 # two of them uncompressed
  for algorithm in sra hierarchical ring tree; do
    grep -q " q:8 .*$algorithm " "$temp/out"
  done
  bench 3 allreduce -b 256K -e 256K -n 2 -w 1 --algo linear --codec randomk:1
  says out '# linear does not suit uncompressed values'
  grep -q ' - .* auto ' "$temp/out"
}

an_algorithm_that_suits_nothing_is_an_error() {
  exits 1 "$pith" run -n 2 -- "$pith" bench allreduce -b 4K -e 4K -n 1 --algo hierarchical --codec q:4
  says err 'hierarchical suits none of these'
  exits 1 "$pith" run -n 2 -- "$pith" bench allreduce -b 4K -e 4K -n 1 --algo pigeon
  says err 'there is no algorithm "pigeon"'
  exits 2 "$pith" bench broadcast --algo sra
  exits 2 "$pith" bench all_gather --inside q:8
}

inside_hosts_another_spec_may_rule() {
  bytes='$4 == "q:4" { print $11 }'
  bench_hosts 4 allreduce -b 256K -e 256K -n 2 -w 1 --algo hierarchical --codec q:4
  finds 2
  without=$(awk "$bytes" "$temp/out")
  bench_hosts 4 allreduce -b 256K -e 256K -n 2 -w 1 --algo hierarchical --codec q:4 --inside q:8
  finds 2
  says out 'inside hosts q:8'
  with=$(awk "$bytes" "$temp/out")
  [ "$with" -lt $((without * 6 / 10)) ] || { echo "$without bytes, and $with with a spec inside" && return 1; }
}

costs_and_choice_are_told() {
  exits 0 env PITH_DEBUG=INFO "$pith" run --no-prefix -n 2 -- "$pith" bench allreduce -b 256K -e 256K -n 2 -w 1 --codec q:4
  grep -Eq 'allreduce of 65536 f32, q:4, 2 ranks on 1 hosts?: sra [0-9]+ us .*taken: sra' "$temp/err" ||
    { cat "$temp/err" && return 1; }
  grep -Eq 'allreduce of 65536 f32, uncompressed, 2 ranks.*taken: sra' "$temp/err"
  exits 0 env PITH_DEBUG=INFO PITH_ALGO=ring "$pith" run --no-prefix -n 2 -- \
    "$pith" bench allreduce -b 256K -e 256K -n 2 --codec q:4
  grep -Eq 'allreduce of 65536 f32, q:4,.* ring [0-9]+ us .*taken: ring' "$temp/err"
  says err 'ring was asked for, but does not suit uncompressed values'
  PITH_DEBUG=INFO bench_hosts 4 allreduce -b 4M -e 4M -n 1 -w 0
  grep -Eq '4 ranks on 2 hosts: sra .*; hierarchical .*taken: ' "$temp/err" || { cat "$temp/err" && return 1; }
}

# What the table shows, and the factors of busbw.
json_has_all_of_it() {
  need python3
  for collective in $all barrier; do
    bench 3 "$collective" -b 96K -e 96K -n 2 -w 1 --json "$temp/$collective.json"
  done
  bench 3 allreduce -b 96K -e 96K -n 2 -w 1 --codec q:4 --algo sra --inside q:8 --json "$temp/coded.json"
  python3 - "$temp" <<'END'
import json, sys
factors = dict(allreduce=4/3, reduce=1, reduce_scatter=2/3, all_gather=2/3, all_to_all=2/3, broadcast=1, gather=2/3, scatter=2/3,
               barrier=0, sendrecv=1)
for name, factor in factors.items():
    (line,) = json.load(open(f"{sys.argv[1]}/{name}.json"))
    assert (line["collective"], line["codec"], line["ranks"], line["transport"]) == (name, None, 3, "shm"), line
    assert line["checked"] and line["wrong"] == 0 and line["bytes"] == (98304 if factor else 0), line
    assert abs(line["busbw_gbps"] - factor * line["algbw_gbps"]) <= 1e-6 * line["algbw_gbps"], line
    assert line["seconds"] > 0 and line["mean_seconds"] > 0 and line["wire_seconds"] > 0, line
    assert line["ratio"] == 1 and line["speedup"] == 1 and line["wire_bytes"] > 0, line
plain, coded = json.load(open(f"{sys.argv[1]}/coded.json"))
assert plain["encode_seconds"] == 0, plain
assert (coded["codec"], coded["algorithm"], coded["inside"]) == ("q:4", "sra", "q:8"), coded
assert min(coded[part + "_seconds"] for part in ("encode", "wire", "decode")) > 0, coded
assert coded["ratio"] > 7 and 0.01 < coded["relative_error"] < 0.2, coded
END
  bench 2 allreduce -b 4K -e 8K -n 1 --json -
  python3 -c 'import json, sys; assert len(json.load(open(sys.argv[1]))) == 2' "$temp/out"
}

a_rank_alone_needs_nobody() {
  exits 0 env RANK=0 WORLD_SIZE=1 "$pith" bench allreduce -b 1K -e 1K -n 2 --wide
  finds 1
  exits 1 env RANK=0 WORLD_SIZE=1 "$pith" bench sendrecv -b 1K -e 1K -n 2
  says err 'cannot exchange messages with itself'
}

# Each rank knows its own spec; the error has both, on both ranks, and no hash.
ranks_with_different_specs_are_told_both() {
  for transport in shm tcp; do
    exits 1 "$pith" run -n 2 -- sh -c '"$0" bench allreduce -b 64K -e 64K -n 1 -w 0 --transport "$1" --codec q:$((4 + 4 * RANK)) ||
      { sleep 0.5; exit 1; }' "$pith" $transport # the launcher ends the others when the first one ends
    for rank in 0 1; do
      grep "^\[$rank\] pith:" "$temp/err" >"$temp/said" || { cat "$temp/err" && return 1; }
      for words in 'q:4' 'q:8' 'allreduce number' 'the same specs'; do
        grep -qF "$words" "$temp/said" || { echo "rank $rank does not say $words:" && cat "$temp/err" && return 1; }
      done
      grep -q 'rank 0 sends q:4, rank 1 q:8\|rank 1 sends q:8, rank 0 q:4' "$temp/said" || { cat "$temp/said" && return 1; }
      ! grep -q 0x "$temp/said"
    done
  done
}

a_process_that_is_no_rank_is_told_what_to_do() {
  exits 1 env -u RANK -u WORLD_SIZE "$pith" bench allreduce
  says err 'pith run'
}

an_unknown_transport_is_an_error() {
  exits 1 env RANK=0 WORLD_SIZE=2 "$pith" bench allreduce --transport pigeon
  says err pigeon
}

a_trace_can_be_read() {
  need python3
  exits 0 env PITH_TRACE="$temp/trace-%r.json" "$pith" run -n 2 -- "$pith" bench allreduce -b 64K -e 64K -n 2 --codec q:4
  for rank in 0 1; do
    exits 0 python3 -c 'import json, sys
names = {e["name"].split()[0] for e in json.load(open(sys.argv[1])) if e}
assert {"allreduce", "encode", "decode"} <= names, names' "$temp/trace-$rank.json"
  done
}

# Open MPI's and MPICH's, whichever are there.
mpirun_starts_ranks() {
  count=0
  for launcher in mpirun.openmpi mpirun.mpich mpirun; do
    command -v $launcher >/dev/null || continue
    [ $count = 0 ] || [ $launcher != mpirun ] || continue # one of those before
    options=
    if $launcher --version 2>&1 | grep -Eq 'Open ?(MPI|RTE)'; then options='--allow-run-as-root --oversubscribe'; fi
    # shellcheck disable=SC2086
    exits 0 env MASTER_PORT="$("$pith" run --free-port)" timeout -k 5 60 $launcher $options -n 3 \
      "$pith" bench allreduce -b 64K -e 64K -n 2 --codec q:8 --wide
    says out '3 ranks over shm'
    finds 2
    count=$((count + 1))
  done
  [ $count -gt 0 ] || lacks mpi "there is no mpirun"
}

# A name that anybody can foresee, in a folder that anybody can write to, must not lead elsewhere.
a_trace_follows_no_link() {
  echo precious >"$temp/precious"
  ln -s precious "$temp/link-0.json"
  exits 0 env PITH_TRACE="$temp/link-%r.json" "$pith" run -n 2 -- "$pith" bench allreduce -b 4K -e 4K -n 1
  says err "cannot write PITH_TRACE"
  [ "$(cat "$temp/precious")" = precious ]
}

run_tests every_collective_is_right_over_every_transport a_barrier_has_no_size_and_holds collectives_take_codecs the_least_time_is_told moves_do_not \
  parts_are_equal_and_never_empty checking_can_be_switched_off errors_are_seen algorithms_have_lines_of_their_own \
  an_algorithm_that_suits_nothing_is_an_error inside_hosts_another_spec_may_rule costs_and_choice_are_told json_has_all_of_it \
  a_rank_alone_needs_nobody a_process_that_is_no_rank_is_told_what_to_do ranks_with_different_specs_are_told_both an_unknown_transport_is_an_error a_trace_can_be_read \
  mpirun_starts_ranks \
  a_trace_follows_no_link
