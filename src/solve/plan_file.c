/* SPDX-License-Identifier: Apache-2.0 */
/* Plan files: JSON with a line for each layer, made to be read, edited and compared. docs/planner.md has the format. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "profile/reader.h"
#include "profile/writer.h"
#include "solve/plan_object.h"

#define VERSION 1
#define LAYERS_MAX 100000

/* ---- Writing ----------------------------------------------------------------------------------------------------- */

static void write_text(pith_writer *w, const char *key, const char *text) {
  if (text) {
    pith__write(w, ",\n  \"%s\": ", key);
    pith__write_string(w, text);
  }
}

/* Errors are shares of the budget: a reader sees at once who uses it up. */
static void write_line(pith_writer *w, const pith_plan *plan, const pith_plan_line *line) {
  pith__write(w, "    {\"name\": ");
  pith__write_string(w, line->name);
  pith__write(w, ", \"spec\": ");
  pith__write_string(w, line->spec);
  if (line->has_shape) {
    pith__write(w, ", \"shape\": ");
    pith__write_shape(w, line->shape, line->dimensions);
  }
  if (line->bytes >= 0) {
    pith__write(w, ", \"bytes\": %.0f", line->bytes);
  }
  if (line->error >= 0 && plan->budget >= 0) {
    pith__write(w, ", \"share\": %.6g", plan->budget > 0 ? line->error / plan->budget : 0.0);
  }
  pith__write(w, "}");
}

static void write_lines(pith_writer *w, const pith_plan *plan) {
  pith__write(w, ",\n  \"layers\": [");
  for (size_t i = 0; i < plan->count; i++) {
    pith__write(w, i ? ",\n" : "\n");
    write_line(w, plan, &plan->line[i]);
  }
  pith__write(w, plan->count ? "\n  ]\n}\n" : "]\n}\n");
}

pith_status pith__plan_write(pith_plan *plan) {
  pith_writer w = {.text = NULL};
  char *text = NULL;
  pith__write(&w, "{\n  \"pith_plan\": %d", VERSION);
  write_text(&w, "note", plan->note ? plan->note : "");
  write_text(&w, "method", plan->method);
  write_text(&w, "objective", plan->objective);
  write_text(&w, "reference", plan->reference);
  write_text(&w, "metric", plan->metric == PITH_PLAN_L2SQ ? NULL : pith__metric_names[plan->metric]);
  if (plan->budget >= 0) {
    pith__write(&w, ",\n  \"budget\": ");
    pith__write_number(&w, plan->budget);
  }
  write_text(&w, "default", plan->fallback);
  write_lines(&w, plan);
  PITH_TRY(pith__writer_close(&w, &text));
  free(plan->text);
  plan->text = text;
  return PITH_OK;
}

pith_status pith_plan_save(const pith_plan *plan, const char *path) {
  PITH_REQUIRE(plan && path, PITH_ERR_ARGUMENT, "pith_plan_save: plan or path is NULL");
  return pith__write_file(path, plan->text);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

typedef struct draft {
  pith_reader r;
  pith_plan *plan;
  size_t capacity;
} draft;

enum { NAME, SPEC, SHAPE, BYTES, SHARE };

static pith_status not_negative(const draft *d, double number) {
  return number >= 0 ? PITH_OK : pith__reader_fail(&d->r, "bytes and shares are not negative", "");
}

static pith_status read_field(void *self, unsigned key) {
  draft *d = self;
  pith_plan_line *line = &d->plan->line[d->plan->count - 1];
  switch (key) {
    case NAME:
      return pith__read_string(&d->r, &line->name);
    case SPEC:
      return pith__read_string(&d->r, &line->spec);
    case SHAPE:
      line->has_shape = 1;
      return pith__read_shape(&d->r, line->shape, PITH_SHAPE_MAX, &line->dimensions);
    case BYTES:
      PITH_TRY(pith__read_number(&d->r, &line->bytes));
      return not_negative(d, line->bytes);
    default:
      PITH_TRY(pith__read_number(&d->r, &line->error)); /* times the budget, once that is known */
      return not_negative(d, line->error);
  }
}

static pith_status grow(draft *d) {
  pith_plan *plan = d->plan;
  if (plan->count == d->capacity) {
    size_t capacity = 2 * d->capacity + 16;
    PITH_REQUIRE(plan->count < LAYERS_MAX, PITH_ERR_RANGE, "the plan has more than %d layers", LAYERS_MAX);
    pith_plan_line *grown = realloc(plan->line, capacity * sizeof *grown);
    PITH_REQUIRE(grown, PITH_ERR_MEMORY, "no memory for %zu layers", capacity);
    plan->line = grown;
    d->capacity = capacity;
  }
  return PITH_OK;
}

static pith_status read_line(void *self, size_t index) {
  static const char *const keys[] = {"name", "spec", "shape", "bytes", "share", NULL};
  draft *d = self;
  unsigned seen = 0;
  PITH_TRY(grow(d));
  pith_plan_line *line = &d->plan->line[index];
  *line = (pith_plan_line){.bytes = -1, .error = -1};
  d->plan->count++;
  PITH_TRY(pith__read_object(&d->r, keys, read_field, d, &seen));
  return line->name && line->spec ? PITH_OK : pith__reader_fail(&d->r, "a layer needs a name and a spec", "");
}

static pith_status read_version(draft *d) {
  size_t version = 0;
  PITH_TRY(pith__read_count(&d->r, &version));
  PITH_REQUIRE(version == VERSION, PITH_ERR_CORRUPT, "a plan of version %zu; this library reads version %d", version,
               VERSION);
  return PITH_OK;
}

static pith_status read_budget(draft *d) {
  PITH_TRY(pith__read_number(&d->r, &d->plan->budget));
  return d->plan->budget < 0 ? pith__reader_fail(&d->r, "a budget is not negative", "") : PITH_OK;
}

static pith_status read_metric(draft *d) {
  char *name = NULL;
  PITH_TRY(pith__read_string(&d->r, &name));
  size_t i = 0;
  while (pith__metric_names[i] && strcmp(pith__metric_names[i], name) != 0) {
    i++;
  }
  free(name);
  d->plan->metric = (pith_plan_metric)i;
  return pith__metric_names[i] ? PITH_OK : pith__reader_fail(&d->r, "a metric is l2sq or l2", "");
}

static pith_status read_head(void *self, unsigned key) {
  draft *d = self;
  pith_plan *plan = d->plan;
  char **const texts[] = {NULL, &plan->note, &plan->method, &plan->objective, &plan->reference, NULL, &plan->fallback,
                          NULL, NULL};
  if (texts[key]) {
    return pith__read_string(&d->r, texts[key]);
  }
  return key == 0   ? read_version(d)
         : key == 5 ? read_budget(d)
         : key == 7 ? pith__read_array(&d->r, read_line, d)
                    : read_metric(d);
}

static pith_status read_plan(draft *d) {
  static const char *const keys[] = {"pith_plan", "note",    "method", "objective", "reference",
                                     "budget",    "default", "layers", "metric",    NULL};
  unsigned seen = 0;
  PITH_TRY(pith__read_object(&d->r, keys, read_head, d, &seen));
  PITH_REQUIRE(seen & 1, PITH_ERR_CORRUPT, "not a plan: a plan is a JSON object with \"pith_plan\": %d", VERSION);
  return pith__read_end(&d->r);
}

static pith_status complete(pith_plan *plan) {
  for (size_t i = 0; i < plan->count; i++) {
    pith_plan_line *line = &plan->line[i];
    line->error = line->error < 0 || plan->budget < 0 ? -1 : line->error * plan->budget;
    PITH_REQUIRE(isfinite(line->error), PITH_ERR_CORRUPT, "layer %s: the share is too large", line->name);
  }
  return pith__plan_finish(plan);
}

pith_status pith_plan_parse(pith_bytes text, pith_plan **plan) {
  PITH_REQUIRE((text.data || !text.size) && plan, PITH_ERR_ARGUMENT, "pith_plan_parse: text or plan is NULL");
  PITH_REQUIRE(text.size, PITH_ERR_CORRUPT, "the plan is empty");
  draft d = {.r = pith__reader_of(text, "plan")};
  PITH_TRY(pith__plan_create(0, &d.plan));
  pith_status status = read_plan(&d);
  if (status == PITH_OK) {
    status = complete(d.plan);
  }
  if (status != PITH_OK) {
    pith_plan_destroy(d.plan);
    return status;
  }
  *plan = d.plan;
  return PITH_OK;
}

pith_status pith_plan_load(const char *path, pith_plan **plan) {
  pith_bytes text;
  PITH_REQUIRE(path && plan, PITH_ERR_ARGUMENT, "pith_plan_load: path or plan is NULL");
  PITH_TRY(pith__read_file(path, &text));
  pith_status status = pith_plan_parse(text, plan);
  free((void *)(uintptr_t)text.data);
  return status == PITH_OK ? PITH_OK : pith_fail(status, "%s: %s", path, pith_error());
}
