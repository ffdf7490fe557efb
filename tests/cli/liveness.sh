#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Hosts that vanish without a word: no packet says that they are gone. Operations may take half an hour here, and the others notice
# it all the same, within PITH_LIVENESS. A process that is stopped is not gone: its host answers.
. "$(dirname "$0")/../shell.sh"
unset PITH_SECRET PITH_HOSTID PITH_IFNAME PITH_PORT PITH_TRANSPORT PITH_ALGO PITH_INSIDE
export PITH_TIMEOUT=1800 PITH_LIVENESS=2 MASTER_ADDR=10.79.0.1 WORLD_SIZE=3

# Three hosts behind a bridge, in namespaces of their own.
net=live$$
remove_hosts() {
  for name in hub 0 1 2; do
    ip netns pids "$net-$name" 2>/dev/null | xargs -r kill -KILL
    ip netns del "$net-$name" 2>/dev/null || true
  done
}
trap 'remove_hosts; rm -rf "$temp"' EXIT

make_hosts() {
  need ip
  need tc
  [ "$(id -u)" = 0 ] || lacks root "only root may make network namespaces"
  remove_hosts
  ip netns add "$net-hub" 2>/dev/null || lacks netns "network namespaces cannot be made here"
  ip -n "$net-hub" link add bridge type bridge
  ip -n "$net-hub" link set bridge up
  for host in 0 1 2; do
    ip netns add "$net-$host"
    ip -n "$net-hub" link add "port$host" type veth peer name link0 netns "$net-$host"
    ip -n "$net-hub" link set "port$host" master bridge
    ip -n "$net-hub" link set "port$host" up
    ip -n "$net-$host" addr add "10.79.0.$((host + 1))/24" dev link0
    ip -n "$net-$host" link set link0 up
    ip -n "$net-$host" link set lo up
    ip netns exec "$net-$host" tc qdisc add dev link0 root tbf rate 100mbit burst 64kb latency 50ms
  done
}

# start RANK COUNT: a rank that makes COUNT exchanges of 1 MiB; its process is in $started.
start() {
  RANK=$1 MASTER_PORT=29600 ip netns exec "$net-$1" \
    "$pith" bench allreduce -b 1M -e 1M -n "$2" -w 0 -c 0 >"$temp/out$1" 2>"$temp/err$1" &
  started=$!
}

# Whether the rank has sent as many bytes as several exchanges take.
has_exchanged() { [ "$(ip netns exec "$net-$1" cat /sys/class/net/link0/statistics/tx_bytes)" -gt 4000000 ]; }
await_exchanges() {
  tries=0
  until has_exchanged "$1"; do
    tries=$((tries + 1))
    [ $tries -lt 400 ] || { cat "$temp"/err* && return 1; }
    sleep 0.05
  done
}

is_over() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.*Z' "/proc/$1/status"; }
# Within half a minute: much less than the time-out, and more than a busy machine needs.
fails_soon() {
  tries=0
  until is_over "$1"; do
    tries=$((tries + 1))
    [ $tries -lt 300 ] || { echo "a rank still waits" && return 1; }
    sleep 0.1
  done
  ! wait "$1"
}

a_host_that_vanishes_is_noticed_long_before_the_timeout() {
  make_hosts
  start 0 100000 && rank0=$started
  start 1 100000 && rank1=$started
  start 2 100000
  await_exchanges 2
  ip -n "$net-hub" link set port2 down
  fails_soon "$rank0"
  fails_soon "$rank1"
  cat "$temp"/err?
  cat "$temp/err0" "$temp/err1" | tr -s ' \n' ' ' | grep -q 'rank 2 is gone (seen by rank [01]): its host has not answered'
}

a_stopped_process_on_a_living_host_is_not_gone() {
  make_hosts
  start 0 40 && rank0=$started
  start 1 40 && rank1=$started
  start 2 40
  await_exchanges 2
  kill -STOP "$started"
  sleep 5
  kill -0 "$rank0"
  kill -0 "$rank1"
  kill -CONT "$started"
  wait "$rank0"
  wait "$rank1"
  wait "$started"
}

run_tests a_host_that_vanishes_is_noticed_long_before_the_timeout a_stopped_process_on_a_living_host_is_not_gone
