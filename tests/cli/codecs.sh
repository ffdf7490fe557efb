#!/bin/sh
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

unknown_method_offers_the_nearest() {
  exits 2 "$pith" codecs powersdg
  says err 'did you mean "powersgd"?'
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

results_become_the_table_of_the_readme() {
  need python3
  bench q:4
  cp "$root/README.md" "$temp/README.md"
  "$root/tools/bench-table" "$temp/json" "$temp/README.md"
  grep -q '^| `q:4` | 4.125 |' "$temp/README.md"
}

an_unwritable_file_is_an_error() {
  exits 1 "$pith" bench codec -b 4K -n 1 --codec q:4 --json "$temp/no/such/folder"
}

run_tests codecs_lists_the_sixteen_methods_of_the_survey codecs_json_says_the_same codecs_explains_every_method \
  codecs_explains_parameters unknown_method_offers_the_nearest bits_per_value_are_those_of_the_formula \
  errors_are_those_of_the_method every_instruction_set_measures_the_same_error \
  every_type_and_distribution_can_be_measured sizes_run_from_first_to_last the_usual_list_can_be_measured \
  results_become_the_table_of_the_readme an_unwritable_file_is_an_error
