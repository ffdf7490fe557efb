#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that srun starts, on a Slurm of our own: a controller and two nodes on this host, in a temporary folder.
. "$(dirname "$0")/../shell.sh"
unset RANK WORLD_SIZE MASTER_ADDR MASTER_PORT PITH_PORT PITH_TRANSPORT
python=${PITH_VENV:-$root/.venv}/bin/python

stop_slurm() {
  for file in "$temp"/slurm/*.pid; do
    [ -r "$file" ] || continue
    pid=$(cat "$file")
    kill "$pid" 2>/dev/null
    for attempt in $(seq 100); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
  done
}
trap 'stop_slurm; rm -rf "$temp"' EXIT

free_ports() { # three in a row that nobody listens on
  port=20000
  while ss -ltn | grep -qE ":($port|$((port + 1))|$((port + 2))) "; do
    port=$((port + 3))
  done
}

write_config() {
  host=$(hostname -s)
  cat >"$temp/slurm/slurm.conf" <<END
ClusterName=pith
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort=$port
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
ReturnToService=2
StateSaveLocation=$temp/slurm/state
SlurmdSpoolDir=$temp/slurm/spool-%n
SlurmctldPidFile=$temp/slurm/slurmctld.pid
SlurmdPidFile=$temp/slurm/slurmd-%n.pid
SlurmctldLogFile=$temp/slurm/slurmctld.log
SlurmdLogFile=$temp/slurm/slurmd-%n.log
NodeName=pith[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1))-$((port + 2)) CPUs=$(nproc)
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:16
END
}

start_slurm() { # once, for all tests of this script
  for program in slurmctld slurmd srun sbatch ss; do
    command -v $program >/dev/null || lacks slurm "there is no $program (Debian, Ubuntu: apt-get install slurmctld slurmd slurm-client iproute2)"
  done
  [ "$(id -u)" = 0 ] || lacks root "only root can start slurmd"
  export SLURM_CONF="$temp/slurm/slurm.conf"
  [ -e "$SLURM_CONF" ] && return 0
  mkdir -p "$temp/slurm/state"
  free_ports
  write_config
  slurmctld >"$temp/slurm/out" 2>&1
  slurmd -N pith1 >>"$temp/slurm/out" 2>&1
  slurmd -N pith2 >>"$temp/slurm/out" 2>&1
  for attempt in $(seq 100); do
    [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && return 0
    sleep 0.1
  done
  echo "Slurm did not start" && cat "$temp"/slurm/out "$temp"/slurm/*.log && return 1
}

ranks() { # options of srun and command…
  exits 0 timeout 60 srun --overcommit --quiet "$@"
}

srun_on_one_node_needs_no_settings() {
  start_slurm
  ranks -N1 -n3 "$pith" bench allreduce -b 4K -e 64K -f 16 -n 2 --codec q:4
  says out "3 ranks"
}

# The nodes of this Slurm have names that no name server knows; on a real one the first node's name is enough.
srun_on_two_nodes() {
  start_slurm
  MASTER_ADDR=127.0.0.1 ranks -N2 -n4 "$pith" bench allreduce -b 4K -e 64K -f 16 -n 2 --codec q:4
  says out "4 ranks"
}

the_first_node_is_rank_0() {
  start_slurm
  exits 1 timeout 60 srun --overcommit --quiet -N2 -n2 env PITH_TIMEOUT=2 "$pith" bench allreduce -b 4K -e 4K
  says err "pith1:"
}

srun_with_pmi2() {
  start_slurm
  ranks --mpi=pmi2 -N1 -n2 "$pith" bench allreduce -b 4K -e 4K -n 2
  says out "2 ranks"
}

two_steps_of_a_job_do_not_collide() {
  start_slurm
  cat >"$temp/two.sh" <<END
#!/bin/sh
for step in 1 2; do
  srun --overcommit --overlap -N1 -n2 "$pith" bench allreduce -b 64K -e 64K -n 100 >"$temp/step\$step" 2>&1 &
done
wait
END
  exits 0 timeout 90 sbatch -W -N1 -n2 --overcommit -o "$temp/two.out" "$temp/two.sh"
  for step in 1 2; do
    grep -q "2 ranks" "$temp/step$step" || { cat "$temp/step$step" && return 1; }
  done
}

a_program_outside_srun_is_told_to_use_it() {
  start_slurm
  printf '#!/bin/sh\n"%s" bench allreduce -b 4K -e 4K >"%s" 2>&1\n' "$pith" "$temp/outside" >"$temp/outside.sh"
  timeout 60 sbatch -W -n2 --overcommit -o /dev/null "$temp/outside.sh" && return 1
  grep -q "srun" "$temp/outside" || { cat "$temp/outside" && return 1; }
}

the_sbatch_example_trains() {
  need_plain_build
  "$python" -c 'import torch, pith.torch' 2>/dev/null || lacks torch "there is no torch with pith in $python"
  start_slurm
  cd "$root"
  exits 0 env PYTHON="$python" MASTER_ADDR=127.0.0.1 timeout 120 sbatch -W --overcommit --cpus-per-task=1 -o "$temp/train.out" \
    examples/slurm/train.sbatch --steps 3 --spec q:4 || { cat "$temp/train.out" && return 1; }
  grep -q "loss" "$temp/train.out" || { cat "$temp/train.out" && return 1; }
}

run_tests srun_on_one_node_needs_no_settings srun_on_two_nodes the_first_node_is_rank_0 srun_with_pmi2 \
  two_steps_of_a_job_do_not_collide a_program_outside_srun_is_told_to_use_it the_sbatch_example_trains
