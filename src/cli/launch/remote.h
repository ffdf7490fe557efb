/* SPDX-License-Identifier: Apache-2.0 */
/* What is said to ssh: one command line for a shell we do not know, on a machine where nothing of Pith need be. */
#ifndef PITH_CLI_REMOTE_H
#define PITH_CLI_REMOTE_H

#include <stddef.h>

#include "cli/base/lines.h"

/*
 * The command line that runs `command` in `folder` with `variables` ("K=V") in its environment. It reads names of
 * signals ("TERM") from its standard input and passes them on to the command; at the end of that input, which also
 * comes when the connection is lost, the command is killed. If `secret`, the first line of the input is the value of
 * PITH_SECRET: command lines can be seen by everyone. Freed by the caller.
 */
char *cli_remote_command(const char *folder, char *const *variables, size_t count, int secret, char *const *command);

/* Appends the text as one word for a POSIX shell. */
void cli_shell_quote(cli_buffer *out, const char *text);

#endif
