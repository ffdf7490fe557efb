#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ranks that are killed, stopped and cut off while they work, for some seconds; `make chaos` does it for longer.
. "$(dirname "$0")/../shell.sh"
chaos=$build/tests/chaos
seed=${PITH_TEST_SEED:-1}

# value NAME: the number in that row of the summary.
value() { sed -n "s/^ *$1  *\([0-9][0-9]*\).*/\1/p" "$temp/out"; }

a_group_under_fire_gives_no_wrong_sum_no_hang_and_no_wrong_blame() {
  exits 0 "$chaos" --faults 40 --seed "$seed" --timeout 4
  says out "seed $seed"
  [ "$(value faults)" -ge 40 ]
  [ "$(value operations,\ complete\ on\ a\ rank)" -gt 500 ]
  [ "$(value errors\ reported\ by\ ranks)" -gt 0 ]
  [ "$(value kill)" -gt 0 ]
  says out 'all sums right, no hang, every error names a rank that was at fault'
}

so_does_a_group_that_links_its_ranks_on_demand() {
  PITH_EAGER=1 exits 0 "$chaos" --faults 60 --seed "$seed" --timeout 4 --no-network
  [ "$(value faults)" -ge 60 ]
  [ "$(value kill)" -gt 0 ]
  says out 'all sums right, no hang, every error names a rank that was at fault'
}

links_are_cut_where_a_lab_can_run() {
  exits 0 "$chaos" --faults 8 --seed "$seed" --groups 2
  reason=$(sed -n 's/.*skipped: //p' "$temp/out" | head -n 1)
  [ -z "$reason" ] || lacks lab "no links can be cut here: $reason"
}

a_run_says_what_it_leaves_out() {
  exits 0 "$chaos" --faults 8 --seed "$seed" --groups 2 --no-network
  says out 'skipped: --no-network'
  [ "$(value cut)" = 0 ]
}

mistakes_are_wrong_usage() {
  exits 2 "$chaos" --fault 5
  says err 'what is "--fault"?'
  exits 2 "$chaos" --faults many
  exits 2 "$chaos" --faults
  exits 2 "$chaos" --only 3
  exits 2 "$chaos" --groups 0
}

run_tests a_group_under_fire_gives_no_wrong_sum_no_hang_and_no_wrong_blame so_does_a_group_that_links_its_ranks_on_demand \
  links_are_cut_where_a_lab_can_run a_run_says_what_it_leaves_out mistakes_are_wrong_usage
