/* Reads argv against a table of options. */
#include "cli/options.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/nearest.h"

static const char units[] = "KMG";

/* Digits alone: strtoull would also take signs and blanks. Returns what follows, or NULL. */
static const char *parse_digits(const char *text, size_t *number) {
  if (*text < '0' || *text > '9') {
    return NULL;
  }
  char *end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno || value > SIZE_MAX) {
    return NULL;
  }
  *number = (size_t)value;
  return end;
}

int cli_size_parse(const char *text, size_t *size) {
  size_t number;
  const char *end = parse_digits(text, &number);
  if (!end) {
    return 0;
  }
  size_t shift = 0;
  for (size_t i = 0; units[i] && *end; i++) {
    if ((*end & ~0x20) == units[i]) {
      shift = 10 * (i + 1);
      end++;
      break;
    }
  }
  if (*end || number > SIZE_MAX >> shift) {
    return 0;
  }
  *size = number << shift;
  return 1;
}

const char *cli_size_print(size_t size, char *text) {
  int unit = -1;
  while (unit + 1 < (int)strlen(units) && size && size % 1024 == 0) {
    size /= 1024;
    unit++;
  }
  snprintf(text, 24, "%zu%.1s", size, unit < 0 ? "" : units + unit);
  return text;
}

static int parse_choice(const char *words, const char *text, int *choice) {
  size_t length = strlen(text);
  for (int i = 0; *words; i++) {
    size_t word = strcspn(words, "|");
    if (word == length && !memcmp(words, text, word)) {
      *choice = i;
      return 1;
    }
    words += word + (words[word] == '|');
  }
  return 0;
}

static int list_append(cli_list *list, const char *text) {
  if (list->count == CLI_LIST_MAX) {
    return 0;
  }
  list->item[list->count++] = text;
  return 1;
}

/* Stores the value of an option; returns 0 if it is not of the option's type. */
static int store(const cli_option *option, const char *text) {
  switch (option->type) {
    case CLI_FLAG:
      *(int *)option->target = 1;
      return 1;
    case CLI_COUNT: {
      const char *end = parse_digits(text, option->target);
      return end && !*end;
    }
    case CLI_SIZE:
      return cli_size_parse(text, option->target);
    case CLI_TEXT:
      *(const char **)option->target = text;
      return 1;
    case CLI_CHOICE:
      return parse_choice(option->value, text, option->target);
    case CLI_LIST:
      return list_append(option->target, text);
  }
  return 0;
}

static const cli_option *find(const cli_option *options, const char *name, size_t length) {
  for (; options->name; options++) {
    if (strlen(options->name) == length && !memcmp(options->name, name, length)) {
      return options;
    }
  }
  return NULL;
}

static void print_usage(const cli_usage *usage) {
  printf("usage: pith %s [options]%s%s\n\n%s\n\n", usage->command, usage->rest ? " " : "",
         usage->rest ? usage->rest : "", usage->about);
  for (const cli_option *option = usage->options; option->name; option++) {
    char left[80];
    snprintf(left, sizeof left, "%s %s", option->name, option->value ? option->value : "");
    printf("  %-36s %s\n", left, option->help);
  }
  printf("  %-36s %s\n", "--help", "this page");
}

static cli_parsed unknown(const cli_usage *usage, const char *name) {
  const char *nearest = NULL;
  for (const cli_option *option = usage->options; option->name; option++) {
    cli_nearest(name, option->name, &nearest);
  }
  if (nearest && strlen(name) > 2) {
    cli_fail(CLI_USAGE, "%s: no option %s; did you mean %s?", usage->command, name, nearest);
  } else {
    cli_fail(CLI_USAGE, "%s: no option %s; see \"pith %s --help\"", usage->command, name, usage->command);
  }
  return CLI_PARSED_BAD;
}

/* One option at argv[*at]; its value is the rest after "=", or the next argument. Moves *at past what it used. */
static cli_parsed parse_option(const cli_usage *usage, char **argv, int *at) {
  const char *text = argv[*at], *equals = strchr(text, '=');
  const cli_option *option = find(usage->options, text, equals ? (size_t)(equals - text) : strlen(text));
  if (!option) {
    return unknown(usage, text);
  }
  *at += 1;
  const char *value = equals ? equals + 1 : NULL;
  if (option->type == CLI_FLAG && value) {
    cli_fail(CLI_USAGE, "%s: %s takes no value", usage->command, option->name);
    return CLI_PARSED_BAD;
  }
  if (option->type != CLI_FLAG && !value) {
    value = argv[*at];
    if (!value) {
      cli_fail(CLI_USAGE, "%s: %s needs a value: %s", usage->command, option->name, option->value);
      return CLI_PARSED_BAD;
    }
    *at += 1;
  }
  if (!store(option, value)) {
    cli_fail(CLI_USAGE, "%s: %s %s: expected %s", usage->command, option->name, value, option->value);
    return CLI_PARSED_BAD;
  }
  return CLI_PARSED;
}

static cli_parsed take_rest(const cli_usage *usage, const char *text, cli_list *rest) {
  if (!usage->rest || !list_append(rest, text)) {
    cli_fail(CLI_USAGE, "%s: unexpected argument \"%s\"", usage->command, text);
    return CLI_PARSED_BAD;
  }
  return CLI_PARSED;
}

cli_parsed cli_options_parse(const cli_usage *usage, int argc, char **argv, cli_list *rest) {
  for (int at = 0; at < argc;) {
    if (!strcmp(argv[at], "--help") || !strcmp(argv[at], "-h")) {
      print_usage(usage);
      return CLI_PARSED_HELP;
    }
    cli_parsed parsed =
        argv[at][0] == '-' && argv[at][1] ? parse_option(usage, argv, &at) : take_rest(usage, argv[at++], rest);
    if (parsed != CLI_PARSED) {
      return parsed;
    }
  }
  return CLI_PARSED;
}

cli_parsed cli_options_parse_leading(const cli_usage *usage, int argc, char **argv, int *rest) {
  int end = 0;
  while (end < argc && argv[end][0] == '-' && argv[end][1] && strcmp(argv[end], "--") != 0) {
    if (!strcmp(argv[end], "--help") || !strcmp(argv[end], "-h")) {
      print_usage(usage);
      return CLI_PARSED_HELP;
    }
    if (parse_option(usage, argv, &end) != CLI_PARSED) {
      return CLI_PARSED_BAD;
    }
  }
  *rest = end + (end < argc && !strcmp(argv[end], "--"));
  return CLI_PARSED;
}
