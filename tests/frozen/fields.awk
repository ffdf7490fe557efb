# SPDX-License-Identifier: Apache-2.0
# The fields of all structs in headers, as "struct field" lines: `awk -f fields.awk header…`. Comments are skipped.
{ text = text $0 "\n" }
END {
  while (match(text, /\/\*([^*]|\*+[^*\/])*\*+\//)) text = substr(text, 1, RSTART - 1) " " substr(text, RSTART + RLENGTH)
  gsub(/\n[ \t]*#[^\n]*/, "\n", text)
  while (match(text, /typedef (struct|union) pith_[a-z_]+ \{[^}]*\}/)) {
    body = substr(text, RSTART, RLENGTH)
    text = substr(text, RSTART + RLENGTH)
    split(body, word, " ")
    name = word[3]
    sub(/^[^{]*\{/, "", body)
    sub(/\}$/, "", body)
    count = split(body, declaration, ";")
    for (i = 1; i <= count; i++) list(name, declaration[i])
  }
}
function list(name, d,    part, n, k) {
  gsub(/[ \t\n]+/, " ", d)
  if (d ~ /^ ?$/) return
  if (match(d, /\(\*[a-z_0-9]+\)/)) { print name, substr(d, RSTART + 2, RLENGTH - 3); return }
  n = split(d, part, ",")
  for (k = 1; k <= n; k++) {
    sub(/\[[^]]*\]/, "", part[k])
    sub(/ *$/, "", part[k])
    match(part[k], /[a-z_0-9]+$/)
    print name, substr(part[k], RSTART, RLENGTH)
  }
}
