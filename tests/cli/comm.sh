#!/bin/sh
# Ranks of the command on this machine: every collective is right, and a trace can be read.
. "$(dirname "$0")/../shell.sh"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT PITH_TRANSPORT PITH_TRACE

# right COLLECTIVE TRANSPORT [CODEC]: three ranks find no wrong value.
right() {
  exits 0 "$pith" run --no-prefix -n 3 -- "$pith" bench "$1" --transport "$2" -b 64 -e 64K -f 32 -n 2 -w 1 ${3:+--codec "$3"}
  says out f32
}

every_collective_is_right_over_every_transport() {
  for collective in allreduce reduce_scatter all_gather all_to_all broadcast; do
    for transport in shm tcp; do
      right "$collective" "$transport"
    done
  done
}

collectives_take_codecs() {
  for collective in allreduce reduce_scatter all_gather broadcast; do
    right "$collective" shm q:4
    says out q:4
  done
}

a_rank_alone_needs_nobody() { exits 0 env RANK=0 WORLD_SIZE=1 "$pith" bench allreduce -b 1K -e 1K -n 2; }

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

run_tests every_collective_is_right_over_every_transport collectives_take_codecs a_rank_alone_needs_nobody \
  a_process_that_is_no_rank_is_told_what_to_do an_unknown_transport_is_an_error a_trace_can_be_read
