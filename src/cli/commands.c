/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands: what `pith help` lists, and what the manual page and shell completion are made from. */
#include <stdio.h>
#include <string.h>

#include "cli/base/nearest.h"
#include "cli/bench/bench.h"
#include "cli/commands.h"
#include "cli/interpreter.h"
#include "cli/launch/run.h"
#include "cli/plan/plan_command.h"
#include "cli/sim/sim.h"

static int help(int argc, char **argv);

static const cli_command commands[] = {
    {"codecs", cli_codecs, "compression methods: list them, or explain a spec", NULL},
    {"bench", cli_bench, "measure methods on this machine, or operations between ranks", cli_bench_part},
    {"run", cli_run, "start the ranks of a job, on this machine or over ssh", NULL},
    {"lab", cli_lab, "the same, with emulated links of a given rate between the ranks", NULL},
    {"sim", cli_sim, "simulate collectives of any number of ranks, on any network", cli_sim_part},
    {"plan", cli_plan, "make, show and compare plans: a spec for each layer", cli_plan_part},
    {"eval", cli_eval, "train with many methods under the same rules, and report the results", NULL},
    {"doctor", cli_doctor, "what this machine can do, which settings are in force, and what is missing", NULL},
    {"completion", cli_completion, "print a script that completes commands, options and specs in a shell", NULL},
    {"man", cli_man, "print the manual page", NULL},
    {"help", help, "this page, or the options of a command: pith help bench", NULL},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

const cli_command *cli_command_get(size_t index) { return index < COMMAND_COUNT ? &commands[index] : NULL; }

const cli_command *cli_command_find(const char *name) {
  for (size_t i = 0; i < COMMAND_COUNT; i++) {
    if (!strcmp(commands[i].name, name)) {
      return &commands[i];
    }
  }
  return NULL;
}

void cli_commands_present(cli_presenter *presenter, void *context) {
  char ask[] = "--help";
  cli_part part;
  cli_usage_present(presenter, context);
  for (size_t c = 0; c < COMMAND_COUNT; c++) {
    if (!commands[c].part) {
      commands[c].run(1, (char *[]){ask, NULL});
      continue;
    }
    for (size_t p = 0; commands[c].part(p, &part); p++) {
      commands[c].run(2, (char *[]){(char *)part.name, ask, NULL});
    }
  }
  cli_usage_present(NULL, NULL);
}

/* ---- help -------------------------------------------------------------------------------------------------------- */

static void print_commands(FILE *file) {
  fputs("usage: pith COMMAND [options]\n\n", file);
  for (size_t i = 0; i < COMMAND_COUNT; i++) {
    fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].summary);
  }
  fputs(
      "\n"
      "\"pith COMMAND --help\" lists the options of a command, \"pith --version\" the version.\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage; \"run\" and \"lab\" give that of a rank.\n",
      file);
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

static int help(int argc, char **argv) {
  cli_list names = {.count = 0};
  const cli_option options[] = {{.name = NULL}};
  const cli_usage usage = {"help", "[COMMAND [PART]]", "Lists the commands, or the options of one.", options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, &names);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  if (!names.count || !strcmp(names.item[0], "help")) {
    print_commands(stdout);
    return CLI_OK;
  }
  const cli_command *found = cli_command_find(names.item[0]);
  char *ask[] = {(char *)(names.count > 1 ? names.item[1] : "--help"), "--help", NULL};
  return found ? found->run(names.count > 1 ? 2 : 1, ask) : unknown(names.item[0]);
}

/* Methods in Python are measured where they can be called. */
static int is_for_python(int argc, char **argv) {
  int found = 0;
  for (int i = 1; i < argc && !strcmp(argv[0], "bench"); i++) {
    found |= !strcmp(argv[i], "--import") || !strncmp(argv[i], "--import=", strlen("--import="));
  }
  return found;
}

int cli_dispatch(int argc, char **argv) {
  if (argc == 0) {
    print_commands(stderr);
    return CLI_USAGE;
  }
  if (!strcmp(argv[0], "--help") || !strcmp(argv[0], "-h")) {
    print_commands(stdout);
    return CLI_OK;
  }
  if (is_for_python(argc, argv)) {
    return cli_python_run(argv[0], argc - 1, argv + 1);
  }
  const cli_command *found = cli_command_find(argv[0]);
  return found ? found->run(argc - 1, argv + 1) : unknown(argv[0]);
}
