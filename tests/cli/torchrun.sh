#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks started by torchrun, however it makes its rendezvous: its own store holds MASTER_PORT, and pith's ranks must find each other beside it.
# PITH_VENV names a Python environment that has it; .venv and PATH are looked through too.
# shellcheck disable=SC2016
. "$(dirname "$0")/../shell.sh"
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT PITH_PORT PITH_TRANSPORT PITH_HOSTID PITH_ALGO
export PITH_TIMEOUT=30 OMP_NUM_THREADS=1 pith temp

torchrun=
for folder in ${PITH_VENV:+"$PITH_VENV/bin"} "$root/.venv/bin"; do
  [ -z "$torchrun" ] && [ -x "$folder/torchrun" ] && torchrun=$folder/torchrun
done
[ -n "$torchrun" ] || torchrun=$(command -v torchrun)

need_torchrun() {
  need_plain_build
  [ -n "$torchrun" ] || lacks torch "there is no torchrun in PITH_VENV, .venv or PATH (pip install torch)"
}

free_port() { python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])'; }

# finds_nothing_wrong FILE: the lines of two ranks, none of whose uncompressed values is wrong.
finds_nothing_wrong() {
  awk '/allreduce on 2 ranks/ { said = 1 } /^ *[0-9]/ { lines++; if ($2 == "-" ? $5 != "0" : !($6 < 0.2)) bad++ }
       END { exit !(said && lines == 2 && !bad) }' "$1" || { cat "$1" && return 1; }
}

# Options of torchrun that come before the command.
launch() { timeout -k 5 100 "$torchrun" "$@" --no-python "$pith" bench allreduce -b 64K -e 64K -n 3 --codec q:4; }

connects() {
  need_torchrun
  exits 0 launch --nproc-per-node 2 "$@"
  finds_nothing_wrong "$temp/out"
}

ranks_connect() { connects; }
ranks_connect_standalone() { connects --standalone; }
ranks_connect_by_a_static_rendezvous() { connects --rdzv-backend static --master-addr 127.0.0.1 --master-port "$(free_port)"; }
ranks_connect_by_a_c10d_rendezvous() { connects --rdzv-backend c10d --rdzv-endpoint 127.0.0.1:0 --rdzv-id some-job; }

several_jobs_at_once() {
  need_torchrun
  for job in 1 2 3; do
    case $job in 1) how=--standalone ;; 2) how= ;; 3) how="--master-addr 127.0.0.1 --master-port $(free_port)" ;; esac
    # shellcheck disable=SC2086
    launch --nproc-per-node 2 $how >"$temp/job.$job" 2>&1 &
    eval "pid$job=\$!"
  done
  for job in 1 2 3; do
    eval "wait \$pid$job" || { cat "$temp/job.$job" && return 1; }
    finds_nothing_wrong "$temp/job.$job"
  done
}

# Two agents, as on two hosts. The second rank fails once: its host has then been restarted more often than the other.
a_restart_on_one_host_finds_the_other() {
  need_torchrun
  port=$(free_port)
  cat >"$temp/rank" <<'END'
[ $RANK = 0 ] || [ -e "$temp/failed" ] || { touch "$temp/failed" && sleep 1 && exit 1; }
echo "restarts $TORCHELASTIC_RESTART_COUNT"
exec "$pith" bench allreduce -b 64K -e 64K -n 3 --codec q:4
END
  for host in 0 1; do
    timeout -k 5 100 "$torchrun" --nnodes 2 --nproc-per-node 1 --max-restarts 1 --rdzv-backend c10d --rdzv-id restarted \
      --rdzv-endpoint "127.0.0.1:$port" --monitor-interval 0.2 --no-python sh "$temp/rank" >"$temp/host.$host" 2>&1 &
    eval "pid$host=\$!"
  done
  for host in 0 1; do
    eval "wait \$pid$host" || { cat "$temp/host.$host" && return 1; }
  done
  cat "$temp/host.0" "$temp/host.1" >"$temp/both"
  grep -q 'restarts 0' "$temp/both" && grep -q 'restarts 1' "$temp/both"
  finds_nothing_wrong "$temp/both"
}

run_tests ranks_connect ranks_connect_standalone ranks_connect_by_a_static_rendezvous ranks_connect_by_a_c10d_rendezvous \
  several_jobs_at_once a_restart_on_one_host_finds_the_other
