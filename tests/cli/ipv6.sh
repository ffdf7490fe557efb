#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Hosts that have nothing but IPv6, and of that only link-local addresses, which mean something on one interface only.
. "$(dirname "$0")/../shell.sh"
unset PITH_SECRET PITH_HOSTID PITH_IFNAME PITH_PORT PITH_TRANSPORT PITH_ALGO PITH_INSIDE
export PITH_TIMEOUT=20 WORLD_SIZE=2 MASTER_PORT=29600

net=six$$
remove_hosts() {
  for host in 0 1; do
    ip netns pids "$net-$host" 2>/dev/null | xargs -r kill -KILL
    ip netns del "$net-$host" 2>/dev/null || true
  done
}
trap 'remove_hosts; rm -rf "$temp"' EXIT

# Two hosts and a cable. The interface has another number on each.
make_hosts() {
  need ip
  [ "$(id -u)" = 0 ] || lacks root "only root may make network namespaces"
  [ "$(cat /proc/sys/net/ipv6/conf/default/disable_ipv6 2>/dev/null)" = 0 ] || lacks ipv6 "this system has no IPv6"
  remove_hosts
  ip netns add "$net-0" 2>/dev/null || lacks netns "network namespaces cannot be made here"
  ip netns add "$net-1"
  ip -n "$net-1" link add other type dummy 2>/dev/null || true
  ip -n "$net-0" link add link0 type veth peer name link0 netns "$net-1"
  for host in 0 1; do
    ip -n "$net-$host" link set link0 addrgenmode none
    ip -n "$net-$host" link set lo up
    ip -n "$net-$host" link set link0 up
    ip -n "$net-$host" addr add "fe80::77:$host/64" dev link0 nodad
  done
}

# reduce [VARIABLE=value…]: an allreduce of both, over tcp.
reduce() {
  for host in 0 1; do
    env "$@" RANK=$host MASTER_ADDR=fe80::77:0%link0 ip netns exec "$net-$host" \
      "$pith" bench allreduce -b 64K -e 64K -n 2 -w 0 >"$temp/out$host" 2>"$temp/err$host" &
    eval "rank$host=\$!"
  done
  # shellcheck disable=SC2154
  wait "$rank0" && wait "$rank1" || { cat "$temp"/err? && return 1; }
}

ranks_connect_over_link_local_addresses() {
  make_hosts
  reduce A=b
  reduce PITH_IFNAME=link0
}

run_tests ranks_connect_over_link_local_addresses
