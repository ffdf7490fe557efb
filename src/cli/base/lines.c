/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts streams into lines. A line that never ends is cut at LINE_LIMIT, so that it cannot take all memory. */
#include "cli/base/lines.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/base/cli.h"

enum { LINE_LIMIT = 1 << 20, PIECE = 1 << 16 };

void cli_buffer_add(cli_buffer *buffer, const char *data, size_t size) {
  if (size > buffer->capacity - buffer->size) {
    size_t capacity = 2 * (buffer->size + size);
    char *grown = realloc(buffer->data, capacity);
    if (!grown) {
      exit(cli_fail(CLI_FAILED, "no memory for the output of ranks"));
    }
    buffer->data = grown;
    buffer->capacity = capacity;
  }
  memcpy(buffer->data + buffer->size, data, size);
  buffer->size += size;
}

void cli_buffer_free(cli_buffer *buffer) {
  free(buffer->data);
  *buffer = (cli_buffer){NULL, 0, 0};
}

static void finish_line(cli_lines *lines, cli_buffer *out) {
  cli_buffer *line = &lines->rest;
  cli_buffer_add(out, lines->prefix, strlen(lines->prefix));
  cli_buffer_add(out, line->data, line->size);
  if (line->data[line->size - 1] != '\n') {
    cli_buffer_add(out, "\n", 1);
  }
  line->size = 0;
}

static void cut(cli_lines *lines, const char *data, size_t size, cli_buffer *out) {
  while (size) {
    const char *end = memchr(data, '\n', size);
    size_t length = end ? (size_t)(end - data) + 1 : size;
    cli_buffer_add(&lines->rest, data, length);
    if (end || lines->rest.size >= LINE_LIMIT) {
      finish_line(lines, out);
    }
    data += length;
    size -= length;
  }
}

int cli_lines_read(cli_lines *lines, cli_buffer *out) {
  char piece[PIECE];
  ssize_t got = read(lines->fd, piece, sizeof piece);
  if (got > 0) {
    cut(lines, piece, (size_t)got, out);
    return 1;
  }
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return 1;
  }
  if (lines->rest.size) {
    finish_line(lines, out);
  }
  cli_lines_close(lines);
  return 0;
}

void cli_lines_close(cli_lines *lines) {
  if (lines->fd >= 0) {
    close(lines->fd);
  }
  lines->fd = -1;
  cli_buffer_free(&lines->rest);
}
