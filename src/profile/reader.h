/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the JSON of plan and statistics files: a strict subset (objects, arrays, strings, numbers), one value after
 * another, without a tree. Any bytes are safe; mistakes are errors that name the line.
 */
#ifndef PITH_PROFILE_READER_H
#define PITH_PROFILE_READER_H

#include "base/status.h"

typedef struct pith_reader {
  const char *at, *end;
  const char *what; /* "plan", for messages */
  size_t line;
} pith_reader;

pith_reader pith__reader_of(pith_bytes text, const char *what);

pith_status pith__reader_fail(const pith_reader *r, const char *message, const char *detail);

/* Opens an object or array: bracket is '{' or '['. */
pith_status pith__read_open(pith_reader *r, char bracket);

/* Before every entry: *more is 0 at the closing bracket, which is then taken. `first` starts as 1. */
pith_status pith__read_more(pith_reader *r, char close, int *first, int *more);

/* The key of the next entry and its ':'. *key is the place in `keys`; one that is not there, or was seen before, is an
 * error. */
pith_status pith__read_key(pith_reader *r, const char *const *keys, unsigned *seen, unsigned *key);

pith_status pith__read_string(pith_reader *r, char **text);    /* the caller frees it */
pith_status pith__read_number(pith_reader *r, double *number); /* finite */
pith_status pith__read_count(pith_reader *r, size_t *count);   /* whole, not negative */
pith_status pith__read_end(pith_reader *r);                    /* nothing follows */

/* A list of sizes: `most` at most. */
pith_status pith__read_shape(pith_reader *r, size_t *shape, size_t most, size_t *count);

/* A whole file, of at most 256 MiB; free(data). */
pith_status pith__read_file(const char *path, pith_bytes *bytes);

#endif
