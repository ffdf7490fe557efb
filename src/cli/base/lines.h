/* SPDX-License-Identifier: Apache-2.0 */
/* Output of many processes on one stream: whole lines, each marked with where it comes from. Any bytes may come. */
#ifndef PITH_CLI_LINES_H
#define PITH_CLI_LINES_H

#include <stddef.h>

/* Bytes that grow as needed; a process without memory ends with a message. */
typedef struct cli_buffer {
  char *data;
  size_t size, capacity;
} cli_buffer;

void cli_buffer_add(cli_buffer *buffer, const char *data, size_t size);
void cli_buffer_free(cli_buffer *buffer);

typedef struct cli_lines {
  int fd; /* where the output comes from; -1: closed */
  int to; /* where it goes */
  char prefix[40];
  cli_buffer rest; /* of a line that is not finished */
} cli_lines;

/* Reads once and adds the lines that are complete to `out`. Returns 0 at the end of the stream, when a last line
 * without an end was added too, and the stream is closed. */
int cli_lines_read(cli_lines *lines, cli_buffer *out);

void cli_lines_close(cli_lines *lines);

#endif
