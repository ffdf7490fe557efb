/* SPDX-License-Identifier: Apache-2.0 */
/* The specs that a profile measures for an adaptive spec. */
#include <stdio.h>
#include <string.h>

#include "adapt/adapt.h"

static int is_listed(const char *list, const char *spec) {
  size_t size = strlen(spec);
  for (const char *at = list; at; at = strchr(at, ';')) {
    at += *at == ';';
    if (!strncmp(at, spec, size) && (at[size] == ';' || !at[size])) {
      return 1;
    }
  }
  return 0;
}

static pith_status add(char *text, size_t size, const char *spec) {
  size_t used = strlen(text);
  if (!*spec || is_listed(text, spec)) {
    return PITH_OK;
  }
  PITH_REQUIRE(used + strlen(spec) + 2 <= size, PITH_ERR_SPEC, "there are too many candidates");
  snprintf(text + used, size - used, "%s%s", used ? ";" : "", spec);
  return PITH_OK;
}

pith_status pith__adapt_leaves_out(const pith_adapt_options *o, const char *spec, int *left_out) {
  pith_codec *codec;
  PITH_TRY(pith_codec_create(spec, &codec));
  *left_out = !o->delayed && pith__codec_delays(codec);
  pith_codec_destroy(codec);
  return PITH_OK;
}

/* Whether a spec can serve so many ranks. */
static pith_status admits(const char *spec, int ranks, int *good) {
  pith_codec *codec;
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.ranks = (uint32_t)ranks;
  PITH_TRY(pith_codec_create(spec, &codec));
  *good = !codec->ops->admit || codec->ops->admit(codec->args, &ctx) == PITH_OK;
  pith_codec_destroy(codec);
  return PITH_OK;
}

static pith_status drop_refused(const pith_adapt_options *o, char *text, int ranks) {
  char *to = text;
  for (char *at = text, *end; *at; at = end) {
    size_t length = strcspn(at, ";");
    char spec[PITH_SPEC_MAX];
    int good, left_out;
    end = at + length + (at[length] == ';');
    snprintf(spec, sizeof spec, "%.*s", (int)length, at);
    PITH_TRY(admits(spec, ranks, &good));
    PITH_TRY(pith__adapt_leaves_out(o, spec, &left_out));
    if (good && !left_out) {
      if (to > text) {
        *to++ = ';';
      }
      memcpy(to, spec, length);
      to += length;
    }
  }
  *to = 0;
  return PITH_OK;
}

pith_status pith__adapt_candidates(const pith_adapt_options *o, int ranks, char *text, size_t size) {
  *text = 0;
  if (o->kind == PITH_ADAPT_ACCORDION) {
    PITH_TRY(add(text, size, o->spec));
  } else {
    PITH_TRY(pith_plan_candidates(o->kind == PITH_ADAPT_AUTO ? PITH_MIX : o->spec, text, size));
    PITH_TRY(drop_refused(o, text, ranks));
  }
  PITH_TRY(add(text, size, PITH_UNCOMPRESSED));
  PITH_TRY(add(text, size, o->budget));
  return add(text, size, o->critical);
}
