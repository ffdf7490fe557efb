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

/* An array, whose elements `read` reads one by one. */
typedef pith_status (*pith_read_element)(void *self, size_t index);
pith_status pith__read_array(pith_reader *r, pith_read_element read, void *self);

/* An object, whose values `read` reads. `key` is the place in `keys`, which ends with NULL; a key that is not there, or
 * comes twice, is an error. A bit of *seen for each key that came. */
typedef pith_status (*pith_read_value)(void *self, unsigned key);
pith_status pith__read_object(pith_reader *r, const char *const *keys, pith_read_value read, void *self,
                              unsigned *seen);

pith_status pith__read_string(pith_reader *r, char **text);    /* the caller frees it */
pith_status pith__read_number(pith_reader *r, double *number); /* finite */
pith_status pith__read_count(pith_reader *r, size_t *count);   /* whole, not negative */
pith_status pith__read_end(pith_reader *r);                    /* nothing follows */

/* A list of sizes: `most` at most. */
pith_status pith__read_shape(pith_reader *r, size_t *shape, size_t most, size_t *count);

/* A whole file, of at most 256 MiB; free(data). */
pith_status pith__read_file(const char *path, pith_bytes *bytes);

#endif
