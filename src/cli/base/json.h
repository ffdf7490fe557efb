/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON as it goes, without building a tree. Every call takes the key of the value, or NULL inside an array and
 * for the outermost value. What comes out is valid whatever goes in: strings are escaped, bytes that are not UTF-8
 * become U+FFFD, numbers that JSON lacks (NaN, Inf) become null.
 */
#ifndef PITH_CLI_JSON_H
#define PITH_CLI_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef struct cli_json {
  FILE *file;
  int depth;
  int filled; /* whether the innermost object or array has an entry yet */
} cli_json;

void cli_json_object(cli_json *json, const char *key);
void cli_json_object_end(cli_json *json);
void cli_json_array(cli_json *json, const char *key);
void cli_json_array_end(cli_json *json);
void cli_json_string(cli_json *json, const char *key, const char *value); /* NULL becomes null */
void cli_json_number(cli_json *json, const char *key, double value);
void cli_json_count(cli_json *json, const char *key, uint64_t value);
void cli_json_bool(cli_json *json, const char *key, int value);

#endif
