/* SPDX-License-Identifier: Apache-2.0 */
/* `pith`: hands over to the command, and makes sure that what it printed was written. */
#include <stdio.h>
#include <string.h>

#include <pith/pith.h>

#include "cli/commands.h"

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
