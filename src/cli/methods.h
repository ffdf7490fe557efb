/* SPDX-License-Identifier: Apache-2.0 */
/* Methods as people read them: names of kinds and capabilities, ranges of parameters. */
#ifndef PITH_CLI_METHODS_H
#define PITH_CLI_METHODS_H

#include <stddef.h>
#include <stdint.h>

#include <pith/pith.h>

typedef struct cli_cap {
  pith_cap cap;
  const char *name, *meaning;
} cli_cap;

extern const cli_cap cli_caps[];
extern const size_t cli_cap_count;

const char *cli_kind_name(pith_kind kind);

/* "FIXED CHUNKED" */
const char *cli_caps_print(uint32_t caps, char *text, size_t size);

/* "1…8", "nearest|stochastic" */
const char *cli_range_print(const pith_param *param, char *text, size_t size);

/* Whether the method came from a plug-in; its origin is then the file. */
int cli_method_is_foreign(const pith_method *method);

/* Whether there is a method of exactly that name. */
int cli_method_exists(const char *name);

#endif
