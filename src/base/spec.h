/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spec grammar, as text: which characters make a stage, a key, a value. What the names mean is the registry's
 * business. docs/format.md has the grammar.
 */
#ifndef PITH_BASE_SPEC_H
#define PITH_BASE_SPEC_H

#include "base/status.h"

#define PITH_SPEC_MAX 512 /* longest spec, canonical or not, with its final zero */
#define PITH_STAGES_MAX 4
#define PITH_SPEC_ENCODE "encode" /* a key of every spec's last stage, which no method has a parameter of */

/* A piece of a string that the caller owns. */
typedef struct pith_text {
  const char *at;
  size_t size;
} pith_text;

typedef struct pith_spec_stage {
  pith_text name, value; /* value.size is 0 where none was given */
  size_t pairs;
  struct {
    pith_text key, value;
  } pair[PITH_PARAMS_MAX + 1];
} pith_spec_stage;

typedef struct pith_spec {
  size_t stages;
  pith_spec_stage stage[PITH_STAGES_MAX];
} pith_spec;

/* Splits a text into stages; the pieces point into it. */
pith_status pith__spec_parse(const char *text, pith_spec *spec);

/* Reads the values of a stage against a parameter list, filling in defaults. `values` has PITH_PARAMS_MAX places. */
pith_status pith__spec_bind(const pith_spec_stage *stage, const pith_param *params, pith_value *values);

/* Whether a method's name and parameter list keep to the rules: for tables that come from outside. */
pith_status pith__spec_check(const char *method, const pith_param *params);

/* Prints a stage in canonical form to text[0…size): defaults left out, but the first parameter always there where it is
 * the strength of the method (q:4, topk:0.01) and not a bucket, a block, a choice or a factor of one.
 * Returns the length, or SIZE_MAX if it does not fit. */
size_t pith__spec_print(const char *name, const pith_param *params, const pith_value *values, char *text, size_t size);

/* Prints one value as in a spec; same return. */
size_t pith__spec_print_value(const pith_param *param, pith_value value, char *text, size_t size);

/* ---- Words: text.c ---- */

int pith__text_is(pith_text text, const char *word);
int pith__text_same(pith_text a, pith_text b);

/* The distance of two words in single edits, for "did you mean". */
size_t pith__text_distance(pith_text a, const char *b);

/* Replaces `best` by `candidate` if that is nearer to `text` and near enough to be meant. */
void pith__text_nearest(pith_text text, const char *candidate, const char **best);

/* Whether a layer name matches a pattern of literal characters, * and ?. Linear in time but for *. */
int pith__glob(pith_text pattern, const char *name);

#endif
