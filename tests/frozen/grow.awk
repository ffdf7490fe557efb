# SPDX-License-Identifier: Apache-2.0
# Adds a field to the end of every struct that begins with its size: the headers of a version to come.
/^typedef struct pith_[a-z_]+ \{$/ { open = 1; grows = 0; first = 1; print; next }
open && first { first = 0; grows = $1 == "size_t" && $2 == "size;" }
open && /^\} pith_[a-z_]+;$/ { if (grows) print "  uint64_t pith_test_tail;"; open = 0 }
{ print }
