#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The command itself: help, slips of the pen, exit codes, doctor.
. "$(dirname "$0")/../shell.sh"

help_names_every_command() {
  exits 0 "$pith" help
  for command in codecs bench run lab sim plan doctor completion man help; do
    says out "  $command"
    exits 0 "$pith" help "$command"
    exits 0 "$pith" help
  done
}

help_names_every_benchmark() {
  exits 0 "$pith" bench --help
  cp "$temp/out" "$temp/list"
  for name in codec allreduce reduce reduce_scatter all_gather all_to_all broadcast gather scatter barrier sendrecv; do
    grep -qw "$name" "$temp/list"
    exits 0 "$pith" bench $name --help
    says out "bench $name"
  done
}

version_is_that_of_the_header() {
  header=$(sed -n 's/^#define PITH_VERSION_[A-Z]* \([0-9]*\)$/\1/p' "$root/include/pith/pith.h" | paste -sd.)
  exits 0 "$pith" --version
  [ "$(cat "$temp/out")" = "pith $header" ]
}

no_command_is_wrong_usage() {
  exits 2 "$pith"
  says err usage
}

unknown_command_offers_the_nearest() {
  exits 2 "$pith" codec
  says err 'did you mean "codecs"?'
  exits 2 "$pith" xyzzy
  says err 'pith help'
}

unknown_option_offers_the_nearest() {
  exits 2 "$pith" codecs --jsom
  says err 'did you mean --json?'
  exits 2 "$pith" bench codec --cdec q:4
  says err 'did you mean --codec?'
}

values_of_options_are_checked() {
  exits 2 "$pith" bench codec -b 4X
  exits 2 "$pith" bench codec -b -4
  exits 2 "$pith" bench codec -b 99999999999999999999
  exits 2 "$pith" bench codec -b 8M -e 4M
  exits 2 "$pith" bench codec -b 1
  exits 2 "$pith" bench codec -n 0
  exits 2 "$pith" bench codec -f 1
  exits 2 "$pith" bench codec --dtype f64
  says err 'f32|f16|bf16'
  exits 2 "$pith" bench codec --codec
  exits 2 "$pith" bench codec q:4
  exits 2 "$pith" codecs --json=1
  exits 2 "$pith" bench
  exits 2 "$pith" bench allgather
  says err 'all_gather'
  exits 2 "$pith" bench allreduce -b 8M -e 4M
  exits 2 "$pith" bench allreduce -b 1
  exits 2 "$pith" bench allreduce -n 0
  exits 2 "$pith" bench allreduce -f 1
  exits 2 "$pith" bench allreduce -c 2
  exits 2 "$pith" bench allreduce --codec nothing
}

# -n4, -n 4, -n=4, --n 4 and --n=4 are one, and so are --codec q:4 and --codec=q:4.
values_are_given_as_in_other_programs() {
  for form in '-b4K -n1 -w0' '-b 4K -n 1 -w 0' '-b=4K -n=1 -w=0' '--b 4K --n 1 --w 0' '--b=4K --n=1 --w=0'; do
    for codec in '--codec q:4' '--codec=q:4'; do
      # shellcheck disable=SC2086
      exits 0 "$pith" bench codec $form $codec
      says out 'q:4      4K'
      says out '1 repetitions'
    done
  done
  exits 0 "$pith" run -n2 --no-prefix -- sh -c 'echo "$WORLD_SIZE"'
  [ "$(cat "$temp/out")" = "2
2" ]
  exits 0 "$pith" run --n=2 --no-prefix -- true
  exits 2 "$pith" codecs --json=1
  exits 2 "$pith" bench codec -x4
  says err 'no option -x4'
  exits 2 "$pith" bench codec -n
  says err '-n needs a value: COUNT'
}

two_dashes_end_the_options() {
  exits 0 "$pith" codecs -- q:4
  says out '4.125'
  exits 2 "$pith" codecs -- --json
  says err '--json'
  exits 2 "$pith" bench codec -- -n
  says err 'unexpected argument "-n"'
}

nothing_is_not_a_size_or_a_number_of_ranks() {
  exits 2 "$pith" bench codec -b 0
  says err 'bench codec: -b 0: expected SIZE in bytes, from 1 on'
  exits 2 "$pith" bench codec -e0
  exits 2 "$pith" bench allreduce -b 0
  says err '-b 0'
  exits 2 "$pith" bench allreduce -b 2
  says err 'a tensor has at least one value, which is 4 bytes'
  exits 2 "$pith" bench codec -n 0
  says err 'expected COUNT, a whole number from 1 on'
  exits 2 "$pith" run -n 0 -- true
  says err '-n 0: expected RANKS'
}

a_full_disk_is_an_error() {
  [ -w /dev/full ] || skip "there is no /dev/full"
  exits 1 sh -c '"$0" codecs >/dev/full' "$pith"
}

doctor_finds_nothing_wrong() {
  exits 0 "$pith" doctor
  for word in version compiler cpu cores memory gpu kernels NCCL python scalar 'no findings'; do
    says out "$word"
  done
}

doctor_lists_only_variables_that_are_set() {
  exits 0 "$pith" doctor --no-python
  ! grep -q 'PITH_[A-Z]' "$temp/out"
  exits 0 env PITH_THREADS=2 "$pith" doctor --no-python
  says out '  PITH_THREADS       2'
  ! grep -q '  PITH_TIMEOUT' "$temp/out"
  exits 0 env PITH_THREADS=2 "$pith" doctor --no-python --variables
  says out '  PITH_TIMEOUT       (unset)'
  says out 'seconds without progress'
}

# "no findings" stands alone, and every finding is an exit code of 1.
doctor_never_says_no_findings_beside_a_finding() {
  for setting in PITH_CPU=z80 PITH_ALGO=pigeon PITH_DEBUG=loud PITH_THREADS=many PITH_SPEC=topkk:0.1 PITH_INSIDE=q:99 \
    PITH_TRANSPORT=pigeon PITH_PLUGIN=float8 PITH_PYTHON=/nowhere/python3; do
    exits 1 env "$setting" "$pith" doctor
    says out "${setting%%=*}"
    grep -qx findings "$temp/out"
    ! grep -q 'no findings' "$temp/out"
  done
  says out '/nowhere/python3: it cannot be started'
}

# A Python that says what a torch with CUDA would say, one that hangs up, and one that lacks a part.
fake_python() { # line…
  printf '#!/bin/sh\n' >"$temp/python"
  for line in "$@"; do
    printf "echo '%s'\n" "$line" >>"$temp/python"
  done
  chmod 755 "$temp/python"
  PITH_PYTHON=$temp/python
  export PITH_PYTHON
}

doctor_reports_python_and_torch() {
  fake_python version=3.12.1 torch=2.9.9 torch_cuda=13.0 torch_nccl=2.28.3 torch_devices=0 pith=0.2.0
  exits 0 "$pith" doctor
  says out 'python      3.12.1, '
  says out 'torch       2.9.9, CUDA 13.0, NCCL 2.28.3; it finds no GPU'
  says out 'pith.torch  can be imported, version 0.2.0'
  fake_python version=3.12.1 torch=2.9.9+cpu
  exits 0 "$pith" doctor
  says out 'without CUDA'
  says out 'the package pith is not installed in this Python'
  fake_python version=3.12.1 torch=2.9.9 pith=0.2.0 'pith_problem=ImportError: no libpith.so'
  exits 1 "$pith" doctor
  says out 'pith.torch cannot be imported: ImportError: no libpith.so'
  fake_python version=3.12.1 'torch_problem=ImportError: libcudart.so.13'
  exits 1 "$pith" doctor
  says out 'libcudart.so.13'
  printf '#!/bin/sh\necho version=3.12.1\nkill -SEGV $$\n' >"$temp/python"
  exits 1 "$pith" doctor
  says out 'it was killed by signal 11 while it imported torch'
}

# A GPU that torch can use and Pith cannot is a finding, with the reason.
doctor_reports_a_gpu_that_is_not_used() {
  fake_python version=3.12.1 torch=2.9.9 torch_cuda=13.0 torch_devices=1 pith=0.2.0
  exits 1 env PITH_MODULE_PATH="$temp" "$pith" doctor
  says out 'this machine has a GPU, and Pith cannot use it'
  says out 'findings'
}

# The script that is really asked, by a real interpreter, with packages made up.
doctor_asks_the_interpreter() {
  need python3
  mkdir -p "$temp/site/torch" "$temp/site/pith/torch"
  printf '__version__ = "9.8.7"\nclass version:\n    cuda = None\n' >"$temp/site/torch/__init__.py"
  printf '__version__ = "0.0.1"\n' >"$temp/site/pith/__init__.py"
  : >"$temp/site/pith/torch/__init__.py"
  exits 0 env -u PITH_PYTHON PYTHONPATH="$temp/site" "$pith" doctor
  says out 'torch       9.8.7, without CUDA'
  says out 'pith.torch  can be imported, version 0.0.1'
  printf '%s\n' 'raise OSError("no libpith.so\nin two lines")' >"$temp/site/pith/torch/__init__.py"
  exits 1 env -u PITH_PYTHON PYTHONPATH="$temp/site" "$pith" doctor
  says out 'pith.torch cannot be imported: OSError: no libpith.so in two lines'
}

# So that the list in doctor cannot fall behind the library.
doctor_knows_every_variable_that_is_read() {
  exits 0 "$pith" doctor --no-python --variables
  grep -rhoE '"PITH_[A-Z_]+"' "$root/src" "$root/python/pith" | tr -d '"' | sort -u >"$temp/read"
  [ "$(wc -l <"$temp/read")" -gt 12 ]
  while read -r name; do
    says out "  $name "
  done <"$temp/read"
}

doctor_reports_settings_that_are_not_obeyed() {
  exits 1 env PITH_CPU=z80 "$pith" doctor
  says out 'PITH_CPU=z80 cannot be obeyed'
  exits 1 env PITH_PLUGIN=float8 "$pith" doctor
  says out 'did you mean PITH_PLUGINS?'
  exits 1 env PITH_PLUGINS=missing PITH_PLUGIN_PATH="$temp" "$pith" doctor
  says out 'missing'
  exits 1 env PITH_SECRETS=hush "$pith" doctor
  ! grep -q hush "$temp/out"
}

doctor_keeps_secrets() {
  for form in '' --json; do
    # shellcheck disable=SC2086
    exits 0 env PITH_SECRET=hush "$pith" doctor --no-python $form
    says out PITH_SECRET
    if grep -q hush "$temp/out"; then return 1; fi
  done
}

doctor_obeys_the_cpu_wish() {
  exits 0 env PITH_CPU=scalar "$pith" doctor --no-python
  grep -q 'scalar *in use' "$temp/out"
}

doctor_json_is_json_whatever_the_environment() {
  need python3
  exits 0 env PITH_DEBUG_FILE="$(printf 'quote " backslash \\ tab \t bad \377\300\200 end')" "$pith" doctor --json
  python3 - "$temp/out" <<'END'
import json, sys
report = json.load(open(sys.argv[1], encoding="utf-8"))
value = {v["name"]: v["value"] for v in report["environment"]}["PITH_DEBUG_FILE"]
assert value == 'quote " backslash \\ tab \t bad \ufffd\ufffd\ufffd end', value
assert sum(k["state"] == "in use" for k in report["kernels"]) == 1
END
}

run_tests help_names_every_command help_names_every_benchmark version_is_that_of_the_header no_command_is_wrong_usage \
  unknown_command_offers_the_nearest unknown_option_offers_the_nearest values_of_options_are_checked \
  values_are_given_as_in_other_programs two_dashes_end_the_options nothing_is_not_a_size_or_a_number_of_ranks \
  a_full_disk_is_an_error doctor_finds_nothing_wrong doctor_lists_only_variables_that_are_set \
  doctor_never_says_no_findings_beside_a_finding doctor_reports_python_and_torch doctor_reports_a_gpu_that_is_not_used \
  doctor_asks_the_interpreter doctor_knows_every_variable_that_is_read \
  doctor_reports_settings_that_are_not_obeyed doctor_keeps_secrets doctor_obeys_the_cpu_wish \
  doctor_json_is_json_whatever_the_environment
