/* SPDX-License-Identifier: Apache-2.0 */
/* Text that grows, for plan and statistics files. A writer without memory stays so, and says it when it is closed. */
#ifndef PITH_PROFILE_WRITER_H
#define PITH_PROFILE_WRITER_H

#include "base/status.h"

typedef struct pith_writer {
  char *text;
  size_t size, capacity;
  int failed;
} pith_writer;

void pith__write(pith_writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void pith__write_string(pith_writer *w, const char *text); /* in quotes, escaped */
void pith__write_number(pith_writer *w, double number);    /* reads back as the same number */
void pith__write_shape(pith_writer *w, const size_t *shape, size_t dimensions);

/* The text, to be freed by the caller. */
pith_status pith__writer_close(pith_writer *w, char **text);

/* Writes a file: an old one is replaced at once or not at all. */
pith_status pith__write_file(const char *path, const char *text);

#endif
