#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# How long a rendezvous of many ranks takes behind a slow link: rank 0 in one network namespace, all others in another, and between
# them a link of RATE each way. Prints the seconds. Needs root, ip and tc.
#
#   bench/rendezvous_lab.sh [-r RATE, 100mbit] [-b BUILD, build] [RANKS…, 1024]
set -eu
rate=100mbit build=build
while getopts r:b: option; do
  case $option in
    r) rate=$OPTARG ;;
    b) build=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))

program=$build/tests/rendezvous_time
cmake --build "$build" --target rendezvous_time >/dev/null

here=rdv$$a there=rdv$$b
clean() {
  ip netns del "$here" 2>/dev/null || true
  ip netns del "$there" 2>/dev/null || true
}
trap clean EXIT
trap 'exit 130' INT TERM

ip netns add "$here"
ip netns add "$there"
ip -n "$here" link add link0 type veth peer name link0 netns "$there"

# set_up NAMESPACE NUMBER
set_up() {
  ip -n "$1" addr add "10.78.0.$2/24" dev link0
  ip -n "$1" link set lo up
  ip -n "$1" link set link0 up
  ip netns exec "$1" tc qdisc add dev link0 root tbf rate "$rate" burst 64kb latency 50ms
}
set_up "$here" 1
set_up "$there" 2

for ranks in ${*:-1024}; do
  case $ranks in
    *[!0-9]*) echo "rendezvous_lab: \"$ranks\" is no number of ranks" >&2 && exit 2 ;;
  esac
  echo "== $ranks ranks behind $rate"
  ip netns exec "$here" "$program" server 10.78.0.1 29700 "$ranks" &
  ip netns exec "$there" "$program" clients 10.78.0.1 29700 "$ranks"
  wait $!
done
