#!/bin/sh
# The command itself: help, slips of the pen, exit codes, doctor.
. "$(dirname "$0")/../shell.sh"

help_names_every_command() {
  exits 0 "$pith" help
  for command in codecs bench run lab doctor help; do
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

a_full_disk_is_an_error() {
  [ -w /dev/full ] || skip "there is no /dev/full"
  exits 1 sh -c '"$0" codecs >/dev/full' "$pith"
}

doctor_finds_nothing_wrong() {
  exits 0 "$pith" doctor
  for word in version compiler cpu cores memory gpu kernels NCCL scalar PITH_CPU PITH_DEBUG PITH_PLUGINS 'no findings'; do
    says out "$word"
  done
}

# So that the list in doctor cannot fall behind the library.
doctor_knows_every_variable_that_is_read() {
  exits 0 "$pith" doctor
  grep -rhoE '"PITH_[A-Z_]+"' "$root/src" "$root/python/pith" | tr -d '"' | sort -u >"$temp/read"
  [ "$(wc -l <"$temp/read")" -gt 12 ]
  while read -r name; do
    says out "  $name "
  done <"$temp/read"
}

doctor_reports_settings_that_are_not_obeyed() {
  exits 1 env PITH_CPU=z80 "$pith" doctor
  says out 'PITH_CPU=z80 cannot be obeyed'
  exits 1 env PITH_PLUGIN=fp8 "$pith" doctor
  says out 'did you mean PITH_PLUGINS?'
  exits 1 env PITH_PLUGINS=missing PITH_PLUGIN_PATH="$temp" "$pith" doctor
  says out 'missing'
  exits 1 env PITH_SECRETS=hush "$pith" doctor
  ! grep -q hush "$temp/out"
}

doctor_keeps_secrets() {
  for form in '' --json; do
    # shellcheck disable=SC2086
    exits 0 env PITH_SECRET=hush "$pith" doctor $form
    says out PITH_SECRET
    if grep -q hush "$temp/out"; then return 1; fi
  done
}

doctor_obeys_the_cpu_wish() {
  exits 0 env PITH_CPU=scalar "$pith" doctor
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
  a_full_disk_is_an_error doctor_finds_nothing_wrong doctor_knows_every_variable_that_is_read \
  doctor_reports_settings_that_are_not_obeyed doctor_keeps_secrets doctor_obeys_the_cpu_wish \
  doctor_json_is_json_whatever_the_environment
