#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# `pith codecs` and `pith bench codec`.
. "$(dirname "$0")/../shell.sh"

survey="qsgd terngrad natural signsgd signum efsignsgd onebit u8 inceptionn topk randomk threshold dgc adaptive sketchml
  powersgd"

codecs_lists_the_sixteen_methods_of_the_survey() {
  exits 0 "$pith" codecs
  for method in $survey; do
    grep -qE "^$method .*●" "$temp/out" || { echo "$method is missing" && return 1; }
  done
  [ "$(tail -n +2 "$temp/out" | grep -cE '^[a-z0-9]+ .*●')" = 16 ]
}

codecs_json_says_the_same() {
  need python3
  exits 0 "$pith" codecs --json
  python3 - "$temp/out" $survey <<'END'
import json, sys
methods = json.load(open(sys.argv[1], encoding="utf-8"))["methods"]
assert {m["name"] for m in methods if m["survey"]} == set(sys.argv[2:])
for m in methods:
    assert m["kind"] in ("codec", "preset", "memory", "transform"), m
    assert (m["kind"] in ("codec", "preset")) == (m["bits"] is not None), m
    assert (m["kind"] == "preset") == (m["made_of"] is not None), m
    assert m["summary"] and m["family"], m
END
}

codecs_explains_every_method() {
  names=$("$pith" codecs | sed -n 's/^\([a-z0-9]*\) .*\(codec\|preset\|memory\|transform\) .*/\1/p')
  [ -n "$names" ]
  for name in $names; do
    exits 0 "$pith" codecs "$name"
    says out "$name: "
    says out family
  done
}

codecs_explains_parameters() {
  exits 0 "$pith" codecs q
  says out '1…8'
  says out 'nearest|stochastic'
  exits 0 "$pith" codecs signum
  says out 'made of         momentum'
}

# explains SPEC WORD…: all of these are said.
explains() {
  spec=$1 && shift
  exits 0 "$pith" codecs "$spec"
  for word in "$@"; do
    says out "$word"
  done
}

a_spec_is_explained() {
  explains q:4 'bits=4' 'bucket=512' 'round=nearest' '(nearest|stochastic)' 'bits per value  4.125' '7.8 times fewer' \
    'sends: for each bucket its least value' 'nothing between steps' 'sra, hierarchical, gather, grid; ring, tree where they are asked for' \
    'there are kernels for it' 'use: the usual choice' 'in rank order'
  explains q:3,bucket=128,round=stochastic 'bits=3' 'bucket=128' 'round=stochastic' '3.500' UNBIASED
  explains ef/topk:0.01,values=fp16 'ef: error feedback' 'ratio=0.01' 'values=fp16' 'select=exact' 'keeps: one f32 for each value' \
    '4 bytes for each value on every rank' 'gather, ranges, grid' 'others may take more or fewer'
  explains ef/powersgd:4 'rank=4' 'two thin matrices' 'inside any allreduce'
  explains signum:0.8 'made of' 'momentum:0.8/sign' 'beta=0.8' 'the majority' 'bits per value  1.039'
  explains randomk:0.01 'payloads add up'
}

adaptive_specs_are_explained() {
  explains auto 'by trial' 'budget=(none)' 'period=256' 'warmup=20' 'candidates' 'uncompressed' 'plain SGD'
  explains auto,delayed=0 'delayed=0' 'q:1' 'eden:1' 'arrive late'
  explains auto,budget=q:4,period=64 'budget=q:4' 'period=64' 'no more error than q:4'
  explains lgreco:q:4 'lgreco:SPEC' 'floor=0.5' 'budget=q:4' 'q:1 … q:8'
  explains lgreco:mix,budget=q:4 'ef/topk:0.001' 'ef/powersgd:1'
  explains kmeans:ef/topk:0.01 'budget=ef/topk:0.01'
  explains accordion:q:4,q:8 'critical=q:8' 'threshold=0.5'
  explains lgreco 'lgreco:SPEC' 'alpha=1'
  exits 2 "$pith" codecs lgreco:none
  says err 'loses nothing'
  exits 2 "$pith" codecs accordion:q:4
  says err 'accordion needs two specs'
}

rules_are_explained() {
  explains 'embed*=ef/topk:0.01;*=q:4' 'layers named embed*' 'ratio=0.01' 'layers named *' 'bits=4' 'the first that matches wins'
  explains '*.bias=none;*=auto,budget=q:4' 'layers named *.bias' 'the values as f32' 'budget=q:4'
  exits 2 "$pith" codecs 'embed*=ef/topkk:0.01;*=q:4'
  says err 'did you mean topk?'
}

# What the library says of methods has no gaps: each says what it sends or keeps, and when to use it.
every_method_says_when_to_use_it() {
  for name in $("$pith" codecs | sed -n 's/^\([a-z][a-z0-9]*\)  *\(codec\|preset\|memory\|transform\|adaptive\) .*/\1/p'); do
    exits 0 "$pith" codecs "$name"
    grep -q '^use  ' "$temp/out" || { echo "$name does not say when to use it" && return 1; }
    grep -q '^\(sends\|keeps\|made of\|written as\)  ' "$temp/out" || { echo "$name does not say what travels" && return 1; }
  done
}

a_spec_can_be_explained_in_json() {
  need python3
  exits 0 "$pith" codecs --json ef/topk:0.01
  python3 - "$temp/out" <<'END'
import json, sys
spec = json.load(open(sys.argv[1], encoding="utf-8"))
assert spec["spec"] == "ef/topk:0.01" and 0.3 < spec["bits_per_value"] < 0.5, spec
assert spec["cuda"] is True and spec["algorithms"] == ["hierarchical", "gather", "ranges", "grid"], spec
END
}

unknown_method_offers_the_nearest() {
  exits 2 "$pith" codecs powersdg
  says err 'did you mean "powersgd"?'
  exits 2 "$pith" codecs ef/topkk:0.01
  says err 'did you mean topk?'
  exits 2 "$pith" codecs lgrecco:q:4
  says err 'did you mean lgreco?'
  exits 2 "$pith" codecs atuo
  says err 'did you mean "auto"?'
  exits 2 "$pith" codecs q:99
  says err 'q:99'
  exits 2 "$pith" bench codec -b 4K --codec topkk:0.1
  says err 'did you mean topk?'
  exits 2 "$pith" bench codec -b 4K --codec q:4 --codec q:9
  ! grep -q 'q:4' "$temp/out" # nothing is measured before all specs are read
}

# bench SPEC [option…]: measures, JSON in $temp/json.
bench() {
  spec=$1 && shift
  exits 0 "$pith" bench codec -b 1M -n 2 -w 0 --codec "$spec" --json "$temp/json" "$@"
}

# field NAME OPERATOR VALUE: of the first result.
field() {
  python3 - "$temp/json" "$@" <<'END'
import json, sys
path, name, operator, value = sys.argv[1:]
result = json.load(open(path, encoding="utf-8"))["results"][0]
value = float(value)
good = {"=": abs(result[name] - value) < 1e-6, "<": result[name] < value, ">": result[name] > value}[operator]
assert good, f"{name} is {result[name]}, not {operator} {value}"
END
}

bits_per_value_are_those_of_the_formula() {
  need python3
  bench none
  field bits_per_value = 32
  bench fp16
  field bits_per_value = 16
  bench q:4
  field bits_per_value = 4.125
  says out 4.125
  bench q:8
  field bits_per_value = 8.125
  bench signsgd
  field bits_per_value '<' 1.1
  bench terngrad
  field bits_per_value '<' 1.7
}

errors_are_those_of_the_method() {
  need python3
  bench none
  field relative_error = 0
  bench q:8
  field relative_error '<' 0.02
  bench q:4
  field relative_error '<' 0.2
  field relative_error '>' 0.02
  bench topk:0.01
  field relative_error '<' 1
}

# Results never depend on the instruction set.
every_instruction_set_measures_the_same_error() {
  need python3
  bench q:3,round=stochastic --cpu scalar
  error=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["results"][0]["relative_error"])' "$temp/json")
  for cpu in avx2 avx512; do
    if "$pith" doctor --no-python | grep -qE "^  $cpu +(available|in use)"; then
      bench q:3,round=stochastic --cpu $cpu
      field relative_error = "$error"
    fi
  done
}

every_type_and_distribution_can_be_measured() {
  need python3
  for type in f32 f16 bf16; do
    bench q:8 --dtype $type
    field relative_error '<' 0.02
    field bits_per_value = 8.125
  done
  for dist in normal laplace uniform sparse; do
    bench q:8 --dist $dist
    field relative_error '<' 0.1
  done
}

sizes_run_from_first_to_last() {
  exits 0 "$pith" bench codec -b 1K -e 16K -f 4 -n 1 -w 0 --codec fp16
  for size in 1K 4K 16K; do
    says out " $size "
  done
  [ "$(grep -c '^fp16' "$temp/out")" = 3 ]
}

the_usual_list_can_be_measured() {
  need python3
  exits 0 "$pith" bench codec -b 256K -n 1 -w 0 --json -
  python3 - "$temp/out" $survey <<'END'
import json, sys
results = json.load(open(sys.argv[1], encoding="utf-8"))["results"]
names = {part.split(":")[0].split(",")[0] for result in results for part in result["codec"].split("/")}
assert not set(sys.argv[2:]) - names, set(sys.argv[2:]) - names
for result in results:
    assert result["bits_per_value"] > 0 and result["encode_gbps"] > 0 and result["decode_add_gbps"] > 0, result
    assert result["relative_error"] is not None and result["relative_error"] < 1.5, result
END
}

results_become_the_table_of_the_docs() {
  need python3
  bench q:4
  cp "$root/docs/performance.md" "$temp/page.md"
  "$root/tools/bench-table" "$temp/json" "$temp/page.md"
  grep -q '^| `q:4` | 4.125 |' "$temp/page.md"
}

an_unwritable_file_is_an_error() {
  exits 1 "$pith" bench codec -b 4K -n 1 --codec q:4 --json "$temp/no/such/folder"
}

run_tests codecs_lists_the_sixteen_methods_of_the_survey codecs_json_says_the_same codecs_explains_every_method \
  codecs_explains_parameters a_spec_is_explained adaptive_specs_are_explained rules_are_explained \
  every_method_says_when_to_use_it a_spec_can_be_explained_in_json unknown_method_offers_the_nearest bits_per_value_are_those_of_the_formula \
  errors_are_those_of_the_method every_instruction_set_measures_the_same_error \
  every_type_and_distribution_can_be_measured sizes_run_from_first_to_last the_usual_list_can_be_measured \
  results_become_the_table_of_the_docs an_unwritable_file_is_an_error
