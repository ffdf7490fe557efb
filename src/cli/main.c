/* `pith`: hands over to the command, and makes sure that what it printed was written. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <pith/pith.h>

#include "cli/cli.h"
#include "cli/page.h"

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

int main(int argc, char **argv) {
  int code = CLI_OK;
  if (argc == 2 && !strcmp(argv[1], "--version")) {
    printf("pith %s\n", pith_version());
  } else {
    code = cli_dispatch(argc > 0 ? argc - 1 : 0, argv + 1);
  }
  /* A full disk or a closed pipe shows only when the last bytes are written. */
  if ((fflush(stdout) || ferror(stdout)) && code == CLI_OK) {
    return cli_fail(CLI_FAILED, "cannot write to standard output");
  }
  return code;
}
