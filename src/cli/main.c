/* `pith`: finds the command, and helps when there is none of that name. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <pith/pith.h>

#include "cli/cli.h"
#include "cli/nearest.h"

typedef struct command {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *summary;
} command;

static int help(int argc, char **argv);

static const command commands[] = {
    {"codecs", cli_codecs, "every compression method: bits per value, capabilities, parameters, defaults"},
    {"bench", cli_bench, "measure methods on this machine: size, error, speed"},
    {"run", cli_run, "start the ranks of a job, on this machine or over ssh"},
    {"lab", cli_lab, "the same, with a network of links of a given rate between the ranks"},
    {"plan", cli_plan, "which layer gets which spec: make plans from statistics, show and compare them"},
    {"doctor", cli_doctor, "what this machine can do, which settings are in force, and why not more"},
    {"help", help, "this page, or the options of a command: pith help bench"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

int cli_fail(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("pith: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  return code;
}

static const command *find(const char *name) {
  for (size_t i = 0; i < COMMAND_COUNT; i++) {
    if (!strcmp(commands[i].name, name)) {
      return &commands[i];
    }
  }
  return NULL;
}

static int unknown(const char *name) {
  const char *nearest = NULL;
  for (size_t i = 0; i < COMMAND_COUNT; i++) {
    cli_nearest(name, commands[i].name, &nearest);
  }
  if (nearest) {
    return cli_fail(CLI_USAGE, "no command \"%s\"; did you mean \"%s\"?", name, nearest);
  }
  return cli_fail(CLI_USAGE, "no command \"%s\"; see \"pith help\"", name);
}

static void print_commands(FILE *file) {
  fputs("usage: pith COMMAND [options]\n\n", file);
  for (size_t i = 0; i < COMMAND_COUNT; i++) {
    fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].summary);
  }
  fputs(
      "\n\"pith COMMAND --help\" lists the options of a command, \"pith --version\" the version.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage; \"run\" and \"lab\" give that of a rank.\n",
      file);
}

static int help(int argc, char **argv) {
  if (argc == 0 || !strcmp(argv[0], "help")) {
    print_commands(stdout);
    return CLI_OK;
  }
  const command *found = find(argv[0]);
  char *ask[] = {"--help", NULL};
  return found ? found->run(1, ask) : unknown(argv[0]);
}

static int dispatch(int argc, char **argv) {
  if (argc < 2) {
    print_commands(stderr);
    return CLI_USAGE;
  }
  if (!strcmp(argv[1], "--version")) {
    printf("pith %s\n", pith_version());
    return CLI_OK;
  }
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
    return help(0, NULL);
  }
  const command *found = find(argv[1]);
  return found ? found->run(argc - 2, argv + 2) : unknown(argv[1]);
}

int main(int argc, char **argv) {
  int code = dispatch(argc, argv);
  /* A full disk or a closed pipe shows only when the last bytes are written. */
  if ((fflush(stdout) || ferror(stdout)) && code == CLI_OK) {
    return cli_fail(CLI_FAILED, "cannot write to standard output");
  }
  return code;
}
