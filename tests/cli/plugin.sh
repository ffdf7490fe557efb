#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The plug-in of examples/plugin, loaded by the command.
. "$(dirname "$0")/../shell.sh"

export PITH_PLUGIN_PATH="$build/plugins" PITH_PLUGINS=float8

plugin_is_listed_with_its_file() {
  exits 0 "$pith" codecs
  says out float8
  exits 0 "$pith" codecs float8
  says out "$build/plugins/pith_float8.so"
  exits 0 "$pith" doctor
  says out "$build/plugins/pith_float8.so"
}

plugin_is_measured_as_any_codec() {
  exits 0 "$pith" bench codec -b 1M -n 1 -w 0 --codec float8 --codec float8:128
  grep -qE '^float8(:512)? +1M +8.062' "$temp/out"
  grep -qE '^float8:128 +1M +8.250' "$temp/out"
}

# Three bits of mantissa: at most 1/16 off, and 1/40 or so on the average.
plugin_is_as_exact_as_its_type() {
  need python3
  exits 0 "$pith" bench codec -b 1M -n 1 -w 0 --codec float8 --json -
  python3 -c 'import json,sys
error = json.load(open(sys.argv[1]))["results"][0]["relative_error"]
assert 0.01 < error < 0.04, error' "$temp/out"
}

plugin_works_with_memories_and_transforms() {
  exits 0 "$pith" bench codec -b 64K -n 1 -w 0 --codec ef/float8 --codec ef/hadamard/float8
}

plugin_is_unknown_where_it_is_not_loaded() {
  exits 2 env -u PITH_PLUGINS "$pith" bench codec -b 4K --codec float8
}

# Whoever starts a setuid program must not make it load code.
a_setuid_program_takes_no_folders_from_the_environment() {
  [ "$(id -u)" = 0 ] || lacks root "only root can make a setuid program"
  need setpriv
  need_plain_build
  chmod 755 "$temp"
  mkdir "$temp/plugins"
  cp "$build/plugins/pith_float8.so" "$temp/plugins"
  cp "$pith" "$temp/pith"
  PITH_PLUGIN_PATH=$temp/plugins
  exits 0 setpriv --reuid 65534 --regid 65534 --clear-groups "$temp/pith" codecs float8
  says out "$temp/plugins/pith_float8.so"
  chmod 4755 "$temp/pith"
  exits 2 setpriv --reuid 65534 --regid 65534 --clear-groups "$temp/pith" codecs float8
}

a_missing_plugin_is_reported() {
  exits 0 env PITH_PLUGINS=nothing "$pith" codecs
  says err nothing
}

run_tests plugin_is_listed_with_its_file plugin_is_measured_as_any_codec plugin_is_as_exact_as_its_type \
  plugin_works_with_memories_and_transforms plugin_is_unknown_where_it_is_not_loaded a_setuid_program_takes_no_folders_from_the_environment a_missing_plugin_is_reported
