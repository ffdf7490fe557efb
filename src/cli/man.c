/* SPDX-License-Identifier: Apache-2.0 */
/* `pith man`: the manual page in troff, written from the tables of commands, options, methods and variables. */
#include <stdio.h>
#include <string.h>

#include <pith/pith.h>

#include "cli/commands.h"
#include "cli/variables.h"

enum { SIGNATURE_SIZE = 4096, TITLE_SIZE = 128 };

/* The options that were last written, and of which command: commands with the same ones refer to it. */
typedef struct manual {
  char signature[SIGNATURE_SIZE];
  char title[TITLE_SIZE];
} manual;

/* Text as it is: a backslash or a dot at the start of a line means something to troff. */
static void put(const char *text, size_t size) {
  for (size_t i = 0; i < size; i++) {
    int at_start = i == 0 || text[i - 1] == '\n';
    if (at_start && (text[i] == '.' || text[i] == '\'')) {
      fputs("\\&", stdout);
    }
    if (text[i] == '\\') {
      fputs("\\e", stdout);
    } else if (text[i] == '-') {
      fputs("\\-", stdout);
    } else {
      putchar(text[i]);
    }
  }
}

static void put_text(const char *text) { put(text, strlen(text)); }

/* As cli_paragraphs() reads them: empty lines separate, lines that begin with a blank are examples. */
static void put_paragraphs(const char *text, size_t size) {
  const char *end = text + size;
  while (text < end) {
    size_t line = strcspn(text, "\n");
    if (line == 0) {
      puts(".PP");
    } else if (*text == ' ') {
      fputs(".PP\n.EX\n", stdout);
      put(text, line);
      fputs("\n.EE\n", stdout);
    } else {
      put(text, line);
      putchar('\n');
    }
    text += line + (text[line] == '\n');
  }
}

static void put_option(const char *name, const char *value, const char *help) {
  fputs(".TP\n\\fB", stdout);
  put_text(name);
  fputs("\\fR", stdout);
  if (value) {
    fputs(" \\fI", stdout);
    put_text(value);
    fputs("\\fR", stdout);
  }
  putchar('\n');
  put_text(help);
  putchar('\n');
}

static void sign(const cli_usage *usage, char *text) {
  size_t used = 0;
  text[0] = 0;
  for (const cli_option *option = usage->options; option->name && used < SIGNATURE_SIZE; option++) {
    used += (size_t)snprintf(text + used, SIGNATURE_SIZE - used, "%s %s;", option->name, option->help);
  }
}

static void put_usage(const cli_usage *usage, void *context) {
  manual *m = context;
  char signature[SIGNATURE_SIZE];
  sign(usage, signature);
  fputs(".SS \"pith ", stdout);
  put_text(usage->command);
  printf(" [options]%s", usage->rest ? " " : "");
  put_text(usage->rest ? usage->rest : "");
  puts("\"");
  if (*signature && !strcmp(signature, m->signature)) {
    const char *end = strstr(usage->about, "\n\n");
    put_paragraphs(usage->about, end ? (size_t)(end - usage->about) : strlen(usage->about));
    printf(".PP\nThe options are those of \\fBpith %s\\fR.\n", m->title);
    return;
  }
  put_paragraphs(usage->about, strlen(usage->about));
  for (const cli_option *option = usage->options; option->name; option++) {
    put_option(option->name, option->value, option->help);
  }
  snprintf(m->signature, sizeof m->signature, "%s", signature);
  snprintf(m->title, sizeof m->title, "%s", usage->command);
}

static void put_head(void) {
  printf(
      ".\\\" -*- coding: utf-8 -*-\n"
      ".TH PITH 1 \"\" \"pith %s\" \"User Commands\"\n"
      ".SH NAME\n"
      "pith \\- compressed communication for distributed deep learning\n"
      ".SH SYNOPSIS\n"
      ".B pith\n"
      ".I COMMAND\n"
      "[options]\n"
      ".SH DESCRIPTION\n",
      pith_version());
  put_text(
      "Lists and measures compression methods, starts the ranks of a job, emulates slow networks, chooses a method "
      "for each layer of a model, and shows what this machine can do. Values of options are given as -n 4, -n4 or "
      "--n=4, and as --codec q:4 or --codec=q:4; -- ends the options. A size is a number of bytes, as 4K, 64M or "
      "1G.\n");
  puts(".SH COMMANDS");
}

static void put_methods(void) {
  pith_method method = PITH_METHOD_INIT;
  puts(".SH SPECS");
  put_text(
      "A spec names a method: memory/transform/codec, the first two optional, as q:4, ef/topk:0.01,values=fp16 or "
      "ef/hadamard/q:2. \"pith codecs SPEC\" explains one.\n");
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (method.wire_id < 0x8000) { /* plug-ins are not of this page */
      put_option(method.name, NULL, method.summary);
    }
  }
  for (size_t i = 0; pith_adaptive_get(i, &method) == PITH_OK; i++) {
    put_option(method.name, NULL, method.summary);
  }
}

int cli_man(int argc, char **argv) {
  const cli_option options[] = {{.name = NULL}};
  const cli_usage usage = {"man", NULL,
                           "Prints the manual page. If Pith is not installed, this shows it:\n"
                           "  pith man | man -l -",
                           options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, NULL);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  manual m = {.signature = ""};
  const cli_variable *variable;
  put_head();
  cli_commands_present(put_usage, &m);
  put_methods();
  puts(".SH ENVIRONMENT");
  for (size_t i = 0; (variable = cli_variable_get(i)); i++) {
    put_option(variable->name, NULL, variable->meaning);
  }
  puts(".SH \"EXIT STATUS\"");
  put_text("0: done. 1: failed. 2: wrong usage. run and lab end with the exit code of the rank that failed first.\n");
  return CLI_OK;
}
