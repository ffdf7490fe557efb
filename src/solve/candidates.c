/* Which strengths of a method are worth trying beside the one that was asked for. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "profile/profile.h"

/* A spec around the value of its last stage: "ef/topk:" 0.01 ",values=fp16". */
typedef struct frame {
  char spec[PITH_SPEC_MAX];
  size_t before, after;
} frame;

typedef struct list {
  char *text;
  size_t size, used;
  int full;
} list;

static void add(list *l, const frame *f, const char *value) {
  int size = snprintf(l->text + l->used, l->size - l->used, "%s%.*s%s%s", l->used ? ";" : "", (int)f->before, f->spec,
                      value, f->spec + f->after);
  if (size < 0 || (size_t)size >= l->size - l->used) {
    l->full = 1;
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

/* Smaller buckets cost a little and lose less where magnitudes differ from row to row: a finer ladder than bits alone.
 * Only where the spec does not fix the bucket. */
static void add_bits(list *l, const frame *f, size_t bits, double most, int has_buckets) {
  static const char *const buckets[] = {"", ",bucket=128", ",bucket=256", ",bucket=1024"};
  for (size_t b = pith__most(1, bits / 4); b <= pith__least((size_t)most, 2 * bits); b++) {
    for (size_t k = 0; k < (has_buckets ? sizeof buckets / sizeof *buckets : 1); k++) {
      char text[40];
      snprintf(text, sizeof text, "%zu%s", b, buckets[k]);
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
  for (size_t r = step; r <= pith__least(4 * rank, 256); r += step) {
    add_count(l, f, r);
  }
}

/* The first parameter of a method: its strength, if it is one. NULL: it has none. */
static const pith_param *strength_of(pith_text name) {
  pith_method method = PITH_METHOD_INIT;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (method.kind != PITH_KIND_MEMORY && method.bits && pith__text_is(name, method.name)) {
      return method.params && method.params[0].key ? &method.params[0] : NULL;
    }
  }
  return NULL;
}

/* What the strength means decides; a spec that has none of these is its only candidate. */
static void add_around_codec(list *l, const pith_codec *codec) {
  frame f = frame_of(codec);
  const pith_param *strength = strength_of(pith__family_of(codec));
  const char *key = strength && f.before < f.after ? strength->key : "";
  double value = strtod(f.spec + f.before, NULL);
  if (!strcmp(key, "bits")) {
    add_bits(l, &f, (size_t)value, strength->max, pith__codec_is(codec, "q") && !f.spec[f.after]);
  } else if (!strcmp(key, "ratio")) {
    add_ratios(l, &f, value);
  } else if (!strcmp(key, "rank")) {
    add_ranks(l, &f, (size_t)value);
  } else {
    f = (frame){.before = 0};
    add(l, &f, codec->spec);
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
  list l = {text, size, 0, 0};
  if (!strcmp(spec, "mix")) {
    add(&l, &(frame){.before = 0}, "none;bf16;eden:1;eden:2;eden:3;eden:4");
    PITH_TRY(add_around(&l, "q:4"));
    PITH_TRY(add_around(&l, "ef/topk:0.01"));
    PITH_TRY(add_around(&l, "ef/powersgd:4"));
  } else {
    PITH_TRY(add_around(&l, spec));
  }
  PITH_REQUIRE(!l.full, PITH_ERR_BUFFER, "the candidates need more than %zu characters", size);
  return PITH_OK;
}
