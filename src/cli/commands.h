/* SPDX-License-Identifier: Apache-2.0 */
/* The commands. */
#ifndef PITH_CLI_COMMANDS_H
#define PITH_CLI_COMMANDS_H

#include "cli/base/cli.h"

typedef struct cli_command {
  const char *name;
  int (*run)(int argc, char **argv); /* gets the arguments after the name, and returns an exit code */
  const char *summary;
  cli_part_lister *part; /* NULL: there are none */
} cli_command;

/* The command of that place or name; NULL if there is none. */
const cli_command *cli_command_get(size_t index);
const cli_command *cli_command_find(const char *name);

/* Runs the command that argv[0] names, or says that there is none. Returns an exit code. */
int cli_dispatch(int argc, char **argv);

/* Shows the usage of every command, and of every part, to the presenter. */
void cli_commands_present(cli_presenter *presenter, void *context);

/* Those that have no folder of their own. */
int cli_codecs(int argc, char **argv);
int cli_completion(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_eval(int argc, char **argv);
int cli_man(int argc, char **argv);

#endif
