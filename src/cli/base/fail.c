/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of the command, for people and for programs that read them. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/base/cli.h"
#include "cli/base/page.h"

int cli_fail(int code, const char *format, ...) {
  char *text = NULL;
  va_list args;
  va_start(args, format);
  if (vasprintf(&text, format, args) < 0) {
    text = NULL;
  }
  va_end(args);
  if (isatty(STDERR_FILENO)) {
    cli_paragraph(stderr, "pith: ", "      ", text ? text : format);
  } else {
    fprintf(stderr, "pith: %s\n", text ? text : format);
  }
  free(text);
  return code;
}
