/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of a command as a table: one entry each with its name, type, place and help. Parsing, the usage page, the
 * manual page, shell completion and "did you mean" all follow from the table, so that they cannot disagree.
 *
 * Values are given as -n 4, -n4, -n=4, --n 4 or --n=4, and as --codec q:4 or --codec=q:4. "--" ends the options.
 */
#ifndef PITH_CLI_OPTIONS_H
#define PITH_CLI_OPTIONS_H

#include <stddef.h>

enum { CLI_LIST_MAX = 64 };

/* Texts in the order given; they point into argv. */
typedef struct cli_list {
  const char *item[CLI_LIST_MAX];
  size_t count;
} cli_list;

typedef enum cli_type {
  CLI_FLAG,     /* int: 1 if given */
  CLI_COUNT,    /* size_t: a plain number */
  CLI_POSITIVE, /* the same, at least 1 */
  CLI_SIZE,     /* size_t: bytes as 8, 4K, 64M, 1G, at least 1 */
  CLI_TEXT,     /* const char * */
  CLI_CHOICE,   /* int: place in `value`, "f32|f16|bf16" */
  CLI_LIST,     /* cli_list: may be repeated */
} cli_type;

typedef struct cli_option {
  const char *name; /* "-b" or "--codec"; NULL ends a table */
  cli_type type;
  void *target;      /* what the type says; keeps its value when the option is not given */
  const char *value; /* how the usage page calls the value: SPEC, FILE, …; or the words to choose from, "a|b" */
  const char *help;
} cli_option;

typedef struct cli_usage {
  const char *command; /* "bench codec" */
  const char *rest;    /* how the usage page calls other arguments, "[NAME]"; NULL: there are none */
  const char *about;   /* paragraphs (cli_paragraphs) */
  const cli_option *options;
} cli_usage;

typedef enum cli_parsed { CLI_PARSED, CLI_PARSED_HELP, CLI_PARSED_BAD } cli_parsed;

/* Who is shown a usage where --help is asked for. The default prints the usage page. The manual page and shell
 * completion are made by asking every command for help and writing down its usage in another form. */
typedef void cli_presenter(const cli_usage *usage, void *context);
void cli_usage_present(cli_presenter *presenter, void *context); /* NULL: the default */

/* Whether a value or an argument is chosen from a list of words: "shm|tcp". */
int cli_is_word_list(const char *value);

/* Reads arguments; those that are no options go to `rest`. HELP: --help was asked for and printed. BAD: what is wrong
 * was printed. */
cli_parsed cli_options_parse(const cli_usage *usage, int argc, char **argv, cli_list *rest);

/* The same for a command that runs another: reads options up to "--" or the first argument that is none. *rest is the
 * place of what follows them, argc if there is nothing. */
cli_parsed cli_options_parse_leading(const cli_usage *usage, int argc, char **argv, int *rest);

/* Reads 8, 4K, 64M, 1G (powers of 1024). Returns 0 if it is not a size. */
int cli_size_parse(const char *text, size_t *size);

/* The shortest of those forms: "64M", "1000". text has room for 24 characters. */
const char *cli_size_print(size_t size, char *text);

/* Reads 100mbit, 2.5gbit, 64kbit. Returns 0 if it is not a rate, or none that can be emulated. */
int cli_rate_parse(const char *text, unsigned long long *rate);

#endif
