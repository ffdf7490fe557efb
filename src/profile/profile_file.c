/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics files: JSON with a line for each layer. docs/planner.md has the format. Numbers are sums over samples,
 * with all digits, so that a file gives the same plan as the profile it was written from, and files of several ranks
 * add up.
 */
#include <stdlib.h>
#include <string.h>

#include "profile/profile.h"
#include "profile/reader.h"
#include "profile/writer.h"

#define VERSION 1
#define LAYERS_MAX 100000
#define NUMBER_MAX 1e200 /* sums of these stay finite */

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void write_sums(pith_writer *w, const char *key, const double *sums, size_t count) {
  pith__write(w, ", \"%s\": [", key);
  for (size_t i = 0; i < count; i++) {
    pith__write(w, i ? ", " : "");
    pith__write_number(w, sums[i]);
  }
  pith__write(w, "]");
}

static void write_layer(pith_writer *w, const pith_profile *p, size_t i) {
  const pith_profiled *l = &p->layer[i];
  const double *sums = pith__sums(p, i);
  double samples = sums[PITH_SUM_SAMPLES];
  pith__write(w, "    {\"name\": ");
  pith__write_string(w, l->name);
  pith__write(w, ", \"shape\": ");
  pith__write_shape(w, l->shape, l->dimensions);
  pith__write(w, ", \"samples\": %.0f, \"skipped\": %.0f", samples, sums[PITH_SUM_SKIPPED]);
  if (samples > 0) {
    pith__write(w, ", \"norm\": ");
    pith__write_number(w, sums[PITH_SUM_NORM]);
    pith__write(w, ", \"top\": ");
    pith__write_number(w, sums[PITH_SUM_TOP]);
    write_sums(w, "bytes", sums + PITH_SUM_BYTES, p->candidates);
    write_sums(w, "errors", pith__sum_errors(p, i), p->candidates);
  }
  pith__write(w, "}%s\n", i + 1 < p->layers ? "," : "");
}

static void write_profile(pith_writer *w, const pith_profile *p) {
  pith__write(w, "{\n  \"pith_statistics\": %d,\n  \"candidates\": [", VERSION);
  for (size_t c = 0; c < p->candidates; c++) {
    pith__write(w, c ? ", " : "");
    pith__write_string(w, p->codec[c]->spec);
  }
  pith__write(w, "],\n  \"layers\": [\n");
  for (size_t i = 0; i < p->layers; i++) {
    write_layer(w, p, i);
  }
  pith__write(w, "  ]\n}\n");
}

pith_status pith_profile_save(const pith_profile *p, const char *path) {
  PITH_REQUIRE(p && path, PITH_ERR_ARGUMENT, "pith_profile_save: profile or path is NULL");
  pith_writer w = {.text = NULL};
  char *text = NULL;
  write_profile(&w, p);
  PITH_TRY(pith__writer_close(&w, &text));
  pith_status status = pith__write_file(path, text);
  free(text);
  return status;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

/* A layer as the file has it. */
typedef struct entry {
  char *name;
  size_t shape[PITH_SHAPE_MAX], dimensions, samples, skipped;
  double norm, top, *numbers; /* bytes, then errors: of each candidate */
  unsigned seen;
} entry;

typedef struct draft {
  pith_reader r;
  pith_writer specs; /* candidates while they are read */
  char *candidates;  /* with ';' between them */
  size_t candidate_count, count, capacity;
  entry *layer;
} draft;

static void draft_fini(draft *d) {
  for (size_t i = 0; i < d->count; i++) {
    free(d->layer[i].name);
    free(d->layer[i].numbers);
  }
  free(d->layer);
  free(d->candidates);
}

static pith_status add_candidate(void *self, size_t index) {
  draft *d = self;
  char *spec = NULL;
  PITH_TRY(pith__read_string(&d->r, &spec));
  int good = *spec && !strchr(spec, ';');
  pith__write(&d->specs, "%s%s", index ? ";" : "", spec);
  d->candidate_count = index + 1;
  free(spec);
  return good && d->candidate_count <= PITH_CANDIDATES_MAX ? PITH_OK
                                                           : pith__reader_fail(&d->r, "a candidate that cannot be", "");
}

static pith_status read_candidates(draft *d) {
  pith_status status = pith__read_array(&d->r, add_candidate, d);
  pith__write(&d->specs, "%s", "");
  if (status != PITH_OK) {
    free(d->specs.text);
    return status;
  }
  return pith__writer_close(&d->specs, &d->candidates);
}

typedef struct numbers_target {
  draft *d;
  double *numbers;
  size_t count;
} numbers_target;

static pith_status read_number(void *self, size_t index) {
  numbers_target *target = self;
  draft *d = target->d;
  if (index == d->candidate_count) {
    return pith__reader_fail(&d->r, "not as many numbers as there are candidates", "");
  }
  double *number = &target->numbers[index];
  target->count = index + 1;
  PITH_TRY(pith__read_number(&d->r, number));
  int good = *number >= 0 && *number <= NUMBER_MAX;
  return good ? PITH_OK : pith__reader_fail(&d->r, "bytes and errors are not negative, and not beyond all measure", "");
}

/* One number for each candidate, none of them negative. */
static pith_status read_numbers(draft *d, double *numbers) {
  numbers_target target = {.d = d, .numbers = numbers};
  PITH_TRY(pith__read_array(&d->r, read_number, &target));
  if (target.count != d->candidate_count) {
    return pith__reader_fail(&d->r, "not as many numbers as there are candidates", "");
  }
  return PITH_OK;
}

enum { NAME, SHAPE, SAMPLES, SKIPPED, NORM, TOP, BYTES, ERRORS };
#define BIT(key) (1u << (key))
#define MEASURED (BIT(NORM) | BIT(TOP) | BIT(BYTES) | BIT(ERRORS))

static pith_status read_field(void *self, unsigned key) {
  draft *d = self;
  entry *e = &d->layer[d->count - 1];
  switch (key) {
    case NAME:
      return pith__read_string(&d->r, &e->name);
    case SHAPE:
      return pith__read_shape(&d->r, e->shape, PITH_SHAPE_MAX, &e->dimensions);
    case SAMPLES:
      return pith__read_count(&d->r, &e->samples);
    case SKIPPED:
      return pith__read_count(&d->r, &e->skipped);
    case NORM:
      return pith__read_number(&d->r, &e->norm);
    case TOP:
      return pith__read_number(&d->r, &e->top);
    case BYTES:
      return read_numbers(d, e->numbers);
    default:
      return read_numbers(d, e->numbers + d->candidate_count);
  }
}

static pith_status check_entry(const draft *d, const entry *e) {
  unsigned needed = BIT(NAME) | BIT(SHAPE) | BIT(SAMPLES);
  if ((e->seen & needed) != needed || (e->samples ? (e->seen & MEASURED) != MEASURED : (e->seen & MEASURED) != 0)) {
    return pith__reader_fail(&d->r, "a layer lacks a field, or has numbers without samples: ", e->name ? e->name : "");
  }
  int good = e->norm >= 0 && e->top >= 0 && e->norm <= NUMBER_MAX && e->top <= NUMBER_MAX;
  return good ? PITH_OK : pith__reader_fail(&d->r, "a norm that cannot be: ", e->name);
}

static pith_status grow(draft *d) {
  if (d->count < d->capacity) {
    return PITH_OK;
  }
  size_t capacity = 2 * d->capacity + 16;
  entry *grown = realloc(d->layer, capacity * sizeof *grown);
  PITH_REQUIRE(grown, PITH_ERR_MEMORY, "no memory for %zu layers", capacity);
  d->layer = grown;
  d->capacity = capacity;
  return PITH_OK;
}

static pith_status read_layer(void *self, size_t index) {
  static const char *const keys[] = {"name", "shape", "samples", "skipped", "norm", "top", "bytes", "errors", NULL};
  draft *d = self;
  PITH_REQUIRE(index < LAYERS_MAX, PITH_ERR_RANGE, "the statistics have more than %d layers", LAYERS_MAX);
  PITH_TRY(grow(d));
  entry *e = &d->layer[d->count++];
  *e = (entry){.numbers = calloc(2 * d->candidate_count + 1, sizeof *e->numbers)};
  PITH_REQUIRE(e->numbers, PITH_ERR_MEMORY, "no memory for a layer");
  PITH_TRY(pith__read_object(&d->r, keys, read_field, d, &e->seen));
  return check_entry(d, e);
}

static pith_status read_layers(draft *d) {
  return d->candidates ? pith__read_array(&d->r, read_layer, d)
                       : pith__reader_fail(&d->r, "candidates come before layers", "");
}

static pith_status read_head(void *self, unsigned key) {
  draft *d = self;
  size_t version = 0;
  if (key == 1) {
    return read_candidates(d);
  }
  if (key == 2) {
    return read_layers(d);
  }
  PITH_TRY(pith__read_count(&d->r, &version));
  PITH_REQUIRE(version == VERSION, PITH_ERR_CORRUPT, "statistics of version %zu; this library reads version %d",
               version, VERSION);
  return PITH_OK;
}

static pith_status read_draft(draft *d) {
  static const char *const keys[] = {"pith_statistics", "candidates", "layers", NULL};
  unsigned seen = 0;
  PITH_TRY(pith__read_object(&d->r, keys, read_head, d, &seen));
  PITH_REQUIRE(seen == 7, PITH_ERR_CORRUPT, "not a statistics file: it needs pith_statistics, candidates and layers");
  return pith__read_end(&d->r);
}

static void fill(pith_profile *p, const draft *d) {
  for (size_t i = 0; i < d->count; i++) {
    const entry *e = &d->layer[i];
    double *sums = pith__sums(p, i);
    sums[PITH_SUM_SAMPLES] = (double)e->samples;
    sums[PITH_SUM_SKIPPED] = (double)e->skipped;
    sums[PITH_SUM_NORM] = e->norm;
    sums[PITH_SUM_TOP] = e->top;
    for (size_t c = 0; c < 2 * d->candidate_count; c++) {
      sums[PITH_SUM_BYTES + c] = e->numbers[c];
    }
  }
}

static pith_status make_profile(const draft *d, pith_profile **profile) {
  pith_layer *shapes = calloc(d->count + 1, sizeof *shapes);
  PITH_REQUIRE(shapes, PITH_ERR_MEMORY, "no memory for %zu layers", d->count);
  for (size_t i = 0; i < d->count; i++) {
    shapes[i] =
        (pith_layer){sizeof(pith_layer), d->layer[i].name, d->layer[i].shape, d->layer[i].dimensions, PITH_F32, NULL};
  }
  pith_profile *made = NULL;
  pith_status status = pith_profile_create(shapes, d->count, d->candidates, &made);
  free(shapes);
  PITH_TRY(status);
  if (made->candidates != d->candidate_count) {
    pith_profile_destroy(made);
    return pith__reader_fail(&d->r, "an empty candidate", "");
  }
  fill(made, d);
  *profile = made;
  return PITH_OK;
}

pith_status pith_profile_parse(pith_bytes text, pith_profile **profile) {
  PITH_REQUIRE((text.data || !text.size) && profile, PITH_ERR_ARGUMENT, "pith_profile_parse: text or profile is NULL");
  draft d = {.r = pith__reader_of(text, "statistics file")};
  pith_status status = text.size ? read_draft(&d) : pith_fail(PITH_ERR_CORRUPT, "the statistics file is empty");
  if (status == PITH_OK) {
    status = make_profile(&d, profile);
  }
  draft_fini(&d);
  return status;
}

pith_status pith_profile_load(const char *path, pith_profile **profile) {
  pith_bytes text;
  PITH_REQUIRE(path && profile, PITH_ERR_ARGUMENT, "pith_profile_load: path or profile is NULL");
  PITH_TRY(pith__read_file(path, &text));
  pith_status status = pith_profile_parse(text, profile);
  free((void *)(uintptr_t)text.data);
  return status == PITH_OK ? PITH_OK : pith_fail(status, "%s: %s", path, pith_error());
}
