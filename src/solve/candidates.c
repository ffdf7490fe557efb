/* SPDX-License-Identifier: Apache-2.0 */
/* Which strengths of a method are worth trying beside the one that was asked for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "codec/shortlist.h"
#include "profile/profile.h"
#include "solve/methods.h"

/* A spec around the value of its last stage: "ef/topk:" 0.01 ",values=fp16". */
typedef struct frame {
  char spec[PITH_SPEC_MAX];
  size_t before, after;
} frame;

enum { POWERS_MOST = 16 };

typedef struct list {
  char *text;
  size_t size, used;
  pith_status status; /* of the first that could not be added */
} list;

static int is_listed(const list *l, const char *spec) {
  size_t size = strlen(spec);
  for (const char *at = l->used ? l->text : NULL; at; at = strchr(at, ';')) {
    at += *at == ';';
    if (!strncmp(at, spec, size) && (at[size] == ';' || !at[size])) {
      return 1;
    }
  }
  return 0;
}

/* Values that the method does not take are left out: the spec itself is a good one, so nothing else can be wrong. */
static void add(list *l, const frame *f, const char *value) {
  char spec[2 * PITH_SPEC_MAX];
  pith_codec *codec;
  snprintf(spec, sizeof spec, "%.*s%s%s", (int)f->before, f->spec, value, f->spec + f->after);
  pith_status status = l->status == PITH_OK ? pith_codec_create(spec, &codec) : l->status;
  if (status != PITH_OK) {
    l->status = status == PITH_ERR_MEMORY || l->status != PITH_OK ? status : PITH_OK;
    return;
  }
  pith_codec_destroy(codec);
  if (is_listed(l, spec)) {
    return;
  }
  int size = snprintf(l->text + l->used, l->size - l->used, "%s%s", l->used ? ";" : "", spec);
  if (size < 0 || (size_t)size >= l->size - l->used) {
    l->status = pith_fail(PITH_ERR_BUFFER, "the candidates need more than %zu characters", l->size);
  } else {
    l->used += (size_t)size;
  }
}

static frame frame_of(const pith_codec *codec) {
  frame f = {.before = 0};
  memcpy(f.spec, codec->spec, sizeof f.spec);
  char *stage = strrchr(f.spec, '/');
  stage = stage ? stage + 1 : f.spec;
  f.before = (size_t)(stage - f.spec) + strcspn(stage, ":,");
  f.after = (size_t)(stage - f.spec) + strcspn(stage, ",");
  f.before += f.spec[f.before] == ':';
  return f;
}

static void add_count(list *l, const frame *f, size_t value) {
  char text[24];
  snprintf(text, sizeof text, "%zu", value);
  add(l, f, text);
}

/* The codec's variants only where the spec does not fix further parameters itself. */
static void add_bits(list *l, const frame *f, const pith_codec *codec, size_t bits) {
  static const char *const as_it_is[] = {"", NULL};
  const char *const *variants = codec->traits->variants && !f->spec[f->after] ? codec->traits->variants : as_it_is;
  for (size_t b = pith__most(1, bits / 4); b <= 2 * bits; b++) {
    for (const char *const *variant = variants; *variant; variant++) {
      char text[64];
      snprintf(text, sizeof text, "%zu%s", b, *variant);
      add(l, f, text);
    }
  }
}

/* Ten to a decade, a tenth to ten times the ratio. */
static void add_ratios(list *l, const frame *f, double ratio) {
  for (int i = -10; i <= 10; i++) {
    double value = ratio * pow(10, i / 10.0);
    char text[24];
    snprintf(text, sizeof text, "%.3g", value);
    if (value < 0.995 && value > 1e-8) {
      add(l, f, text);
    }
  }
}

static void add_ranks(list *l, const frame *f, size_t rank) {
  size_t step = pith__most(1, rank / 4);
  for (size_t r = step; r <= 4 * rank; r += step) {
    add_count(l, f, r);
  }
}

/* 2^k of something, less `less`, for every number of bits that the method takes; and the number that was asked for. */
static void add_powers(list *l, const frame *f, size_t value, size_t less) {
  for (size_t k = 1; k <= POWERS_MOST; k++) {
    size_t power = ((size_t)1 << k) - less;
    if (value < power && value > power / 2) {
      add_count(l, f, value);
    }
    add_count(l, f, power);
  }
}

/* Four to an octave, a fourth to four times the size. */
static void add_magnitudes(list *l, const frame *f, double size) {
  for (int i = -8; i <= 8; i++) {
    char text[24];
    snprintf(text, sizeof text, i ? "%.3g" : "%.9g", size * exp2(i / 4.0));
    add(l, f, text);
  }
}

/* In place of the last stage. */
static void add_beside(list *l, const frame *f, const pith_codec *codec) {
  const char *stage = strrchr(f->spec, '/');
  frame last = *f;
  last.before = stage ? (size_t)(stage - f->spec) + 1 : 0;
  last.after = strlen(f->spec);
  for (const char *const *other = codec->traits->beside; other && *other; other++) {
    add(l, &last, *other);
  }
}

double pith__strength_of(const pith_codec *codec) {
  frame f = frame_of(codec);
  double value = f.before < f.after && codec->strength != PITH_STRENGTH_NONE ? strtod(f.spec + f.before, NULL) : 0;
  return codec->strength == PITH_STRENGTH_MAGNITUDE && value > 0 ? 1 / value : value;
}

/* What the strength means decides; beside a spec that has none there are those that its codec names. */
static void add_around_codec(list *l, const pith_codec *codec) {
  frame f = frame_of(codec);
  double value = strtod(f.spec + f.before, NULL);
  switch (f.before < f.after ? codec->strength : PITH_STRENGTH_NONE) {
    case PITH_STRENGTH_BITS:
      add_bits(l, &f, codec, (size_t)value);
      break;
    case PITH_STRENGTH_RATIO:
      add_ratios(l, &f, value);
      break;
    case PITH_STRENGTH_RANK:
      add_ranks(l, &f, (size_t)value);
      break;
    case PITH_STRENGTH_LEVELS:
      add_powers(l, &f, (size_t)value, 1);
      break;
    case PITH_STRENGTH_TABLE:
      add_powers(l, &f, (size_t)value, 0);
      break;
    case PITH_STRENGTH_MAGNITUDE:
      add_magnitudes(l, &f, value);
      break;
    case PITH_STRENGTH_NONE:
      add(l, &(frame){.before = 0}, codec->spec);
      add_beside(l, &f, codec);
      break;
  }
}

static pith_status add_around(list *l, const char *spec) {
  pith_codec *codec;
  PITH_TRY(pith_codec_create(spec, &codec));
  add_around_codec(l, codec);
  pith_codec_destroy(codec);
  return PITH_OK;
}

pith_status pith_plan_candidates(const char *spec, char *text, size_t size) {
  PITH_REQUIRE(spec && text && size, PITH_ERR_ARGUMENT, "pith_plan_candidates: spec or text is NULL");
  list l = {text, size, 0, PITH_OK};
  const char *const alone[] = {spec, NULL}, *const *around = strcmp(spec, PITH_MIX) ? alone : pith__shortlist;
  for (; *around; around++) {
    PITH_TRY(add_around(&l, *around));
    PITH_TRY(l.status);
  }
  return PITH_OK;
}
