#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The mpi transport: ranks started by mpirun, with every MPI that a module was built for, and what is said where it cannot run.
. "$(dirname "$0")/../shell.sh"
unset PITH_TRANSPORT PITH_MODULE_PATH RANK WORLD_SIZE MASTER_ADDR
modules=$(ls "$build"/pith_transport_mpi*.so 2>/dev/null)

need_module() {
  [ -n "$modules" ] || lacks mpi "the mpi transport was not built: CMake found no MPI"
}

# Programs of Open MPI and MPICH are not started by each other's mpirun. Sets $launcher, with the options it needs.
choose_launcher() { # module
  if ldd "$1" | grep -q libmpich; then
    kind=mpich
    launcher=$(command -v mpirun.mpich || command -v mpiexec.hydra || command -v mpirun) || lacks mpich "there is no mpirun of MPICH"
  else
    kind=openmpi
    launcher=$(command -v mpirun.openmpi || command -v mpirun) || lacks openmpi "there is no mpirun of Open MPI"
    launcher="$launcher --allow-run-as-root --oversubscribe"
  fi
}

# every_mpi command…: runs it once for each MPI. It calls mpi.
every_mpi() {
  need_module
  for module in $modules; do
    choose_launcher "$module"
    echo "with $kind:"
    "$@"
  done
}

# What MPI itself leaks is not ours to report.
launch() { # ranks, command…
  ranks=$1 && shift
  # shellcheck disable=SC2086
  env ASAN_OPTIONS=detect_leaks=0 MASTER_PORT=$((20000 + $$ % 10000)) PITH_TIMEOUT="${timeout:-30}" \
    timeout -k 5 100 $launcher $options -n "$ranks" "$@"
}

mpi() { exits 0 launch "$@"; }

# Every uncompressed line has a number of wrong values, and that is 0.
nothing_is_wrong() {
  awk '/^ *[0-9]/ { lines++; if ($2 == "-" && $5 != 0) wrong++; if ($2 != "-" && !($6 < 0.2)) wrong++ }
       END { exit !(lines > 1 && !wrong) }' "$temp/out" || { cat "$temp/out" && return 1; }
}

options=

# ---- Collectives -----------------------------------------------------------------------------------------------------

reduce() {
  mpi 3 "$pith" bench allreduce --transport mpi -b 4K -e 1M -f 16 -n 3 --codec q:4
  says out "3 ranks over mpi"
  nothing_is_wrong
}

allreduce_over_mpi_is_right() { every_mpi reduce; }

reduce_large() {
  case $kind in openmpi) options="--mca btl tcp,self --mca pml ob1" ;; esac
  mpi 2 "$pith" bench allreduce --transport mpi -b 8 -e 16M -f 128 -n 3 --codec q:4
  options=
  nothing_is_wrong
}

large_messages_over_mpi_without_shared_memory_are_right() { every_mpi reduce_large; }

# Ranks whose results differ in a bit are an error of the command. What each result must be is the law of collective_laws_test.
encode_all() {
  specs=
  for spec in bf16 q:2 q:4 qsgd terngrad natural signsgd signum efsignsgd onebit u8 tree8 gq:8 drive eden:2 hadamard/q:4 ef/q:4 lloyd:2 inceptionn:0.01 \
    topk:0.01 ef/topk:0.01 randomk:0.1 threshold:0.1 adaptive:0.01 dgc:0.01 sketchml ef/powersgd:2; do
    specs="$specs --codec $spec"
  done
  for ranks in 2 5; do
    # shellcheck disable=SC2086
    mpi $ranks "$pith" bench allreduce --transport mpi -b 4K -e 260K -f 65 -n 2 -w 1 $specs
    [ "$(grep -c '^ *[0-9]' "$temp/out")" = 56 ] || { cat "$temp/out" && return 1; }
  done
}

ranks_agree_on_every_method_over_mpi() { every_mpi encode_all; }

collect() {
  for collective in reduce_scatter all_gather all_to_all broadcast; do
    mpi 3 "$pith" bench $collective --transport mpi -b 1K -e 1M -f 32 -n 3
    nothing_is_wrong
  done
}

every_collective_runs_over_mpi() { every_mpi collect; }

choose_by_environment() {
  mpi 2 env PITH_TRANSPORT=mpi "$pith" bench allreduce -b 4K -e 64K -f 4 -n 3
  says out "2 ranks over mpi"
  mpi 1 env PITH_TRANSPORT=mpi "$pith" bench allreduce -b 4K -e 64K -f 4 -n 3
}

mpi_chosen_by_the_environment_and_one_rank() { every_mpi choose_by_environment; }

# ---- The laws of transports ------------------------------------------------------------------------------------------

# Six processes, and each of them must have said "ok": one that skipped or was never there does not count.
keep_laws() {
  laws=$("$build/tests/mpi_laws" -l)
  [ -n "$laws" ]
  for law in $laws; do
    rm -rf "$temp/laws" && mkdir "$temp/laws"
    mpi 6 env LAWS_FOLDER="$temp/laws" "$build/tests/mpi_laws" "$law"
    [ "$(grep -c "^ok   $law" "$temp/out")" = 6 ] || { cat "$temp/out" && return 1; }
  done
}

transport_laws_hold_over_mpi() { every_mpi keep_laws; }

# ---- Faults ----------------------------------------------------------------------------------------------------------

# Runs a job whose rank $1 comes to harm by signal $2 at a random moment of 200 operations. MPI decides what becomes of the others:
# mpirun ends them, or they get an error. None may stay, add up wrongly, or be told something else.
harm() { # rank, signal
  seed=$(date +%N)
  rm -f "$temp"/pid.*
  got=0
  # shellcheck disable=SC2016
  PITH_TRANSPORT=mpi PITH_MODULE_PATH="$build" launch 3 \
    sh -c 'echo $$ >"$0/pid.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" && exec "$@"' "$temp" \
    "$build/tests/mpi_faults" "$1" "$2" "${seed#0}" >"$temp/out" 2>&1 || got=$?
  [ "$got" != 0 ] && [ "$got" != 124 ] && ! grep -q '^wrong' "$temp/out" ||
    { echo "rank $1, $2, seed $seed: exit code $got" && cat "$temp/out" && return 1; }
  nobody_is_left
}

nobody_is_left() {
  for file in "$temp"/pid.*; do
    tries=0
    while kill -0 "$(cat "$file")" 2>/dev/null && [ $tries -lt 50 ]; do
      sleep 0.1 && tries=$((tries + 1))
    done
    [ $tries -lt 50 ] || { echo "process $(cat "$file") is still there" && kill -9 "$(cat "$file")"; return 1; }
  done
}

# Each rank; one of them in a build with sanitizers, where everything takes longer.
victims() {
  if grep -q '^PITH_SANITIZE:[A-Z]*=..*' "$build/CMakeCache.txt"; then
    echo $(($$ % 3))
  else
    echo 0 1 2
  fi
}

kill_each_rank() {
  for rank in $(victims); do
    harm $rank KILL
  done
}

a_killed_rank_ends_the_job() { every_mpi kill_each_rank; }

# Nobody but us notices: the others say who it was.
stop_each_rank() {
  timeout=1
  for rank in $(victims); do
    harm $rank STOP
    grep -q "^told: .*for rank $rank without a sign of life" "$temp/out" || { cat "$temp/out" && return 1; }
  done
}

a_stopped_rank_is_named_in_time() { every_mpi stop_each_rank; }

# ---- What is said ----------------------------------------------------------------------------------------------------

without_mpirun_the_error_says_so() {
  need_module
  exits 1 "$pith" run -n 2 -- "$pith" bench allreduce --transport mpi -b 4K -e 4K -n 1
  cat "$temp/out" >>"$temp/err"
  says err "not started by mpirun"
}

doctor_says_whether_mpi_can_run() {
  exits 0 "$pith" doctor
  if [ -n "$modules" ]; then
    grep -q 'mpi *can run' "$temp/out"
  else
    says out "no pith_transport_mpi.so"
  fi
}

a_module_that_is_none_is_named() {
  mkdir "$temp/modules"
  echo "not a library" >"$temp/modules/pith_transport_mpi.so"
  exits 0 env PITH_MODULE_PATH="/nowhere:$temp/modules" "$pith" doctor
  says out "cannot open the mpi transport: $temp/modules/pith_transport_mpi.so"
  cp "$build/libpith.so" "$temp/modules/pith_transport_mpi.so"
  exits 0 env PITH_MODULE_PATH="$temp/modules" "$pith" doctor
  says out "is not the mpi transport"
}

# With modules for several, the launcher decides; a folder that is named comes first, and what is of no known kind serves both.
the_module_of_the_launchers_mpi_is_opened() {
  mkdir "$temp/launchers"
  for kind in mpi_openmpi mpi_mpich; do
    echo "not a library" >"$temp/launchers/pith_transport_$kind.so"
  done
  export PITH_MODULE_PATH="$temp/launchers"
  exits 0 env OMPI_COMM_WORLD_RANK=0 PMI_RANK=0 "$pith" doctor
  says out "cannot open the mpi transport: $temp/launchers/pith_transport_mpi_openmpi.so"
  exits 0 env PMI_RANK=0 "$pith" doctor
  says out "cannot open the mpi transport: $temp/launchers/pith_transport_mpi_mpich.so"
  echo "not a library" >"$temp/launchers/pith_transport_mpi.so"
  rm "$temp/launchers/pith_transport_mpi_mpich.so"
  exits 0 env PMI_RANK=0 "$pith" doctor
  ! grep -q "pith_transport_mpi_openmpi.so" "$temp/out"
}

the_library_itself_links_to_libc_alone() {
  need readelf
  readelf -d "$build/libpith.so" | grep NEEDED >"$temp/out"
  ! grep -vE 'lib(c|m|pthread|dl|asan|ubsan|tsan)\.so|ld-linux' "$temp/out"
}

# ---- A comm from an MPI communicator ---------------------------------------------------------------------------------

programs_of_mpi() {
  wrapper=$(command -v mpicc."$kind" || command -v mpicc)
  "$wrapper" -std=c11 -Wall -Wextra -Werror -I"$root/include" "$root/examples/mpi_allreduce.c" -o "$temp/mpi_$kind" -L"$build" -lpith -lm
  timeout=30 mpi 3 env LD_LIBRARY_PATH="$build" "$temp/mpi_$kind" q:8
  says out "3 ranks: the compressed sum differs from MPI's by 0.0"
  mpi 3 env LD_LIBRARY_PATH="$build" PITH_TRANSPORT=mpi PITH_MODULE_PATH="$build" "$temp/mpi_$kind" none
  says out "differs from MPI's by 0.000"
}

# A comm that such a program destroys leaves no thread behind.
threads_of_mpi() {
  cat >"$temp/threads.c" <<'END'
#include <mpi.h>
#include <pith/mpi.h>
#include <dirent.h>
#include <stdio.h>

static int threads(void) {
  int count = 0;
  DIR *tasks = opendir("/proc/self/task");
  while (tasks && readdir(tasks)) {
    count++;
  }
  closedir(tasks);
  return count;
}

int main(int argc, char **argv) {
  int level, before = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  for (int round = 0; round < 4; round++) {
    pith_comm *comm;
    if (pith_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm) != PITH_OK || pith_barrier(comm, NULL) != PITH_OK) {
      printf("%s\n", pith_error());
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    pith_comm_destroy(comm);
    before = round == 0 ? threads() : before;
  }
  printf("%d threads more\n", threads() - before);
  MPI_Finalize();
}
END
  wrapper=$(command -v mpicc."$kind" || command -v mpicc)
  "$wrapper" -std=gnu11 -Wall -Wextra -Werror -I"$root/include" "$temp/threads.c" -o "$temp/threads_$kind" -L"$build" -lpith
  mpi 3 env LD_LIBRARY_PATH="$build" PITH_TRANSPORT=mpi PITH_MODULE_PATH="$build" "$temp/threads_$kind"
  [ "$(grep -c '^0 threads more' "$temp/out")" = 3 ] || { cat "$temp/out" && return 1; }
}

a_comm_of_an_mpi_program_leaves_no_thread_behind() {
  need_plain_build
  every_mpi threads_of_mpi
}

an_mpi_program_makes_a_comm_from_its_communicator() {
  need_plain_build
  every_mpi programs_of_mpi
}

run_tests allreduce_over_mpi_is_right large_messages_over_mpi_without_shared_memory_are_right every_collective_runs_over_mpi ranks_agree_on_every_method_over_mpi \
  mpi_chosen_by_the_environment_and_one_rank transport_laws_hold_over_mpi a_killed_rank_ends_the_job \
  a_stopped_rank_is_named_in_time without_mpirun_the_error_says_so doctor_says_whether_mpi_can_run \
  a_module_that_is_none_is_named the_module_of_the_launchers_mpi_is_opened the_library_itself_links_to_libc_alone \
  an_mpi_program_makes_a_comm_from_its_communicator a_comm_of_an_mpi_program_leaves_no_thread_behind
