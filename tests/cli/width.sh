#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Default output fits a page of 100 columns: every command, every part of one, every help page. The lists come from the
# command itself, so that a new command is measured too.
. "$(dirname "$0")/../shell.sh"

# fits FILE: no line of it has more than 100 characters. Bytes that continue a UTF-8 character are none.
fits() {
  [ -s "$1" ] || { echo "$1 is empty: nothing was measured" && return 1; }
  LC_ALL=C sed "s/[$(printf '\200')-$(printf '\277')]//g" "$1" |
    LC_ALL=C awk 'length > 100 { print length " characters: " $0; bad = 1 } END { exit bad }'
}

# out_fits command…: what it prints fits, whatever its exit code.
out_fits() {
  "$@" >"$temp/out" 2>"$temp/err" || true
  fits "$temp/out" || { echo "printed by: $*" && return 1; }
}

# The names that a help page lists.
listed() { "$@" | sed -n 's/^  \([a-z][a-z_]*\)  *.*/\1/p'; }

has_parts() { "$pith" "$1" --help | grep -q "^usage: pith $1 PART"; }

the_ruler_counts_characters() {
  printf '%0100d\n' 0 >"$temp/ruler"
  fits "$temp/ruler"
  printf '%099d…\n' 0 >"$temp/ruler"
  fits "$temp/ruler"
  printf '%0100d…\n' 0 >"$temp/ruler"
  ! fits "$temp/ruler" >"$temp/out"
}

every_help_page_fits() {
  count=0
  out_fits "$pith" help
  for command in $(listed "$pith" help); do
    out_fits "$pith" "$command" --help
    count=$((count + 1))
    if has_parts "$command"; then
      for part in $(listed "$pith" "$command" --help); do
        out_fits "$pith" "$command" "$part" --help
        count=$((count + 1))
      done
    fi
  done
  [ $count -gt 20 ] || { echo "only $count pages" && return 1; }
}

# Names, summaries and values with … stand where the others stand: help begins in one column.
help_is_aligned() {
  for command in run lab; do
    "$pith" "$command" --help | LC_ALL=C sed "s/[$(printf '\200')-$(printf '\277')]//g" >"$temp/page"
    [ "$(sed -n 's/^\(  --*[a-z][^ ]*\( [^ ]*\)\{0,1\}  *\)[a-z].*/\1/p' "$temp/page" | awk '{ print length }' | sort -u | wc -l)" = 1 ] ||
      { cat "$temp/page" && return 1; }
  done
}

the_list_of_methods_fits() {
  out_fits "$pith" codecs
  [ "$(grep -c . "$temp/out")" -gt 30 ]
  "$pith" codecs --wide >"$temp/wide"
  [ "$(awk '{ if (length > most) most = length } END { print most }' "$temp/wide")" -gt 100 ]
  for title in family 'bits per value' capabilities 'parameters (defaults), = parts'; do
    head -n 1 "$temp/wide" | grep -qF "$title"
  done
}

every_explanation_fits() {
  for name in $("$pith" codecs | sed -n 's/^\([a-z][a-z0-9]*\)  *\(codec\|preset\|memory\|transform\|adaptive\) .*/\1/p'); do
    out_fits "$pith" codecs "$name"
  done
  for spec in q:4,bucket=128,round=stochastic ef/topk:0.01,values=fp16,select=sampled,warmup=1000 \
    momentum:0.9/hadamard:1024/q:2,round=stochastic auto auto,budget=q:4 lgreco:mix,budget=q:4 kmeans:q:4 \
    accordion:ef/powersgd:2,ef/powersgd:8 'embed*=ef/topk:0.01;*.attention.weight=q:8;*=auto,budget=q:4'; do
    out_fits "$pith" codecs "$spec"
  done
}

doctor_fits() {
  out_fits "$pith" doctor
  out_fits "$pith" doctor --variables --no-python
  out_fits env PITH_MODULE_PATH=/nowhere PITH_CPU=z80 PITH_PLUGINS=missing PITH_SPEC=nonsense "$pith" doctor --no-python
}

a_benchmark_of_codecs_fits() {
  out_fits "$pith" bench codec -b 4K -n 1 -w 0
  [ "$(grep -c . "$temp/out")" -gt 25 ]
  out_fits "$pith" bench codec -b 4K -n 1 -w 0 --codec hadamard:1024/q:2,round=stochastic,bucket=1024 --codec q:4
}

# With the longest spec, and with the columns that options add.
every_benchmark_of_an_operation_fits() {
  count=0
  for part in $(listed "$pith" bench --help); do
    [ "$part" = codec ] && continue
    out_fits "$pith" run --no-prefix -n 2 -- "$pith" bench "$part" -b 4K -e 8K -n 1 -w 0
    grep -q 'time us' "$temp/out" || { cat "$temp/out" "$temp/err" && return 1; }
    count=$((count + 1))
  done
  [ $count -ge 10 ]
  out_fits "$pith" run --no-prefix -n 2 -- "$pith" bench allreduce -b 16M -e 16M -n 1 -w 0 -c 0 --algo sra --algo gather \
    --link 1mbit --codec ef/topk:0.01,values=fp16,select=sampled --codec q:4
  grep -q 'least' "$temp/out"
  out_fits "$pith" run -n 2 -- "$pith" bench allreduce -b 4K -e 4K -n 1 -w 0 --codec q:4
}

wide_benchmarks_have_all_columns() {
  exits 0 "$pith" run --no-prefix -n 2 -- "$pith" bench allreduce -b 4K -e 4K -n 1 -w 0 --wide
  for title in count type algbw busbw '#wrong' 'wire bytes' 'encode us' 'wire us' 'decode us'; do
    says out "$title"
  done
  exits 0 "$pith" bench codec -b 4K -n 1 -w 0 --codec q:4 --wide
  says out 'scratch %'
}

plans_fit() {
  mkdir -p "$temp/plan"
  for layer in transformer.blocks.with.a.very.long.name.that.somebody.gave.it.attention.query.weight fc1.weight fc2.weight; do
    yes | head -c 262144 >"$temp/plan/$layer.f32"
    echo "$layer 256x256 $layer.f32"
  done >"$temp/plan/list"
  out_fits "$pith" plan stats "$temp/plan/list" -o "$temp/plan/stats.json"
  out_fits "$pith" plan make "$temp/plan/stats.json" --budget q:4 -o "$temp/plan/plan.json"
  says out transformer.blocks
  out_fits "$pith" plan show "$temp/plan/plan.json"
  out_fits "$pith" plan compare "$temp/plan/plan.json" q:4 --stats "$temp/plan/stats.json" --rate 1gbit --rate 100mbit
  out_fits "$pith" plan bench -n 1
}

simulations_fit() {
  for algorithm in auto all; do
    out_fits "$pith" sim allreduce -n 2..32 --per-host 4 -b 1M --encode 8 --decode 10 --algo $algorithm --codec q:4 \
      --codec ef/topk:0.01,values=fp16,select=sampled
    says out hierarchical
  done
}

a_lab_says_what_it_is_in_100_columns() {
  "$pith" lab -n 2 --rate 1gbit -- true >"$temp/out" 2>"$temp/err" || lacks lab "pith lab cannot run here: $(cat "$temp/err")"
  fits "$temp/err"
}

# On a terminal, messages are broken too; in a file they stay one line, for programs that read them.
messages_fit_a_terminal() {
  need script
  exits 2 "$pith" bench codec --codec 'topk:0.01,nosuchparameter=3' -b 4K
  [ "$(wc -l <"$temp/err")" = 1 ]
  LC_ALL=C awk 'length > 100 { long = 1 } END { exit !long }' "$temp/err" || { echo "not a long message:" && cat "$temp/err" && return 1; }
  script -qec "stty cols 100; $pith bench codec --codec topk:0.01,nosuchparameter=3 -b 4K" "$temp/typed" >/dev/null </dev/null || true
  tr -d '\r' <"$temp/typed" | sed '1d;/^Script /d' >"$temp/shown"
  fits "$temp/shown"
  grep -q nosuchparameter "$temp/shown"
}

# On a narrower terminal, tables are narrower.
tables_fit_a_narrow_terminal() {
  need script
  script -qec "stty cols 72; $pith codecs" "$temp/typed" >/dev/null </dev/null || true
  tr -d '\r' <"$temp/typed" | sed '1d;/^Script /d' | LC_ALL=C sed "s/[$(printf '\200')-$(printf '\277')]//g" >"$temp/shown"
  grep -q 'what it does' "$temp/shown"
  LC_ALL=C awk 'length > 72 { print; bad = 1 } END { exit bad }' "$temp/shown"
}

run_tests the_ruler_counts_characters every_help_page_fits help_is_aligned the_list_of_methods_fits every_explanation_fits \
  doctor_fits a_benchmark_of_codecs_fits every_benchmark_of_an_operation_fits wide_benchmarks_have_all_columns plans_fit simulations_fit \
  a_lab_says_what_it_is_in_100_columns messages_fit_a_terminal tables_fit_a_narrow_terminal
