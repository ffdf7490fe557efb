/* SPDX-License-Identifier: Apache-2.0 */
/* The environment variables that the library, the command and the Python package read. */
#ifndef PITH_CLI_VARIABLES_H
#define PITH_CLI_VARIABLES_H

#include <stddef.h>

typedef struct cli_variable {
  const char *name, *meaning;
} cli_variable;

/* The variable at that place, in alphabetical order; NULL beyond the last. */
const cli_variable *cli_variable_get(size_t index);

/* Its value as it may be shown, or NULL: a secret is only said to be set. */
const char *cli_variable_value(const cli_variable *variable);

/* Whether the value is one that can be obeyed. If not, says why in text. */
int cli_variable_check(const cli_variable *variable, char *text, size_t size);

#endif
