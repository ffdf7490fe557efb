/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adaptive specs in a reducer: it shows gradients to the adapter, adds up the adapter's numbers over the ranks, and
 * between two steps gives layers the specs of a new plan. docs/planner.md, "In training".
 */
#include <stdlib.h>
#include <string.h>

#include "adapt/adapt.h"
#include "base/clock.h"
#include "base/log.h"
#include "codec/codec.h"
#include "device/cuda_statistics.h"
#include "reducer/reducer.h"
#include "reducer/stages.h"

enum { MANY = 64 };  /* numbers whose exchange is timed to learn the bandwidth */
enum { TIMED = 32 }; /* steps before a plan whose times count */

/* ---- Text -------------------------------------------------------------------------------------------------------- */

/* Whether "pattern=spec" has an adaptive spec; *pattern is then the size of the pattern. */
static int is_adaptive_rule(const char *rule, size_t *pattern) {
  *pattern = strcspn(rule, "=,;");
  return rule[*pattern] == '=' && pith_adapter_is(rule + *pattern + 1);
}

static const char *last_rule(const char *text) {
  const char *last = text;
  for (const char *at = text; at; at = strchr(at, ';')) {
    at += *at == ';';
    if (at[strspn(at, " \t\r\n")] && *at != ';') {
      last = at;
    }
  }
  return last;
}

/* Only the last rule, for everything that is left, may be adaptive: the planner must know all that it decides. */
static pith_status check_others(const char *text, const char *last) {
  for (const char *at = text; at && at < last; at = strchr(at, ';')) {
    size_t pattern;
    at += *at == ';';
    PITH_REQUIRE(at >= last || !is_adaptive_rule(at, &pattern), PITH_ERR_SPEC,
                 "\"%.*s\": an adaptive spec is for all layers that no other rule names; write it last, as in "
                 "embed*=none;*=auto",
                 (int)strcspn(at, ";"), at);
  }
  return PITH_OK;
}

static pith_status copy(char **to, const char *text, size_t size, const char *end) {
  size_t rest = strlen(end) + 1;
  *to = malloc(size + rest);
  PITH_REQUIRE(*to, PITH_ERR_MEMORY, "no memory for rules");
  memcpy(*to, text, size);
  memcpy(*to + size, end, rest);
  return PITH_OK;
}

static pith_status take_spec(const char *spec, char **adaptive) {
  PITH_TRY(copy(adaptive, spec, strcspn(spec, ";"), ""));
  pith_status status = pith_adapter_check(*adaptive);
  if (status != PITH_OK) {
    free(*adaptive);
    *adaptive = NULL;
  }
  return status;
}

pith_status pith__reducer_split(const char *text, char **rules, char **adaptive) {
  int has_patterns = text[strcspn(text, "=,")] == '=';
  const char *last = has_patterns ? last_rule(text) : text, *name = last + strspn(last, " \t\r\n");
  size_t pattern = 0;
  *adaptive = NULL;
  PITH_TRY(has_patterns ? check_others(text, last) : PITH_OK);
  if (!(has_patterns ? is_adaptive_rule(last, &pattern) : pith_adapter_is(text))) {
    return copy(rules, text, strlen(text), "");
  }
  if (has_patterns) {
    PITH_REQUIRE(*name == '*' && strspn(name + 1, " \t") == (size_t)(last + pattern - name - 1), PITH_ERR_SPEC,
                 "\"%s\": an adaptive spec is for all layers that no other rule names; write *=%s", last,
                 last + pattern + 1);
  } else {
    PITH_REQUIRE(!text[strcspn(text, ";")] || !text[strcspn(text, ";") + 1], PITH_ERR_SPEC,
                 "several specs need patterns: write pattern=spec;pattern=spec, as in embed*=none;*=auto");
  }
  PITH_TRY(take_spec(last + pattern + has_patterns, adaptive));
  return copy(rules, text, (size_t)(last - text), "*=none");
}

/* Whether the caller does not say when a step is over. */
static int has_turns(const pith_reducer *r) { return r->options.sharded || r->options.in_parts; }

/* ---- Life -------------------------------------------------------------------------------------------------------- */

void pith__reducer_adapt_fini(pith_reducer *r) {
  pith_adapter_destroy(r->adaptive.adapter);
  for (size_t i = 0; i < r->adaptive.codecs; i++) {
    pith_codec_destroy(r->adaptive.codec[i]);
  }
  free(r->adaptive.codec);
  free(r->adaptive.text);
}

pith_status pith__reducer_adapter_create(const pith_reducer *r, pith_adapter **adapter) {
  size_t count = 0;
  PITH_FREED pith_layer *shapes = calloc(r->count + 1, sizeof *shapes);
  PITH_REQUIRE(shapes, PITH_ERR_MEMORY, "no memory for an adapter");
  for (size_t i = 0; i < r->count; i++) {
    const pith_reducer_layer *l = &r->layers[i];
    if (l->adapted != SIZE_MAX && l->owner == 0) { /* of a shard: those of all owners have one spec */
      shapes[count++] =
          (pith_layer){.size = sizeof(pith_layer), .name = l->name, .shape = l->shape, .dimensions = l->dimensions};
    }
  }
  PITH_TRY(pith_adapter_create(r->adaptive.text, shapes, count, r->rank, r->ranks, r->seed, adapter));
  pith_measurer *measurer = NULL;
  pith_status status = has_turns(r) ? pith__adapter_of_parts(*adapter, r->options.sharded) : PITH_OK;
  if (status == PITH_OK && r->space) {
    status = pith__cuda_measurer_create((pith_cuda_space *)r->space, &measurer);
  }
  if (status != PITH_OK) {
    pith_adapter_destroy(*adapter);
    *adapter = NULL;
    return status;
  }
  if (measurer) {
    pith__adapter_measure_by(*adapter, measurer);
  }
  return PITH_OK;
}

pith_status pith__reducer_codec(pith_reducer *r, const char *spec, const pith_codec **codec) {
  pith_adaptive *a = &r->adaptive;
  for (size_t i = 0; i < a->codecs; i++) {
    if (strcmp(a->codec[i]->spec, spec) == 0) {
      *codec = a->codec[i];
      return PITH_OK;
    }
  }
  PITH_TRY(pith__reducer_grow((void **)&a->codec, &a->room, a->codecs, sizeof *a->codec));
  PITH_TRY(pith_codec_create(spec, &a->codec[a->codecs]));
  if (r->space && pith_cuda_supports(a->codec[a->codecs]) != PITH_OK) {
    pith_codec_destroy(a->codec[a->codecs]);
    return PITH_ERR_UNSUPPORTED;
  }
  *codec = a->codec[a->codecs++];
  return PITH_OK;
}

pith_status pith__reducer_exact_codec(pith_reducer *r, pith_dtype dtype, const pith_codec **codec) {
  return pith__reducer_codec(r, dtype == PITH_F32 ? "none" : dtype == PITH_F16 ? "fp16" : "bf16", codec);
}

static pith_status change_specs(pith_reducer *r) {
  for (size_t i = 0; i < r->count; i++) {
    pith_reducer_layer *l = &r->layers[i];
    const char *spec =
        l->adapted == SIZE_MAX ? l->match.codec->spec : pith_adapter_spec(r->adaptive.adapter, l->adapted);
    if (strcmp(spec, l->match.codec->spec) != 0) {
      const pith_codec *codec;
      PITH_TRY(pith__reducer_codec(r, spec, &codec));
      PITH_TRY(pith__pending_move(l, codec, r->ranks));
      l->match.codec = codec;
    }
  }
  return PITH_OK;
}

pith_status pith__reducer_adapter_ready(pith_reducer *r) {
  const char *spec;
  const pith_codec *codec;
  size_t place = 0;
  if (!r->adaptive.text || r->adaptive.adapter) {
    return PITH_OK;
  }
  PITH_TRY(pith__reducer_adapter_create(r, &r->adaptive.adapter));
  for (size_t i = 0; r->space && (spec = pith_adapter_candidate(r->adaptive.adapter, i)); i++) {
    PITH_TRY(pith__reducer_codec(r, spec, &codec)); /* an error now if the device has no kernels for it */
  }
  for (size_t i = 0; i < r->count; i++) {
    pith_reducer_layer *l = &r->layers[i];
    if (l->adapted != SIZE_MAX) {
      place += l->owner == 0;
      l->adapted = place - 1;
      l->match.reason = pith_adapter_reason(r->adaptive.adapter, l->adapted);
    }
  }
  return change_specs(r); /* to those of the warm-up */
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

pith_status pith__reducer_observe(pith_reducer *r, const pith_reducer_layer *l, const void *gradient) {
  pith_adaptive *a = &r->adaptive;
  if (!a->adapter || a->set) {
    return PITH_OK;
  }
  a->begun = a->begun > 0 ? a->begun : pith__now();
  if (l->adapted == SIZE_MAX || !pith_adapter_wants(a->adapter, l->adapted)) {
    return PITH_OK;
  }
  return pith_adapter_observe(a->adapter, l->adapted, (pith_cspan){gradient, l->n, l->dtype});
}

/* What a step beyond the ordinary took the host: whatever is left of it is the device's. */
static void tell(const pith_reducer *r, const double *at, size_t numbers, int changed) {
  if (numbers || changed) {
    PITH_LOG_INFO(
        "planner: step %llu: waited %.2f ms for the device, %.2f for statistics, %.2f for a sum of %zu numbers, "
        "%.2f for the plan, %.2f for a change of specs",
        (unsigned long long)pith_adapter_step_number(r->adaptive.adapter) - 1, 1e3 * (at[1] - at[0]),
        1e3 * (at[2] - at[1]), 1e3 * (at[3] - at[2]), numbers, 1e3 * (at[4] - at[3]), 1e3 * (at[5] - at[4]));
  }
}

/* `span`, `waiting`: as in pith_adapter_step. */
static pith_status end_step(pith_reducer *r, double span, double waiting) {
  pith_adaptive *a = &r->adaptive;
  double at[6] = {pith__now()}, seconds = 0, *numbers;
  size_t count;
  int changed = 0;
  if (r->space) { /* times are those of steps of the device */
    int counts = pith_adapter_next_plan(a->adapter) <= pith_adapter_step_number(a->adapter) + TIMED;
    PITH_TRY(pith__cuda_space_keep_pace((pith_cuda_space *)r->space, counts));
  }
  at[1] = pith__now();
  double paced = at[1] - at[0]; /* that wait is of the step, too */
  pith_adapter_step step = {.size = sizeof step,
                            .seconds = a->ended > 0 ? at[1] - a->ended : 0,
                            .span = span > 0 ? span + paced : 0,
                            .waiting = span > 0 ? waiting + paced : 0};
  PITH_TRY(pith_adapter_finish(a->adapter, &step, &numbers, &count));
  at[2] = pith__now();
  if (count) {
    /* Ranks start the exchange of many numbers together, so that its time is that of the link. */
    PITH_TRY(count > MANY ? pith__reducer_barrier(r) : PITH_OK);
    double start = pith__now();
    PITH_TRY(pith__reducer_sum(r, numbers, count));
    seconds = pith__now() - start;
  }
  at[3] = pith__now();
  PITH_TRY(pith_adapter_advance(a->adapter, seconds, &changed));
  at[4] = pith__now();
  if (changed) {
    PITH_TRY(change_specs(r));
    PITH_TRY(pith__reducer_has_groups(r) ? pith__reducer_form_groups(r) : PITH_OK);
    if (r->stages) {
      pith__stages_release_kept(r->stages);
    }
  }
  a->begun = a->spent = a->last = 0;
  a->ended = at[5] = pith__now();
  tell(r, at, count, changed);
  return PITH_OK;
}

/* Whether specs change from time to time. */
static int adapts(const pith_reducer *r) { return r->adaptive.adapter && !r->adaptive.set; }

pith_status pith__reducer_adapt(pith_reducer *r, double waited) {
  pith_adaptive *a = &r->adaptive;
  double now = pith__now();
  if (!adapts(r)) {
    a->begun = a->ended = 0;
    return PITH_OK;
  }
  if (has_turns(r)) {
    a->spent += now - waited;
    a->last = now;
    return PITH_OK;
  }
  return end_step(r, a->begun > 0 ? now - a->begun : 0, a->begun > 0 ? now - waited : 0);
}

/* Calls for shards in main memory wait for the exchange, and nothing is computed meanwhile. On a device all of them
 * only enqueue, and what they overlap with is not known. */
pith_status pith__reducer_turn(pith_reducer *r, const size_t *layers, size_t count) {
  pith_adaptive *a = &r->adaptive;
  size_t owners = pith__reducer_owners(r);
  int is_over = 0;
  if (!adapts(r)) {
    return PITH_OK;
  }
  for (size_t i = 0; i < count; i++) {
    is_over |= r->layers[layers[i] * owners].turn == a->turn + 1;
  }
  if (is_over) {
    PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a layer starts again before the last part was finished");
    a->turn++;
    PITH_TRY(end_step(r, r->space ? 0 : r->options.sharded ? a->spent : a->last - a->begun, r->space ? 0 : a->spent));
  }
  for (size_t i = 0; i < count; i++) {
    r->layers[layers[i] * owners].turn = a->turn + 1;
  }
  return PITH_OK;
}

pith_status pith_reducer_profile(const pith_reducer *r, const char *path) {
  PITH_REQUIRE(r && path, PITH_ERR_ARGUMENT, "pith_reducer_profile: reducer and path must not be NULL");
  PITH_REQUIRE(r->adaptive.text, PITH_ERR_STATE, "the specs of this reducer never change: there are no statistics");
  PITH_REQUIRE(r->adaptive.adapter, PITH_ERR_STATE, "there are no statistics before the first step");
  return pith_adapter_profile(r->adaptive.adapter, path);
}
