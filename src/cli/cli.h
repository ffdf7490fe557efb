/* The commands, and what every command shares. The command line is built on include/pith alone, as any program is. */
#ifndef PITH_CLI_CLI_H
#define PITH_CLI_CLI_H

/* Exit codes: scripts can tell "it failed" from "you asked for something that does not exist". */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Each gets the arguments after its own name and returns an exit code. */
int cli_codecs(int argc, char **argv);
int cli_bench(int argc, char **argv);
int cli_bench_codec(int argc, char **argv);
int cli_doctor(int argc, char **argv);
int cli_run(int argc, char **argv);
int cli_lab(int argc, char **argv);
int cli_plan(int argc, char **argv);

/* Prints "pith: …" on standard error and returns `code`. */
int cli_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
