# SPDX-License-Identifier: Apache-2.0
# Holds uses to the table of layers. Input: the table (tools/layers), then a line for each use: the file that uses, the file that is used,
# and what of it. Prints what is not allowed, and in the end how many uses there were; fails if that is not all right.

function complain(text) {
  print text > "/dev/stderr"
  complaints++
}

# The folder of the table that a file is in: the innermost one.
function layer_of(file) {
  sub(/^src\//, "", file)
  while (file ~ /\//) {
    sub(/\/[^\/]*$/, "", file)
    if (file in known) {
      return file
    }
  }
  return ""
}

function is_allowed(from, used, name,    to) {
  to = layer_of(used)
  sub(/^src\//, "", used)
  return to == from || (from, to) in may || (from, used) in may || (name ~ /^pith_[^_]/ && (from, "include/pith") in may)
}

/^#/ || NF == 0 { next }

FILENAME == table {
  known[$1] = 1
  for (i = 2; i <= NF; i++) {
    if ($i != "include/pith" && layer_of($i "/") == "" && layer_of($i) == "") {
      complain(table ": " $1 " uses " $i ", which is not above it in the table")
    }
    may[$1, $i] = 1
  }
  next
}

{
  from = layer_of($1)
  uses++
  if (from == "") {
    complain($1 ": add its folder to " table)
  } else if (!is_allowed(from, $2, $3)) {
    complain($1 ": " from " must not use " $2 ($3 == "" ? "" : " (" $3 ")"))
  }
}

END {
  if (!uses) {
    complain("looked at nothing")
  }
  print uses
  exit complaints > 0
}
