/* SPDX-License-Identifier: Apache-2.0 */
/* Reads argv against a table of options. */
#include "cli/base/options.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/base/cli.h"
#include "cli/base/nearest.h"
#include "cli/base/page.h"

enum { LEFT_SIZE = 160, LEFT_MOST = 26 };

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
    case CLI_POSITIVE: {
      size_t number;
      const char *end = parse_digits(text, &number);
      if (!end || *end || !number) {
        return 0;
      }
      *(size_t *)option->target = number;
      return 1;
    }
    case CLI_SIZE: {
      size_t size;
      if (!cli_size_parse(text, &size) || !size) {
        return 0;
      }
      *(size_t *)option->target = size;
      return 1;
    }
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

/* ---- The usage page ---------------------------------------------------------------------------------------------- */

int cli_is_word_list(const char *value) {
  return value && strchr(value, '|') && !strpbrk(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZ[");
}

static const char *left_of(const cli_option *option, char text[LEFT_SIZE]) {
  snprintf(text, LEFT_SIZE, "  %s%s%s", option->name, option->value ? " " : "", option->value ? option->value : "");
  return text;
}

/* Help stands beside its option, or below one that is too long. */
static void print_option(const char *left, size_t width, const char *help) {
  char first[LEFT_SIZE], rest[LEFT_SIZE];
  size_t used = cli_text_width(left);
  snprintf(rest, sizeof rest, "%*s", (int)width + 2, "");
  if (used > width) {
    puts(left);
    snprintf(first, sizeof first, "%s", rest);
  } else {
    snprintf(first, sizeof first, "%s%*s", left, (int)(width + 2 - used), "");
  }
  cli_paragraph(stdout, first, rest, help);
}

static void print_usage(const cli_usage *usage) {
  char left[LEFT_SIZE];
  size_t width = strlen("  --help");
  printf("usage: pith %s [options]%s%s\n\n", usage->command, usage->rest ? " " : "", usage->rest ? usage->rest : "");
  cli_paragraphs(stdout, usage->about);
  putchar('\n');
  for (const cli_option *option = usage->options; option->name; option++) {
    size_t wanted = cli_text_width(left_of(option, left));
    width = wanted > width && wanted <= LEFT_MOST ? wanted : width;
  }
  for (const cli_option *option = usage->options; option->name; option++) {
    print_option(left_of(option, left), width, option->help);
  }
  print_option("  --help", width, "this page");
}

static cli_presenter *presenter;
static void *presenter_context;

void cli_usage_present(cli_presenter *wanted, void *context) {
  presenter = wanted;
  presenter_context = context;
}

static cli_parsed present(const cli_usage *usage) {
  if (presenter) {
    presenter(usage, presenter_context);
  } else {
    print_usage(usage);
  }
  return CLI_PARSED_HELP;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

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

/* Finds the option of an argument, and its value if the argument has one in it, else NULL: -n4, -n=4, --n=4. */
static const cli_option *read_name(const cli_usage *usage, const char *text, const char **value) {
  size_t length = strcspn(text, "=");
  *value = text[length] ? text + length + 1 : NULL;
  const cli_option *option = find(usage->options, text, length);
  if (!option && length == 3 && text[0] == '-' && text[1] == '-') { /* --n is -n */
    option = find(usage->options, text + 1, 2);
  }
  if (!option && text[1] != '-' && (option = find(usage->options, text, 2))) { /* -n4 */
    *value = text + 2;
  }
  return option;
}

/* What a value must be, in words. */
static void say_expected(const cli_usage *usage, const cli_option *option, const char *value) {
  const char *most = option->type == CLI_POSITIVE ? ", a whole number from 1 on"
                     : option->type == CLI_COUNT  ? ", a whole number"
                     : option->type == CLI_SIZE   ? " in bytes, from 1 on, as 8, 4K, 64M or 1G"
                     : option->type == CLI_LIST   ? ", at most 64 times"
                                                  : "";
  cli_fail(CLI_USAGE, "%s: %s %s: expected %s%s", usage->command, option->name, value, option->value, most);
}

/* One option at argv[*at], with its value. Moves *at past what it used. */
static cli_parsed parse_option(const cli_usage *usage, char **argv, int *at) {
  const char *value;
  const cli_option *option = read_name(usage, argv[*at], &value);
  if (!option) {
    return unknown(usage, argv[*at]);
  }
  *at += 1;
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
    say_expected(usage, option, value);
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

static int asks_for_help(const char *text) { return !strcmp(text, "--help") || !strcmp(text, "-h"); }

cli_parsed cli_options_parse(const cli_usage *usage, int argc, char **argv, cli_list *rest) {
  int ended = 0; /* by "--" */
  for (int at = 0; at < argc;) {
    cli_parsed parsed = CLI_PARSED;
    if (ended || argv[at][0] != '-' || !argv[at][1]) {
      parsed = take_rest(usage, argv[at++], rest);
    } else if (!strcmp(argv[at], "--")) {
      ended = 1;
      at++;
    } else if (asks_for_help(argv[at])) {
      parsed = present(usage);
    } else {
      parsed = parse_option(usage, argv, &at);
    }
    if (parsed != CLI_PARSED) {
      return parsed;
    }
  }
  return CLI_PARSED;
}

cli_parsed cli_options_parse_leading(const cli_usage *usage, int argc, char **argv, int *rest) {
  int end = 0;
  while (end < argc && argv[end][0] == '-' && argv[end][1] && strcmp(argv[end], "--") != 0) {
    if (asks_for_help(argv[end])) {
      return present(usage);
    }
    if (parse_option(usage, argv, &end) != CLI_PARSED) {
      return CLI_PARSED_BAD;
    }
  }
  *rest = end + (end < argc && !strcmp(argv[end], "--"));
  return CLI_PARSED;
}

int cli_rate_parse(const char *text, unsigned long long *rate) {
  static const struct {
    const char *name;
    double bits;
  } rates[] = {{"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
  char *end;
  if (*text < '0' || *text > '9') {
    return 0;
  }
  double number = strtod(text, &end);
  for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
    double bits = number * rates[i].bits;
    if (!strcasecmp(end, rates[i].name) && bits >= 8e3 && bits <= 400e9) {
      *rate = (unsigned long long)bits;
      return 1;
    }
  }
  return 0;
}
