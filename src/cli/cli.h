/* The commands, and what every command shares. The command line is built on include/pith alone, as any program is. */
#ifndef PITH_CLI_CLI_H
#define PITH_CLI_CLI_H

#include <stddef.h>

#include "cli/options.h"

/* Exit codes: scripts can tell "it failed" from "you asked for something that does not exist". */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* A command within a command: "allreduce" of bench. */
typedef struct cli_part {
  const char *name, *summary;
} cli_part;

typedef struct cli_command {
  const char *name;
  int (*run)(int argc, char **argv); /* gets the arguments after the name, and returns an exit code */
  const char *summary;
  int (*part)(size_t index, cli_part *part); /* lists its parts; returns 0 beyond the last. NULL: there are none */
} cli_command;

/* The command of that place or name; NULL if there is none. */
const cli_command *cli_command_get(size_t index);
const cli_command *cli_command_find(const char *name);

/* Runs the command that argv[0] names, or says that there is none. Returns an exit code. */
int cli_dispatch(int argc, char **argv);

/* For commands that have parts: prints the list of them after a paragraph, or says that there is none of that name
 * (NULL: none was given). Both return an exit code. */
int cli_parts_help(const char *command, const char *about);
int cli_parts_unknown(const char *command, const char *name);

/* Shows the usage of every command, and of every part, to the presenter. */
void cli_commands_present(cli_presenter *presenter, void *context);

/* The commands. */
int cli_codecs(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_bench_part(size_t index, cli_part *part);
int cli_bench_codec(int argc, char **argv);
int cli_completion(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_lab(int argc, char **argv);
int cli_man(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_plan_part(size_t index, cli_part *part);
int cli_run(int argc, char **argv);

/* Prints "pith: …" on standard error and returns `code`. On a terminal the text is broken into lines; in a file it is
 * one line, for programs that read it. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
