/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith completion SHELL`: a script that completes commands, options, their values and the names of methods. Every
 * shell gets the same facts, from the tables of commands and options, in its own language.
 */
#include <stdio.h>
#include <string.h>

#include <pith/pith.h>

#include "cli/commands.h"

/* What the value of an option, or an argument, is completed with. */
typedef enum completes { WITH_NOTHING, WITH_FILES, WITH_SPECS, WITH_WORDS, WITH_COMMANDS } completes;

static completes completes_with(const char *value) {
  static const char *const files[] = {"FILE", "PIPE", "STATS", "PLAN", "LIST", "PLAN|SPEC…"};
  if (!value) {
    return WITH_NOTHING;
  }
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    if (!strcmp(value, files[i])) {
      return WITH_FILES;
    }
  }
  if (strstr(value, "SPEC")) {
    return WITH_SPECS;
  }
  if (strstr(value, "COMMAND [ARGUMENT]")) {
    return WITH_COMMANDS;
  }
  return cli_is_word_list(value) ? WITH_WORDS : WITH_NOTHING;
}

/* "a|b" as "a b" */
static void put_words(const char *words) {
  for (; *words; words++) {
    putchar(*words == '|' ? ' ' : *words);
  }
}

/* Names of methods, each once. */
static void put_specs(void) {
  pith_method method = PITH_METHOD_INIT, other = PITH_METHOD_INIT;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    size_t j = 0;
    while (j < i && pith_method_get(j, &other) == PITH_OK && strcmp(other.name, method.name) != 0) {
      j++;
    }
    if (j == i) {
      printf("%s%s", i ? " " : "", method.name);
    }
  }
  for (size_t i = 0; pith_adaptive_get(i, &method) == PITH_OK; i++) {
    printf(" %s", method.name);
  }
}

static void put_command_names(void) {
  for (size_t i = 0; cli_command_get(i); i++) {
    printf("%s%s", i ? " " : "", cli_command_get(i)->name);
  }
}

static void put_part_names(const cli_command *command) {
  cli_part part;
  for (size_t i = 0; command->part(i, &part); i++) {
    printf("%s%s", i ? " " : "", part.name);
  }
}

/* ---- bash -------------------------------------------------------------------------------------------------------- */

static void bash_reply(const char *value) {
  switch (completes_with(value)) {
    case WITH_FILES:
      fputs("files=1", stdout);
      break;
    case WITH_SPECS:
      fputs("reply=$specs", stdout);
      break;
    case WITH_COMMANDS:
      fputs("commands=1", stdout);
      break;
    case WITH_WORDS:
      fputs("reply='", stdout);
      put_words(value);
      putchar('\'');
      break;
    case WITH_NOTHING:
      fputs("reply=''", stdout);
      break;
  }
}

static void bash_usage(const cli_usage *usage, void *context) {
  (void)context;
  for (const cli_option *option = usage->options; option->name; option++) {
    if (option->type != CLI_FLAG) {
      printf("    '%s %s') ", usage->command, option->name);
      bash_reply(option->value);
      puts("; is_value=1 ;;");
    }
  }
  printf("    '%s '*)\n      options='", usage->command);
  for (const cli_option *option = usage->options; option->name; option++) {
    printf("%s ", option->name);
  }
  fputs("--help'; ", stdout);
  bash_reply(usage->rest);
  puts(" ;;");
}

/* Words are cut at ":" and "=" by bash: the value after "=" belongs to the option before it. */
static void put_bash(void) {
  fputs(
      "# Completion of pith for bash. Made by \"pith completion bash\".\n"
      "_pith() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
      "  local command='' part='' options='' reply='' files='' commands='' is_value='' at specs\n"
      "  specs='",
      stdout);
  put_specs();
  fputs(
      "'\n  COMPREPLY=()\n"
      "  if [[ $current == = ]]; then current=''; fi\n"
      "  if [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
      "  if ((COMP_CWORD == 1)); then\n    COMPREPLY=($(compgen -W '",
      stdout);
  put_command_names();
  puts(" --help --version' -- \"$current\"))\n    return\n  fi\n  command=${COMP_WORDS[1]}\n  case $command in");
  for (size_t i = 0; cli_command_get(i); i++) {
    const cli_command *command = cli_command_get(i);
    if (command->part) {
      printf("    %s)\n      if ((COMP_CWORD == 2)); then\n        COMPREPLY=($(compgen -W '", command->name);
      put_part_names(command);
      puts(" --help' -- \"$current\"))\n        return\n      fi\n      command=\"$command ${COMP_WORDS[2]}\" ;;");
    }
  }
  fputs("    help)\n      COMPREPLY=($(compgen -W '", stdout);
  put_command_names();
  puts(
      "' -- \"$current\"))\n      return ;;\n"
      "    run | lab)\n"
      "      for ((at = 2; at < COMP_CWORD; at++)); do\n"
      "        if [[ ${COMP_WORDS[at]} == -- ]]; then COMPREPLY=($(compgen -c -f -- \"$current\")); return; fi\n"
      "      done ;;\n"
      "  esac\n"
      "  case \"$command $previous\" in");
  cli_commands_present(bash_usage, NULL);
  puts(
      "  esac\n"
      "  if [[ -z $is_value && $current == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$options\" -- \"$current\"))\n"
      "  elif [[ -n $files ]]; then\n"
      "    COMPREPLY=($(compgen -f -- \"$current\"))\n"
      "  elif [[ -n $commands ]]; then\n"
      "    COMPREPLY=($(compgen -c -- \"$current\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -W \"$reply\" -- \"$current\"))\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -o bashdefault -F _pith pith");
}

/* ---- zsh --------------------------------------------------------------------------------------------------------- */

/* Inside '…' and […]: quotes, brackets and colons mean something to _arguments. */
static void zsh_text(const char *text) {
  for (; *text; text++) {
    if (*text == '\'') {
      fputs("'\\''", stdout);
    } else {
      printf(strchr("[]:\\", *text) ? "\\%c" : "%c", *text);
    }
  }
}

static void zsh_action(const char *value) {
  putchar(':');
  zsh_text(value ? value : " ");
  putchar(':');
  switch (completes_with(value)) {
    case WITH_FILES:
      fputs("_files", stdout);
      break;
    case WITH_SPECS:
      fputs("{compadd -- $specs}", stdout);
      break;
    case WITH_COMMANDS:
      fputs("_normal", stdout);
      break;
    case WITH_WORDS:
      putchar('(');
      put_words(value);
      putchar(')');
      break;
    case WITH_NOTHING:
      break;
  }
}

static void zsh_usage(const cli_usage *usage, void *context) {
  (void)context;
  printf("    '%s')\n      _arguments -S \\\n", usage->command);
  for (const cli_option *option = usage->options; option->name; option++) {
    int is_long = option->name[1] == '-';
    printf("        '%s%s%s[", option->type == CLI_LIST ? "*" : "", option->name,
           option->type == CLI_FLAG ? ""
           : is_long                ? "="
                                    : "+");
    zsh_text(option->help);
    putchar(']');
    if (option->type != CLI_FLAG) {
      zsh_action(option->value);
    }
    puts("' \\");
  }
  fputs("        '--help[this page]'", stdout);
  if (usage->rest) {
    completes with = completes_with(usage->rest);
    fputs(with == WITH_COMMANDS ? " \\\n        '*::command:_normal" : " \\\n        '*", stdout);
    if (with != WITH_COMMANDS) {
      zsh_action(usage->rest);
    }
    putchar('\'');
  }
  puts(" ;;");
}

static void zsh_list(const char *array, const cli_command *command) {
  cli_part part;
  printf("      %s=(\n", array);
  for (size_t i = 0; command ? command->part(i, &part) : cli_command_get(i) != NULL; i++) {
    if (!command) {
      part = (cli_part){cli_command_get(i)->name, cli_command_get(i)->summary};
    }
    printf("        '%s:", part.name);
    zsh_text(part.summary);
    puts("'");
  }
  puts("      )");
}

static void put_zsh(void) {
  fputs(
      "#compdef pith\n# Completion of pith for zsh. Made by \"pith completion zsh\".\n"
      "_pith() {\n  local -a specs names\n  local command=${words[2]}\n  specs=(",
      stdout);
  put_specs();
  puts(")\n  if ((CURRENT == 2)); then");
  zsh_list("names", NULL);
  puts("    _describe command names\n    return\n  fi\n  case $command in");
  for (size_t i = 0; cli_command_get(i); i++) {
    const cli_command *command = cli_command_get(i);
    if (command->part) {
      printf("    %s)\n      if ((CURRENT == 3)); then\n", command->name);
      zsh_list("names", command);
      puts(
          "        _describe part names\n        return\n      fi\n"
          "      command=\"$command ${words[3]}\"\n      shift 2 words\n      ((CURRENT -= 2)) ;;");
    }
  }
  fputs("    *) shift words; ((CURRENT -= 1)) ;;\n  esac\n  case $command in\n", stdout);
  cli_commands_present(zsh_usage, NULL);
  puts("  esac\n}\n_pith \"$@\"");
}

/* ---- fish -------------------------------------------------------------------------------------------------------- */

static void fish_text(const char *text) {
  putchar('\'');
  for (; *text; text++) {
    printf(strchr("'\\", *text) ? "\\%c" : "%c", *text);
  }
  putchar('\'');
}

static void fish_action(const char *value) {
  switch (completes_with(value)) {
    case WITH_FILES:
      fputs(" -r -F", stdout);
      break;
    case WITH_SPECS:
      fputs(" -x -a \"$__pith_specs\"", stdout);
      break;
    case WITH_COMMANDS:
      fputs(" -x -a '(__fish_complete_subcommand)'", stdout);
      break;
    case WITH_WORDS:
      fputs(" -x -a '", stdout);
      put_words(value);
      putchar('\'');
      break;
    case WITH_NOTHING:
      fputs(" -x", stdout);
      break;
  }
}

static void fish_usage(const cli_usage *usage, void *context) {
  (void)context;
  for (const cli_option *option = usage->options; option->name; option++) {
    int is_long = option->name[1] == '-';
    printf("complete -c pith -n '__pith_at %s' -%c %s -d ", usage->command, is_long ? 'l' : 's',
           option->name + 1 + is_long);
    fish_text(option->help);
    if (option->type != CLI_FLAG) {
      fish_action(option->value);
    }
    putchar('\n');
  }
  if (usage->rest && completes_with(usage->rest) != WITH_NOTHING) {
    printf("complete -c pith -n '__pith_at %s'", usage->command);
    fish_action(usage->rest);
    putchar('\n');
  }
}

static void put_fish(void) {
  fputs(
      "# Completion of pith for fish. Made by \"pith completion fish\".\n"
      "function __pith_at # whether the words after pith begin with these\n"
      "  set -l words (commandline -opc)\n"
      "  set -e words[1]\n"
      "  for i in (seq (count $argv))\n"
      "    test \"$words[$i]\" = \"$argv[$i]\"; or return 1\n"
      "  end\n"
      "end\n"
      "function __pith_has # whether so many words stand before the one that is completed\n"
      "  test (count (commandline -opc)) -eq $argv[1]\n"
      "end\n"
      "set -g __pith_specs '",
      stdout);
  put_specs();
  puts("'\ncomplete -c pith -f\ncomplete -c pith -l help -d 'this page'");
  for (size_t i = 0; cli_command_get(i); i++) {
    const cli_command *command = cli_command_get(i);
    printf("complete -c pith -n '__pith_has 1' -a %s -d ", command->name);
    fish_text(command->summary);
    putchar('\n');
    cli_part part;
    for (size_t p = 0; command->part && command->part(p, &part); p++) {
      printf("complete -c pith -n '__pith_at %s; and __pith_has 2' -a %s -d ", command->name, part.name);
      fish_text(part.summary);
      putchar('\n');
    }
  }
  cli_commands_present(fish_usage, NULL);
}

/* ------------------------------------------------------------------------------------------------------------------ */

int cli_completion(int argc, char **argv) {
  cli_list shells = {.count = 0};
  const cli_option options[] = {{.name = NULL}};
  const cli_usage usage = {
      "completion", "bash|zsh|fish",
      "Prints a script that completes commands, options, their values and the names of methods. It is "
      "installed with Pith; without that, for the shell that is running:\n"
      "  bash: eval \"$(pith completion bash)\"\n"
      "  zsh:  pith completion zsh >~/.zfunc/_pith   (a folder in $fpath, before compinit)\n"
      "  fish: pith completion fish | source",
      options};
  static const struct {
    const char *name;
    void (*put)(void);
  } known[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, &shells);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  for (size_t i = 0; shells.count == 1 && i < sizeof known / sizeof *known; i++) {
    if (!strcmp(shells.item[0], known[i].name)) {
      known[i].put();
      return CLI_OK;
    }
  }
  return cli_fail(CLI_USAGE, "completion: for which shell? bash, zsh or fish, as in eval \"$(pith completion bash)\"");
}
