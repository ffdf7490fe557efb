#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `pith plan`: statistics from files of gradients, plans from statistics, tables, plots and comparisons.
. "$(dirname "$0")/../shell.sh"

# Gradients of a small model: layers of different size and norm, two samples of each.
record() {
  need python3
  python3 - "$temp" <<'END'
import array, random, sys
folder = sys.argv[1]
random.seed(5)
layers = [("embed.weight", (64, 64), 1.0), ("up.weight", (128, 64), 0.1), ("down.weight", (64, 128), 3.0),
          ("head.weight", (64, 32), 0.02), ("head.bias", (32,), 1.0)]
with open(f"{folder}/list.txt", "w") as out:
    out.write("# name shape file\n\n")
    for sample in range(2):
        for name, shape, scale in layers:
            n = 1
            for size in shape:
                n *= size
            file = f"{name}.{sample}.f32"
            array.array("f", [random.gauss(0, scale) * (10 if random.random() < 0.01 else 1) for _ in range(n)]).tofile(
                open(f"{folder}/{file}", "wb"))
            out.write(f"{name} {'x'.join(map(str, shape))} {file}\n")
END
}

measure() {
  record
  exits 0 "$pith" plan stats "$temp/list.txt" -o "$temp/stats.json" "$@"
}

statistics_come_from_recorded_gradients() {
  measure
  says out '10 gradients of 5 layers (1 of them travel uncompressed)'
  python3 - "$temp/stats.json" <<'END'
import json, sys
stats = json.load(open(sys.argv[1]))
assert stats["pith_statistics"] == 1
assert {"q:4", "ef/topk:0.01", "ef/powersgd:4", "none"} <= set(stats["candidates"])
for layer in stats["layers"][:4]:
    assert layer["samples"] == 2 and len(layer["errors"]) == len(stats["candidates"]) == len(layer["bytes"]), layer
    table = dict(zip(stats["candidates"], layer["errors"]))
    assert table["none"] == 0 < table["q:8"] < table["q:4"] < table["q:2"], table
assert stats["layers"][4]["samples"] == 0
END
}

candidates_can_be_chosen() {
  measure --around q:3 --around ef/topk:0.05
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:3
  exits 1 "$pith" plan make "$temp/stats.json" --budget ef/powersgd:4
  says err 'was not measured'
  exits 0 "$pith" plan stats "$temp/list.txt" --candidates 'q:4;eden:2' -o "$temp/few.json"
  says out '2 candidates'
}

a_plan_is_smaller_than_its_reference_at_no_more_error() {
  measure
  for spec in q:4 ef/topk:0.01 ef/powersgd:4; do
    exits 0 "$pith" plan make "$temp/stats.json" --budget $spec -o "$temp/plan.json"
    says out "$spec on all layers"
    python3 - "$temp/plan.json" <<'END'
import json, sys
plan = json.load(open(sys.argv[1]))
assert plan["pith_plan"] == 1 and plan["method"] == "lgreco" and plan["objective"] == "bytes", plan
assert sum(layer["share"] for layer in plan["layers"]) <= 1 + 1e-5, plan
assert plan["layers"][-1] == {"name": "head.bias", "spec": "none", "shape": [32], "bytes": 128, "share": 0}, plan
END
    [ "$(sed -n "s/.*the plan has \([01]\)\.[0-9]* of that.*/\1/p" "$temp/out")" = 0 ]
  done
}

a_mix_is_no_larger_than_a_family() {
  measure
  bytes() { "$pith" plan make "$temp/stats.json" --budget q:3 "$@" -o - |
    python3 -c 'import json,sys; print(sum(l["bytes"] for l in json.load(sys.stdin)["layers"]))'; }
  [ "$(bytes --mix)" -le "$(bytes)" ]
  [ "$(bytes --mix)" -le "$(bytes --families q,powersgd)" ]
  for method in kmeans cgxkmeans linear best bayes; do
    [ "$(bytes)" -le "$(bytes --method $method)" ]
    [ "$(bytes --method $method)" -le "$(bytes --method uniform)" ]
  done
}

a_plan_says_what_its_errors_are() {
  measure
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 --metric l2 --cap 1.5 -o "$temp/plan.json"
  says out 'of its error'
  grep -q '"metric": "l2"' "$temp/plan.json"
  exits 0 "$pith" plan show "$temp/plan.json" --stats "$temp/stats.json"
  says out '% of the error budget used'
  if grep -q '"q:[78]' "$temp/plan.json"; then return 1; fi
  exits 0 "$pith" plan make "$temp/stats.json" --budget ef/topk:0.01 --method global -o "$temp/plan.json"
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 --tolerance 0.01
  exits 2 "$pith" plan make "$temp/stats.json" --budget q:4 --tolerance 0.01 --alpha 2
  says err 'give one of them'
  exits 2 "$pith" plan make "$temp/stats.json" --budget q:4 --cap 0.5
  says err 'at least 1'
}

a_plan_file_can_be_edited_and_shown() {
  measure
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 -o "$temp/plan.json"
  exits 0 "$pith" plan show "$temp/plan.json"
  says out 'up.weight'
  says out '5 layers'
  sed -i 's/\("name": "up.weight", "spec": "\)[^"]*/\1q:8/' "$temp/plan.json"
  exits 0 "$pith" plan show "$temp/plan.json" --rules
  says out ';up.weight=q:8;'
  exits 0 "$pith" plan show "$temp/plan.json" --stats "$temp/stats.json"
  grep -qE '^up.weight +128×64 +q:8 +8\.125 ' "$temp/out"
}

plans_can_be_drawn() {
  measure
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 --mix --svg "$temp/plan.svg"
  python3 - "$temp/plan.svg" <<'END'
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
svg = "{http://www.w3.org/2000/svg}"
titles = [point.find(svg + "title") for point in root.iter(svg + "circle")]
titles = [title.text for title in titles if title is not None]  # the others stand before names
assert len(titles) == 5 and any(t.startswith("down.weight: ") for t in titles), titles
END
  exits 1 "$pith" plan make "$temp/stats.json" --budget q:4 --svg "$temp/no/such/folder.svg"
}

plans_and_specs_are_compared() {
  measure
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 -o "$temp/plan.json"
  exits 0 "$pith" plan compare "$temp/plan.json" q:4 none --stats "$temp/stats.json" --rate 10mbit --rate 1gbit --ranks 8
  says out 'squared error'
  says out 1gbit
  [ "$(grep -c ' ms .* ms$' "$temp/out")" = 3 ]
  python3 - "$temp/out" <<'END'
import sys
rows = [line.split() for line in open(sys.argv[1])][1:]
(plan, uniform, none) = rows
assert float(plan[3]) <= float(uniform[3]) and float(plan[5]) < float(uniform[5]) < float(none[5]), rows
assert float(none[3]) == 0 and none[2] == "32.000", rows
END
}

time_can_be_the_objective() {
  measure
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 --mix --objective time --rate 400gbit --ranks 4
  ! grep -q 'q:' "$temp/out" || grep -q 'q:4 on all layers' "$temp/out" # nothing to win on such a link
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 --mix --objective time --rate 1mbit -o "$temp/plan.json"
  grep -q '"objective": "time"' "$temp/plan.json"
  exits 2 "$pith" plan make "$temp/stats.json" --budget q:4 --objective time
  says err '--rate 1gbit'
}

accordion_takes_two_specs() {
  measure
  exits 0 "$pith" plan make "$temp/stats.json" --method accordion --critical q:6 --otherwise q:2 --before "$temp/stats.json" -o "$temp/plan.json"
  grep -q '"name": "up.weight", "spec": "q:2"' "$temp/plan.json"
  exits 0 "$pith" plan make "$temp/stats.json" --method accordion --critical q:6 --otherwise q:2 -o "$temp/plan.json"
  grep -q '"name": "up.weight", "spec": "q:6"' "$temp/plan.json"
  exits 2 "$pith" plan make "$temp/stats.json" --method accordion --critical q:6
  says err 'two specs'
}

what_cannot_be_is_said() {
  measure
  exits 1 "$pith" plan make "$temp/stats.json" --budget 1e-12 --families q
  says err 'the budget cannot be kept'
  exits 2 "$pith" plan make "$temp/stats.json"
  says err 'which budget?'
  exits 2 "$pith" plan make "$temp/stats.json" --budget q:99
  exits 1 "$pith" plan make "$temp/no-such-file" --budget q:4
  says err 'no-such-file'
  exits 2 "$pith" plan make "$temp/stats.json" --budget q:4 --mix --families q
  head -c 300 "$temp/stats.json" >"$temp/half.json"
  exits 1 "$pith" plan make "$temp/half.json" --budget q:4
  says err 'damaged at line'
  exits 2 "$pith" plan mend
  says err 'there are: stats, make, show, compare, bench'
  exits 2 "$pith" plan make "$temp/stats.json" --bugdet q:4
  says err 'did you mean --budget?'
}

lists_are_checked() {
  record
  rm -f "$temp/stats.json"
  echo 'embed.weight 64 embed.weight.0.f32' >>"$temp/list.txt"
  exits 1 "$pith" plan stats "$temp/list.txt" -o "$temp/stats.json"
  says err 'line 13: layer embed.weight had another shape before'
  echo 'x 64x65 embed.weight.0.f32' >"$temp/list.txt"
  exits 1 "$pith" plan stats "$temp/list.txt" -o "$temp/stats.json"
  says err 'does not have the 16640 bytes of layer x'
  echo 'x 64by64 embed.weight.0.f32' >"$temp/list.txt"
  exits 1 "$pith" plan stats "$temp/list.txt" -o "$temp/stats.json"
  says err 'expected NAME SHAPE FILE'
  [ ! -e "$temp/stats.json" ]
}

a_plan_for_another_model_is_refused() {
  measure
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 -o "$temp/plan.json"
  sed -i 's/up.weight/upper.weight/' "$temp/plan.json"
  exits 1 "$pith" plan compare "$temp/plan.json" --stats "$temp/stats.json"
  says err 'the plan is for another model'
}

the_planner_is_timed() {
  exits 0 "$pith" plan bench -n 1
  [ "$(grep -c '^lgreco, bytes' "$temp/out")" = 2 ]
}

every_part_has_a_help_page() {
  exits 0 "$pith" plan --help
  for part in stats make show compare bench; do
    says out "$part"
  done
  for part in stats make show compare bench; do
    exits 0 "$pith" plan $part --help
    says out "usage: pith plan $part"
  done
}

a_plan_can_be_made_for_a_network_that_is_not_there() {
  measure
  printf 'per_host = 8\nrate = 10gbit\nrack_hosts = 16\n' >"$temp/topology"
  exits 0 "$pith" plan make "$temp/stats.json" --budget q:4 --objective time --ranks 1024 --topology "$temp/topology"
  says out '1024 ranks on 128 hosts'
  [ "$(grep -Ec '(embed|up|down|head).* (grid|hierarchical|sra|gather|ranges) +[0-9.]+ ms$' "$temp/out")" = 5 ]
  exits 2 "$pith" plan make "$temp/stats.json" --budget q:4 --ranks 1 --topology "$temp/topology"
  exits 2 "$pith" plan make "$temp/stats.json" --budget q:4 --rate 1gbit --topology "$temp/topology"
  says err 'give one of them'
  exits 2 "$pith" plan make "$temp/stats.json" --budget q:4 --topology "$temp/missing"
}

run_tests statistics_come_from_recorded_gradients candidates_can_be_chosen a_plan_is_smaller_than_its_reference_at_no_more_error \
  a_mix_is_no_larger_than_a_family a_plan_says_what_its_errors_are a_plan_file_can_be_edited_and_shown plans_can_be_drawn plans_and_specs_are_compared \
  time_can_be_the_objective accordion_takes_two_specs what_cannot_be_is_said lists_are_checked a_plan_for_another_model_is_refused \
  the_planner_is_timed \
  a_plan_can_be_made_for_a_network_that_is_not_there every_part_has_a_help_page
