/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that have parts, as `pith bench` has. */
#include <stdio.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/base/nearest.h"
#include "cli/base/page.h"

int cli_parts_help(const char *name, cli_part_lister *list, const char *about) {
  cli_part part;
  printf("usage: pith %s PART [options]\n\n", name);
  cli_paragraphs(stdout, about);
  putchar('\n');
  for (size_t i = 0; list(i, &part); i++) {
    printf("  %-15s %s\n", part.name, part.summary);
  }
  printf("\n\"pith %s PART --help\" lists the options of each.\n", name);
  return CLI_OK;
}

int cli_parts_unknown(const char *name, cli_part_lister *list, const char *given) {
  const char *nearest = NULL;
  char names[256] = "";
  cli_part part;
  for (size_t i = 0; list(i, &part); i++) {
    size_t used = strlen(names);
    snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", part.name);
    if (given) {
      cli_nearest(given, part.name, &nearest);
    }
  }
  if (!given) {
    return cli_fail(CLI_USAGE, "%s: which part? There are: %s", name, names);
  }
  return nearest ? cli_fail(CLI_USAGE, "%s: there is no \"%s\"; did you mean %s?", name, given, nearest)
                 : cli_fail(CLI_USAGE, "%s: there is no \"%s\"; there are: %s", name, given, names);
}
