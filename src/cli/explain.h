/* SPDX-License-Identifier: Apache-2.0 */
/* What a spec means, in words: its stages and parameters, what travels, how ranks are joined, what it keeps, when to
 * use it. */
#ifndef PITH_CLI_EXPLAIN_H
#define PITH_CLI_EXPLAIN_H

#include <pith/pith.h>

#include "cli/base/json.h"

/* Explains a spec, an adaptive spec or rules on standard output. Returns an exit code after saying what is wrong. */
int cli_explain(const char *text);

/* Facts about one codec as lines "what  …", for the page of a method too. */
void cli_explain_codec(const pith_codec *codec);

/* A spec as members of a JSON object. Returns an exit code after saying what is wrong. */
int cli_explain_json(cli_json *json, const char *spec);

/* Bits per value of normally distributed values, a number that sizes of sparse payloads depend on too; 0 if they
 * cannot be encoded. */
double cli_typical_bits(const pith_codec *codec);

#endif
