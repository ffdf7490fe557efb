#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `pith sim`: tables, JSON, plots, topology files, and what is wrong with them.
. "$(dirname "$0")/../shell.sh"

speed="--encode 8 --decode 10" # nothing is measured: the same in every run

simulate() {
  # shellcheck disable=SC2086
  exits 0 "$pith" sim allreduce $speed "$@"
}

every_algorithm_that_suits_has_a_line() {
  simulate -n 16 --hosts 4 --rate 10gbit --latency 50us -b 1M --codec q:4 --algo all
  says out 'simulated: allreduce of 1M, links of 10 Gbit/s'
  for algorithm in sra hierarchical ring tree gather grid; do
    grep -q "^ *16 *4  q:4  *$algorithm " "$temp/out"
  done
  [ "$(grep -c 'q:4' "$temp/out")" = 6 ]
  [ "$(grep -c 'best$' "$temp/out")" = 1 ]
  [ "$(grep -c 'auto' "$temp/out")" = 1 ]
}

auto_has_the_best_beside_it() {
  simulate -n 8,16 --per-host 8 -b 16M --codec ef/topk:0.01
  says out best
  grep -q '^ *8 *1 .* ranges ' "$temp/out"
  grep -Eq '^ *16 *2 .* ranges +[0-9.]+ ms .* ranges +0%$' "$temp/out"
}

one_algorithm_can_be_chosen() {
  simulate -n 8 -b 1M --codec q:4 --algo ring
  [ "$(grep -c 'q:4' "$temp/out")" = 1 ]
  says out ring
  simulate -n 8 -b 1M --codec topk:0.01 --algo ring
  says out 'not simulated: ring does not suit'
}

json_has_all_of_it() {
  need python3
  simulate -n 2..16 -b 1M --codec q:4 --codec none --algo all --json "$temp/sim.json"
  python3 - "$temp/sim.json" <<'END'
import json, sys
found = json.load(open(sys.argv[1]))
assert found["simulated"] is True and found["bytes"] == 1 << 20 and found["rate_gbit"] == 10
rows = {(row["ranks"], row["codec"], row["algorithm"]): row for row in found["results"]}
for ranks in 2, 4, 8, 16:
    sra = rows[ranks, "q:4", "sra"]
    assert sra["steps"] == 2 and sra["encodings"] == 2 and sra["messages"] == 2 * ranks * (ranks - 1), sra
    assert sra["switch_bytes"] == ranks * sra["rank_bytes"] and sra["inside_bytes"] == 0
    assert 0 < sra["seconds"] < rows[ranks, "none", "sra"]["seconds"] < 1
assert rows[16, "q:4", "ring"]["steps"] == 30 and rows[16, "q:4", "tree"]["steps"] == 8
END
  simulate -n 2 -b 1M --json -
  python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$temp/out"
}

the_same_options_give_the_same_numbers() {
  simulate -n 2..32 -b 4M --codec q:4 --algo all --json -
  cp "$temp/out" "$temp/first"
  simulate -n 2..32 -b 4M --codec q:4 --algo all --json -
  grep -v '"copy' "$temp/out" | cmp - "$temp/first"
}

times_can_be_drawn() {
  need python3
  simulate -n 2..16 -b 1M --codec q:4 --algo sra --algo ring --plot "$temp/plot.svg"
  python3 - "$temp/plot.svg" <<'END'
import sys
import xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
lines = [e for e in root if e.tag.endswith("polyline")]
assert len(lines) == 2 and all(len(line.get("points").split()) == 4 for line in lines)
assert [e for e in root if e.tag.endswith("text") and e.text == "q:4 ring"]
END
}

plots_say_what_they_show() {
  simulate -n 2..16 -b 1M --codec q:4 --algo sra --plot "$temp/plot.svg"
  grep -q '>time of an allreduce of 1M<' "$temp/plot.svg"
  exits 0 "$pith" sim barrier -n 2..16 --plot "$temp/plot.svg"
  grep -q '>time of a barrier<' "$temp/plot.svg"
  [ "$(grep -c allreduce "$temp/plot.svg")" = 0 ]
}

estimates_are_what_auto_takes() {
  need python3
  simulate -n 2,64 -b 1M --codec q:4 --codec none --estimate
  says out 'estimated: allreduce of 1M'
  grep -Eq '^ *64 *64  q:4  *[a-z]+ +[0-9.]+ (us|ms)$' "$temp/out"
  simulate -n 2,64 -b 1M --codec q:4 --codec none --algo all --json "$temp/sim.json"
  simulate -n 2,64 -b 1M --codec q:4 --codec none --estimate --json "$temp/estimate.json"
  python3 - "$temp/sim.json" "$temp/estimate.json" <<'END'
import json, sys
simulated, estimated = (json.load(open(path)) for path in sys.argv[1:])
assert simulated["simulated"] is True and estimated["simulated"] is False
taken = {(row["ranks"], row["codec"]): row for row in simulated["results"] if row["auto"]}
assert len(estimated["results"]) == len(taken) == 4
for row in estimated["results"]:
    auto = taken[row["ranks"], row["codec"]]
    assert row["algorithm"] == auto["algorithm"], row
    assert 0.5 < row["expected_seconds"] / auto["seconds"] < 2, (row, auto)
END
  exits 2 "$pith" sim allreduce -n 4 --estimate --algo ring
  says err '--estimate'
  exits 2 "$pith" sim barrier -n 4 --estimate
}

a_topology_is_a_file() {
  cat >"$temp/topology" <<'END'
# a small cluster
per_host = 4
rate = 1gbit        # each way
latency = "100us"
oversubscription = 2
straggler = 3:4
slow_link = 1:100mbit
encode = 8
decode = 10
END
  exits 0 "$pith" sim allreduce -n 16 -b 1M --topology "$temp/topology" --codec q:4 --algo hierarchical
  says out 'links of 1 Gbit/s, 100 us; switch 2:1'
  grep -q '^ *16 *4 ' "$temp/out"
  exits 0 "$pith" sim allreduce -n 16 -b 1M --topology "$temp/topology" --rate 10gbit --codec q:4 --algo hierarchical
  says out 'links of 10 Gbit/s'
}

refuses() { # LINE-OF-FILE ERROR
  printf 'rate = 1gbit\n%s\n' "$1" >"$temp/topology"
  exits 2 "$pith" sim allreduce -n 4 --topology "$temp/topology"
  says err 'line 2'
  says err "$2"
}

wrong_lines_are_named() {
  refuses 'rates = 1gbit' 'no key "rates"'
  refuses 'latency = 50' 'expected a time with its unit'
  refuses 'latency' 'expected KEY = VALUE'
  refuses 'rate = fast' 'expected a rate'
  refuses 'cores = 1.5' 'expected a whole number'
  refuses 'per_host = 0' 'expected a whole number above 0'
  refuses 'burst = many' 'expected a size'
  refuses 'look = 5' 'expected a time with its unit'
  refuses 'straggler = 3' 'expected RANK:FACTOR'
  refuses 'slow_link = 1:2' 'expected HOST:RATE'
  refuses 'shared_cores = yes' 'expected true or false'
  refuses 'encode = -1' 'expected GB/s'
  refuses 'oversubscription = 0.5' 'at least 1'
  refuses "$(head -c 2000 /dev/zero | tr '\0' x)" 'is longer than'
  exits 2 "$pith" sim allreduce --topology "$temp/missing"
  says err missing
}

wrong_options_are_refused() {
  exits 2 "$pith" sim
  says err allreduce
  exits 2 "$pith" sim allreduse
  says err 'did you mean allreduce'
  for ranks in 0 -1 4x 4..2 40000 ',' '2,'; do
    exits 2 "$pith" sim allreduce -n "$ranks"
  done
  exits 2 "$pith" sim allreduce -n 4 --algo zigzag
  says err zigzag
  exits 2 "$pith" sim allreduce -n 4 --codec zigzag
  exits 2 "$pith" sim allreduce -n 4 -b 6
  exits 2 "$pith" sim allreduce -n 4 --dist gaussian
  exits 2 "$pith" sim allreduce -n 4 --rate 10
  says err 'rate 10: expected a rate'
  exits 2 "$pith" sim allreduce -n 4 --encode 1 --decode 1 --straggler 4:2
  says err 'straggler 4 is not one of 4 ranks'
}

speeds_come_from_a_benchmark() {
  exits 0 "$pith" bench codec -b 64K -e 512K -f 8 -n 1 -w 0 --codec q:4 --json "$temp/speed.json"
  exits 0 "$pith" sim allreduce -n 4 -b 1M --codec q:4 --speed "$temp/speed.json" --algo sra
  exits 2 "$pith" sim allreduce -n 4 -b 1M --codec q:2 --speed "$temp/speed.json"
  says err 'has no speed of q:2'
  exits 2 "$pith" sim allreduce -n 4 -b 1M --codec q:4 --speed "$temp/missing.json"
}

barriers_take_a_step_for_each_power_of_two() {
  exits 0 "$pith" sim barrier -n 2..64
  says out 'simulated: barrier'
  grep -Eq '^ *64 *64 .* dissemination .* 6 ' "$temp/out"
  exits 2 "$pith" sim barrier -n 4 --codec q:4
  says err 'no codec'
  exits 2 "$pith" sim barrier -n 4 --straggler 4:2
  says err 'straggler 4 is not one of 4 ranks'
}

racks_have_bytes_of_their_own() {
  simulate -n 64 -b 1M --codec q:4 --algo grid --algo sra --rack-hosts 16 --rack-oversubscription 4
  says out rack
  grep -Eq ' grid .* kB +[0-9]+ kB +4 ' "$temp/out"
  exits 2 "$pith" sim allreduce -n 4 --encode 1 --decode 1 --rack-oversubscription 0.5
}

schedules_can_be_exported() {
  need python3
  simulate -n 8 -b 64K --codec q:4 --algo sra --export "$temp/schedules"
  python3 - "$temp/schedules" <<'END'
import sys
lines = open(sys.argv[1]).read().split("\n")
assert lines[0] == "pith-schedules 1"
ranks, sent, received = 0, set(), set()
for line in lines[1:]:
    word = line.split()
    if line.startswith("rank "):
        rank, ranks = int(word[1]), ranks + 1
    elif line.startswith("send "):
        sent.add((rank, int(word[1]), int(word[2])))
    elif line.startswith("receive "):
        received.add((int(word[1]), rank, int(word[2])))
assert ranks == 8 and len(sent) == 2 * 8 * 7 and sent == received
END
  # shellcheck disable=SC2086
  exits 1 "$pith" sim allreduce -n 8 -b 64K $speed --export "$temp/missing/file"
}

many_ranks_are_simulated() {
  need_plain_build
  simulate -n 512 -b 16M --codec q:4 --algo sra
  grep -q '^ *512 *512  q:4  *sra ' "$temp/out"
  simulate -n 4096 -b 256M --codec q:4 --algo gather
  says out 'more than 140 million'
}

run_tests every_algorithm_that_suits_has_a_line auto_has_the_best_beside_it one_algorithm_can_be_chosen json_has_all_of_it \
  the_same_options_give_the_same_numbers times_can_be_drawn plots_say_what_they_show \
  estimates_are_what_auto_takes a_topology_is_a_file wrong_lines_are_named wrong_options_are_refused \
  speeds_come_from_a_benchmark barriers_take_a_step_for_each_power_of_two racks_have_bytes_of_their_own \
  schedules_can_be_exported many_ranks_are_simulated
