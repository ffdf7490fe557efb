#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The ucx transport under pith run: collectives over shared memory and TCP, and what becomes of a rank that dies or stalls.
. "$(dirname "$0")/../shell.sh"
unset PITH_TRANSPORT PITH_MODULE_PATH RANK WORLD_SIZE MASTER_ADDR UCX_TLS UCX_NET_DEVICES
export ASAN_OPTIONS=detect_leaks=0 # what UCX itself leaks is not ours to report

need_module() {
  [ -f "$build/pith_transport_ucx.so" ] || lacks ucx "the ucx transport was not built: CMake found no UCX"
  "$pith" doctor | grep -q 'ucx *can run' || lacks ucx "$("$pith" doctor | grep 'ucx')"
}

# ranks, command…: all must end well.
run() {
  need_module
  ranks=$1 && shift
  exits 0 timeout -k 5 100 "$pith" run -n "$ranks" -- "$@"
  sed -i 's/^\[[0-9]*\] //' "$temp/out"
}

# Every uncompressed line has a number of wrong values, and that is 0.
nothing_is_wrong() {
  awk '/^ *[0-9]/ { lines++; if ($2 == "-" && $5 != 0) wrong++; if ($2 != "-" && !($6 < 0.2)) wrong++ }
       END { exit !(lines > 1 && !wrong) }' "$temp/out" || { cat "$temp/out" && return 1; }
}

allreduce_over_ucx_is_right() {
  run 3 "$pith" bench allreduce --transport ucx -b 4K -e 1M -f 16 -n 3 --codec q:4
  says out "3 ranks over ucx"
  nothing_is_wrong
}

large_messages_over_the_tcp_of_ucx_are_right() {
  export UCX_TLS=tcp
  run 2 "$pith" bench allreduce --transport ucx -b 8 -e 16M -f 128 -n 3 --codec q:4
  nothing_is_wrong
}

every_collective_runs_over_ucx() {
  for collective in reduce_scatter all_gather all_to_all broadcast; do
    run 3 "$pith" bench $collective --transport ucx -b 1K -e 1M -f 32 -n 3
    nothing_is_wrong
  done
}

ucx_chosen_by_the_environment_and_one_rank() {
  export PITH_TRANSPORT=ucx
  run 2 "$pith" bench allreduce -b 4K -e 64K -f 4 -n 3
  says out "2 ranks over ucx"
  run 1 "$pith" bench allreduce -b 4K -e 64K -f 4 -n 3
}

# Starts a long job, without a launcher that would end the others, and harms rank 1 once it runs. The exit codes of ranks 0
# and 2 are in $first and $last.
harm() { # signal
  need_module
  for rank in 0 1 2; do
    RANK=$rank WORLD_SIZE=3 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000)) PITH_TIMEOUT="$timeout" \
      timeout -k 5 60 "$pith" bench allreduce --transport ucx -b 64K -e 64K -n 100000000 >"$temp/out.$rank" 2>&1 &
    eval "job$rank=\$!"
  done
  sleep 2 # connected, and at work
  # shellcheck disable=SC2154
  victim=$(cat "/proc/$job1/task/$job1/children")
  kill -"$1" $victim
  first=0 && wait "$job0" || first=$?
  last=0 && wait "$job2" || last=$?
  kill -9 $victim 2>/dev/null || true
  wait "$job1" || true
}

# One at least has seen it with its own eyes; the other may have it from there, or only see that one go.
both_know_of_rank_1() { # words
  [ "$first" = 1 ] && [ "$last" = 1 ] && grep -q 'rank 1\|is gone' "$temp/out.0" && grep -q 'rank 1\|is gone' "$temp/out.2" &&
    grep -q "$1" "$temp/out.0" "$temp/out.2" ||
    { echo "exit codes $first and $last" && cat "$temp/out.0" "$temp/out.2" && return 1; }
}

a_killed_rank_is_named() {
  timeout=50
  for networks in posix tcp; do
    export UCX_TLS=$networks
    harm KILL
    both_know_of_rank_1 "rank 1 is gone"
  done
}

a_stopped_rank_is_named_in_time() {
  timeout=3
  for networks in posix tcp; do
    export UCX_TLS=$networks
    harm STOP
    both_know_of_rank_1 "without a sign of life"
  done
}

an_interface_that_is_not_there_is_an_error() {
  need_module
  exits 1 timeout 60 "$pith" run -n 2 -- env PITH_IFNAME=nowhere7 UCX_TLS=tcp "$pith" bench allreduce --transport ucx -b 4K -e 4K -n 1
  cat "$temp/out" >>"$temp/err"
  says err "ucx: UCX cannot start on nowhere7"
}

doctor_says_whether_ucx_can_run() {
  exits 0 "$pith" doctor
  if [ -f "$build/pith_transport_ucx.so" ]; then
    grep -q 'ucx *can run' "$temp/out" || grep -q 'ucx *ucx: UCX cannot start' "$temp/out"
  else
    says out "no pith_transport_ucx.so"
  fi
}

doctor_says_why_ucx_cannot_run() {
  need_module
  exits 0 env UCX_TLS=nothing "$pith" doctor
  grep -q 'ucx *ucx: UCX cannot start' "$temp/out"
}

run_tests allreduce_over_ucx_is_right large_messages_over_the_tcp_of_ucx_are_right every_collective_runs_over_ucx \
  ucx_chosen_by_the_environment_and_one_rank a_killed_rank_is_named a_stopped_rank_is_named_in_time \
  an_interface_that_is_not_there_is_an_error doctor_says_whether_ucx_can_run doctor_says_why_ucx_cannot_run
