/* SPDX-License-Identifier: Apache-2.0 */
/* What every command shares. The command line is built on include/pith alone, as any program is. */
#ifndef PITH_CLI_CLI_H
#define PITH_CLI_CLI_H

#include <stddef.h>

#include "cli/base/options.h"

/* Exit codes: scripts can tell "it failed" from "you asked for something that does not exist". */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* A command within a command: "allreduce" of bench. */
typedef struct cli_part {
  const char *name, *summary;
} cli_part;

/* Lists the parts of a command; returns 0 beyond the last. */
typedef int cli_part_lister(size_t index, cli_part *part);

/* For commands that have parts: prints the list of them after a paragraph, or says that there is none of that name
 * (NULL: none was given). Both return an exit code. */
int cli_parts_help(const char *command, cli_part_lister *list, const char *about);
int cli_parts_unknown(const char *command, cli_part_lister *list, const char *name);

/* Prints "pith: …" on standard error and returns `code`. On a terminal the text is broken into lines; in a file it is
 * one line, for programs that read it. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
