#!/bin/sh
# The mpi transport: ranks started by mpirun, and what is said where it cannot run.
. "$(dirname "$0")/../shell.sh"
module=$build/pith_transport_mpi.so
unset PITH_TRANSPORT PITH_MODULE_PATH RANK WORLD_SIZE MASTER_ADDR

need_module() {
  [ -f "$module" ] || skip "the mpi transport was not built: CMake found no MPI"
}

# mpirun with the module's own MPI: those of Open MPI and MPICH do not start each other's programs.
mpi() { # ranks, command…
  need_module
  ranks=$1 && shift
  if ldd "$module" | grep -q libmpich; then
    launcher=$(command -v mpirun.mpich || command -v mpiexec.hydra || command -v mpirun) || skip "there is no mpirun of MPICH"
    set -- "$launcher" -n "$ranks" "$@"
  else
    launcher=$(command -v mpirun.openmpi || command -v mpirun) || skip "there is no mpirun of Open MPI"
    set -- "$launcher" --allow-run-as-root --oversubscribe $options -n "$ranks" "$@"
  fi
  # What MPI itself leaks is not ours to report.
  exits 0 env ASAN_OPTIONS=detect_leaks=0 MASTER_PORT=$((20000 + $$ % 10000)) PITH_TIMEOUT=30 timeout 100 "$@"
}

# Every uncompressed line has a number of wrong values, and that is 0.
nothing_is_wrong() {
  awk '/^ *[0-9]/ { lines++; if ($4 == "-" && $8 != 0) wrong++; if ($4 != "-" && !($9 < 0.2)) wrong++ }
       END { exit !(lines > 1 && !wrong) }' "$temp/out" || { cat "$temp/out" && return 1; }
}

options=

allreduce_over_mpi_is_right() {
  mpi 3 "$pith" bench allreduce --transport mpi -b 4K -e 1M -f 16 -n 3 --codec q:4
  says out "3 ranks over mpi"
  nothing_is_wrong
}

large_messages_over_mpi_without_shared_memory_are_right() {
  need_module
  ldd "$module" | grep -q libmpich || options="--mca btl tcp,self --mca pml ob1"
  mpi 2 "$pith" bench allreduce --transport mpi -b 8 -e 16M -f 128 -n 3 --codec q:4
  nothing_is_wrong
}

every_collective_runs_over_mpi() {
  need_module
  for collective in reduce_scatter all_gather all_to_all broadcast; do
    mpi 3 "$pith" bench $collective --transport mpi -b 1K -e 1M -f 32 -n 3
    nothing_is_wrong
  done
}

mpi_chosen_by_the_environment_and_one_rank() {
  need_module
  export PITH_TRANSPORT=mpi
  mpi 2 "$pith" bench allreduce -b 4K -e 64K -f 4 -n 3
  says out "2 ranks over mpi"
  mpi 1 "$pith" bench allreduce -b 4K -e 64K -f 4 -n 3
}

without_mpirun_the_error_says_so() {
  need_module
  exits 1 "$pith" run -n 2 -- "$pith" bench allreduce --transport mpi -b 4K -e 4K -n 1
  cat "$temp/out" >>"$temp/err"
  says err "not started by mpirun"
}

doctor_says_whether_mpi_can_run() {
  exits 0 "$pith" doctor
  if [ -f "$module" ]; then
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
  says out "is not a transport"
}

the_library_itself_links_to_libc_alone() {
  need readelf
  readelf -d "$build/libpith.so" | grep NEEDED >"$temp/out"
  ! grep -vE 'lib(c|m|pthread|dl|asan|ubsan|tsan)\.so|ld-linux' "$temp/out"
}

run_tests allreduce_over_mpi_is_right large_messages_over_mpi_without_shared_memory_are_right every_collective_runs_over_mpi \
  mpi_chosen_by_the_environment_and_one_rank without_mpirun_the_error_says_so doctor_says_whether_mpi_can_run \
  a_module_that_is_none_is_named the_library_itself_links_to_libc_alone
