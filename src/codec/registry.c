/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The registry: one array of entries that only ever grows. Entries never move and never change once counted, so
 * readers need no lock: they see the first `count` of them. Writers take the lock, which is recursive because a
 * plug-in may use the library while it is being loaded.
 *
 * A name stands for one thing in its place: `dgc` is a memory before a codec, and a preset in the last place.
 */
#include "codec/registry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"

#define ENTRIES_MAX 256

typedef enum pith_opening { CLOSED = 0, OPENING = 1, OPEN = 2 } pith_opening;

static pith_entry entries[ENTRIES_MAX];
static size_t filled;        /* entries written, by the holder of the lock */
static _Atomic size_t count; /* entries that everybody may read */
static _Atomic pith_opening opening;
static pthread_mutex_t lock;
static pthread_once_t lock_once = PTHREAD_ONCE_INIT;

/* ---- Adding ------------------------------------------------------------------------------------------------------ */

static unsigned kinds_beside(pith_kind kind) {
  return (1u << kind) & PITH_KINDS_LAST ? PITH_KINDS_LAST : PITH_KINDS_BEFORE;
}

static int is_of(const pith_entry *entry, unsigned kinds) { return (kinds >> entry->info.kind) & 1u; }

static pith_status check_unique(const pith_entry *entry) {
  for (size_t i = 0; i < filled; i++) {
    const pith_entry *other = &entries[i];
    const char *origin = other->info.origin ? other->info.origin : "?";
    PITH_REQUIRE(!is_of(other, kinds_beside(entry->info.kind)) || strcmp(other->info.name, entry->info.name) != 0,
                 PITH_ERR_PLUGIN, "there is already a method \"%s\" (from %s); give the new one another name",
                 entry->info.name, origin);
    PITH_REQUIRE(!entry->codec || !other->codec || other->info.wire_id != entry->info.wire_id, PITH_ERR_PLUGIN,
                 "%s and %s (from %s) have the same wire id %u; give the new one another id", entry->info.name,
                 other->info.name, origin, entry->info.wire_id);
  }
  return PITH_OK;
}

static pith_status append(const pith_entry *entry) {
  if (pith__spec_check(entry->info.name, entry->info.params) != PITH_OK) {
    return PITH_ERR_PLUGIN;
  }
  PITH_TRY(check_unique(entry));
  PITH_REQUIRE(filled < ENTRIES_MAX, PITH_ERR_PLUGIN, "the registry is full: %d methods", ENTRIES_MAX);
  entries[filled++] = *entry;
  return PITH_OK;
}

/* The functions that the capabilities promise. */
static const char *missing_function(const pith_codec_ops *ops) {
  int chunked = (ops->caps & PITH_CAP_CHUNKED) != 0, rounds = (ops->caps & PITH_CAP_ROUNDS) != 0;
  int whole = ops->bound && ops->encode && ops->decode, blocks = chunked && (ops->encode_block || !whole);
  if (blocks && !(ops->block && ops->block_bound && ops->encode_block && ops->decode_block)) {
    return "CHUNKED needs block, block_bound, encode_block and decode_block";
  }
  if (chunked && !ops->block) {
    return "CHUNKED needs block";
  }
  if (blocks && !(ops->caps & PITH_CAP_FIXED) && !ops->check_block) {
    return "without FIXED, CHUNKED needs check_block";
  }
  if (rounds && !(ops->rounds && ops->describe && ops->produce && ops->consume)) {
    return "ROUNDS needs rounds, describe, produce and consume";
  }
  if (!chunked && !rounds && !whole) {
    return "a codec that is not CHUNKED needs bound, encode and decode";
  }
  return NULL;
}

static pith_status check_table(const pith_codec_ops *ops, int foreign) {
  PITH_REQUIRE(ops->name, PITH_ERR_PLUGIN, "a codec table has no name");
  PITH_REQUIRE(ops->family && ops->summary && ops->bits, PITH_ERR_PLUGIN, "%s: family, summary or bits is NULL",
               ops->name);
  PITH_REQUIRE(ops->wire_id != 0 && (ops->wire_id >= PITH_WIRE_FOREIGN) == foreign, PITH_ERR_PLUGIN,
               "%s: wire id 0x%x is not allowed; codecs from outside take 0x8000 to 0xffff", ops->name, ops->wire_id);
  const char *missing = missing_function(ops);
  PITH_REQUIRE(!missing, PITH_ERR_PLUGIN, "%s: a function is missing: %s", ops->name, missing);
  return PITH_OK;
}

static pith_entry entry_of_codec(const pith_codec_ops *ops, const char *origin) {
  return (pith_entry){.info = {.name = ops->name,
                               .family = ops->family,
                               .summary = ops->summary,
                               .bits = ops->bits,
                               .kind = PITH_KIND_CODEC,
                               .caps = ops->caps,
                               .wire_id = ops->wire_id,
                               .survey = ops->survey,
                               .origin = origin,
                               .params = ops->params},
                      .codec = ops,
                      .detail = ops->detail,
                      .use = ops->use};
}

static pith_entry entry_of_transform(const pith_transform_ops *ops) {
  return (pith_entry){.info = {.name = ops->name,
                               .family = ops->family,
                               .summary = ops->summary,
                               .kind = PITH_KIND_TRANSFORM,
                               .origin = ops->origin,
                               .params = ops->params},
                      .transform = ops,
                      .detail = ops->detail,
                      .use = ops->use};
}

static pith_entry entry_of_memory(const pith_memory_ops *ops) {
  return (pith_entry){.info = {.name = ops->name,
                               .family = "memory",
                               .summary = ops->summary,
                               .kind = PITH_KIND_MEMORY,
                               .origin = ops->origin,
                               .params = ops->params},
                      .memory = ops,
                      .detail = ops->detail,
                      .use = ops->use};
}

static pith_entry entry_of_preset(const pith_preset *preset) {
  return (pith_entry){.info = {.name = preset->name,
                               .family = preset->family,
                               .summary = preset->summary,
                               .made_of = preset->made_of,
                               .bits = preset->bits,
                               .kind = PITH_KIND_PRESET,
                               .survey = preset->survey,
                               .origin = preset->origin,
                               .params = preset->params},
                      .preset = preset,
                      .use = preset->use};
}

/* A plug-in's tables with all fields that this library knows, whichever header the plug-in was built with. The table of
 * the registry is the first field; the last parameter has no key. */
typedef struct foreign_codec {
  pith_codec_ops ops;
  pith_param params[PITH_PARAMS_MAX + 1];
} foreign_codec;

typedef struct foreign_transform {
  pith_transform_ops ops;
  pith_param params[PITH_PARAMS_MAX + 1];
} foreign_transform;

typedef struct foreign_memory {
  pith_memory_ops ops;
  pith_param params[PITH_PARAMS_MAX + 1];
} foreign_memory;

static pith_status copy_params(const pith_param *given, const char *method, pith_param *params) {
  PITH_REQUIRE(given, PITH_ERR_PLUGIN,
               "%s has no parameter list: params is NULL; without parameters it is a list of one element, {0}", method);
  const char *at = (const char *)given;
  for (size_t i = 0; ((const pith_param *)(const void *)at)->key; i++, at += given->size) {
    PITH_REQUIRE(i < PITH_PARAMS_MAX, PITH_ERR_PLUGIN, "%s has more than %d parameters", method, PITH_PARAMS_MAX);
    params[i] = (pith_param){.size = sizeof *params};
    PITH_TRY(PITH_STRUCT_READ_AT(pith_param, given, i, &params[i]));
  }
  return PITH_OK;
}

/* The table goes if it cannot stay. */
static pith_status append_table(void *table, pith_entry entry, pith_status status) {
  if (status != PITH_OK || append(&entry) != PITH_OK) {
    free(table);
    return PITH_ERR_PLUGIN;
  }
  return PITH_OK;
}

static pith_status read_codec(const pith_codec_ops *given, foreign_codec *table) {
  PITH_TRY(PITH_STRUCT_READ(pith_codec_ops, given, &table->ops));
  PITH_TRY(copy_params(table->ops.params, table->ops.name ? table->ops.name : "a codec", table->params));
  table->ops.params = table->params;
  return check_table(&table->ops, 1);
}

static pith_status add_codec(const pith_codec_ops *given, const char *origin) {
  PITH_REQUIRE(given, PITH_ERR_PLUGIN, "a codec table is NULL");
  foreign_codec *table = calloc(1, sizeof *table);
  PITH_REQUIRE(table, PITH_ERR_MEMORY, "no memory for a codec table");
  pith_status status = read_codec(given, table);
  return append_table(table, entry_of_codec(&table->ops, origin), status);
}

static pith_status read_transform(const pith_plugin_transform *given, const char *origin, foreign_transform *table) {
  pith_plugin_transform t = {.size = sizeof t};
  PITH_TRY(PITH_STRUCT_READ(pith_plugin_transform, given, &t));
  PITH_REQUIRE(t.name && t.summary && t.block && t.forward && t.inverse, PITH_ERR_PLUGIN,
               "%s: a transform needs name, summary, block, forward and inverse", t.name ? t.name : "a transform");
  PITH_TRY(copy_params(t.params, t.name, table->params));
  table->ops = (pith_transform_ops){.name = t.name,
                                    .family = "transform",
                                    .summary = t.summary,
                                    .origin = origin,
                                    .params = table->params,
                                    .check = t.check,
                                    .block = t.block,
                                    .forward = t.forward,
                                    .inverse = t.inverse};
  return PITH_OK;
}

static pith_status add_transform(const pith_plugin_transform *given, const char *origin) {
  PITH_REQUIRE(given, PITH_ERR_PLUGIN, "a table of a transform is NULL");
  foreign_transform *table = calloc(1, sizeof *table);
  PITH_REQUIRE(table, PITH_ERR_MEMORY, "no memory for a table of a transform");
  pith_status status = read_transform(given, origin, table);
  return append_table(table, entry_of_transform(&table->ops), status);
}

static pith_status read_memory(const pith_plugin_memory *given, const char *origin, foreign_memory *table) {
  pith_plugin_memory m = {.size = sizeof m};
  PITH_TRY(PITH_STRUCT_READ(pith_plugin_memory, given, &m));
  PITH_REQUIRE(m.name && m.summary && m.compensate, PITH_ERR_PLUGIN, "%s: a memory needs name, summary and compensate",
               m.name ? m.name : "a memory");
  PITH_TRY(copy_params(m.params, m.name, table->params));
  pith_keeps keeps = m.keeps_all ? PITH_KEEPS_MOMENTUM : PITH_KEEPS_RESIDUAL;
  table->ops = (pith_memory_ops){.name = m.name,
                                 .summary = m.summary,
                                 .origin = origin,
                                 .params = table->params,
                                 .check = m.check,
                                 .refuses = m.keeps_all ? 0 : PITH_CAP_VOTE,
                                 .keeps = keeps,
                                 .accumulator = keeps,
                                 .after = m.keeps_all ? PITH_AFTER_KEEP : PITH_AFTER_SUBTRACT,
                                 .compensate = m.compensate};
  return PITH_OK;
}

static pith_status add_memory(const pith_plugin_memory *given, const char *origin) {
  PITH_REQUIRE(given, PITH_ERR_PLUGIN, "a table of a memory is NULL");
  foreign_memory *table = calloc(1, sizeof *table);
  PITH_REQUIRE(table, PITH_ERR_MEMORY, "no memory for a table of a memory");
  pith_status status = read_memory(given, origin, table);
  return append_table(table, entry_of_memory(&table->ops), status);
}

static pith_status add_all(const pith_plugin *plugin, const char *origin) {
  for (size_t i = 0; i < plugin->codec_count; i++) {
    PITH_TRY(add_codec(plugin->codecs[i], origin));
  }
  for (size_t i = 0; i < plugin->transform_count; i++) {
    PITH_TRY(add_transform(plugin->transforms[i], origin));
  }
  for (size_t i = 0; i < plugin->memory_count; i++) {
    PITH_TRY(add_memory(plugin->memories[i], origin));
  }
  return PITH_OK;
}

/* Nobody has seen these entries yet. Their tables begin with what an entry points to. */
static void take_back(size_t before) {
  while (filled > before) {
    const pith_entry *entry = &entries[--filled];
    const void *table = entry->codec       ? (const void *)entry->codec
                        : entry->transform ? (const void *)entry->transform
                                           : (const void *)entry->memory;
    free((void *)(uintptr_t)table);
  }
}

pith_status pith__registry_add(const pith_plugin *plugin, const char *origin) {
  char *copy = strdup(origin);
  PITH_REQUIRE(copy, PITH_ERR_MEMORY, "no memory to register the codecs of %s", origin);
  pith__registry_lock();
  size_t before = filled;
  pith_status status = add_all(plugin, copy);
  if (status == PITH_OK) {
    count = filled;
  } else {
    take_back(before);
    free(copy);
  }
  pith__registry_unlock();
  return status;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

/* A built-in table with a mistake is left out, loudly: the tests of the registry look for each by name. */
static void add_builtin(const pith_entry *entry, pith_status checked) {
  if (checked != PITH_OK || append(entry) != PITH_OK) {
    fprintf(stderr, "pith: built-in method left out: %s\n", pith_error());
  }
}

static void add_builtins(void) {
  for (const pith_codec_ops *const *ops = pith__builtin_codecs; *ops; ops++) {
    pith_entry entry = entry_of_codec(*ops, (*ops)->origin);
    entry.traits = (*ops)->traits;
    add_builtin(&entry, check_table(*ops, 0));
  }
  for (const pith_transform_ops *const *ops = pith__builtin_transforms; *ops; ops++) {
    pith_entry entry = entry_of_transform(*ops);
    add_builtin(&entry, PITH_OK);
  }
  for (const pith_memory_ops *const *ops = pith__builtin_memories; *ops; ops++) {
    pith_entry entry = entry_of_memory(*ops);
    add_builtin(&entry, PITH_OK);
  }
  for (const pith_preset *const *preset = pith__builtin_presets; *preset; preset++) {
    pith_entry entry = entry_of_preset(*preset);
    add_builtin(&entry, PITH_OK);
  }
  count = filled;
}

/* Plug-ins of the environment, by the public call: this layer does not know how they are loaded. There is no caller to
 * tell of a failure, so it goes to standard error. */
static void load_wanted_plugins(void) {
  const char *wanted = getenv("PITH_PLUGINS");
  char *names = wanted ? strdup(wanted) : NULL, *rest = NULL;
  for (char *name = names ? strtok_r(names, ",", &rest) : NULL; name; name = strtok_r(NULL, ",", &rest)) {
    if (pith_plugin_load(name) != PITH_OK) {
      fprintf(stderr, "pith: PITH_PLUGINS: %s\n", pith_error());
    }
  }
  free(names);
}

static void make_lock(void) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&lock, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

void pith__registry_lock(void) {
  pthread_once(&lock_once, make_lock);
  pthread_mutex_lock(&lock);
  if (opening == CLOSED) {
    opening = OPENING; /* what a plug-in asks for while it is being loaded must not open again */
    add_builtins();
    load_wanted_plugins();
    opening = OPEN;
  }
}

void pith__registry_unlock(void) { pthread_mutex_unlock(&lock); }

static void open_registry(void) {
  if (opening != OPEN) {
    pith__registry_lock();
    pith__registry_unlock();
  }
}

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

static const pith_entry *find(pith_text name, unsigned kinds) {
  for (size_t i = 0, n = count; i < n; i++) {
    if (is_of(&entries[i], kinds) && pith__text_is(name, entries[i].info.name)) {
      return &entries[i];
    }
  }
  return NULL;
}

static pith_status misplaced(const pith_entry *entry) {
  static const char *const advice[] = {
      [PITH_KIND_CODEC] = "a codec and comes last",
      [PITH_KIND_TRANSFORM] = "a transform and needs a codec behind it, as in hadamard/q:4",
      [PITH_KIND_MEMORY] = "a memory and needs a codec behind it, as in ef/q:4",
      [PITH_KIND_PRESET] = "a preset with a codec inside and comes last",
  };
  return pith_fail(PITH_ERR_SPEC, "%s is %s", entry->info.name, advice[entry->info.kind]);
}

static pith_status unknown(pith_text name, unsigned kinds) {
  const char *best = NULL;
  for (size_t i = 0, n = count; i < n; i++) {
    if (is_of(&entries[i], kinds)) {
      pith__text_nearest(name, entries[i].info.name, &best);
    }
  }
  if (best) {
    return pith_fail(PITH_ERR_SPEC, "there is no method \"%.*s\"; did you mean %s?", (int)name.size, name.at, best);
  }
  return pith_fail(PITH_ERR_SPEC, "there is no method \"%.*s\"; `pith codecs` lists them", (int)name.size, name.at);
}

pith_status pith__registry_find(pith_text name, unsigned kinds, const pith_entry **entry) {
  open_registry();
  const pith_entry *found = find(name, kinds);
  if (!found) {
    const pith_entry *elsewhere = find(name, ~kinds);
    return elsewhere ? misplaced(elsewhere) : unknown(name, kinds);
  }
  *entry = found;
  return PITH_OK;
}

/* ---- Listing ----------------------------------------------------------------------------------------------------- */

size_t pith_method_count(void) {
  open_registry();
  return count;
}

/* A preset has the capabilities of what it is made of, with its default values. */
static void complete_preset(pith_method *method) {
  pith_codec *codec;
  if (pith_codec_create(method->name, &codec) == PITH_OK) {
    method->caps = pith_codec_caps(codec);
    method->wire_id = pith_codec_wire_id(codec);
    pith_codec_destroy(codec);
  }
}

pith_status pith_method_get(size_t index, pith_method *method) {
  PITH_REQUIRE(method, PITH_ERR_ARGUMENT, "pith_method_get: method is NULL");
  size_t n = pith_method_count();
  PITH_REQUIRE(index < n, PITH_ERR_RANGE, "there is no method %zu: there are %zu, counted from 0", index, n);
  pith_method found = entries[index].info;
  if (found.kind == PITH_KIND_PRESET) {
    complete_preset(&found);
  }
  return PITH_STRUCT_WRITE(pith_method, &found, method);
}

const char *pith_method_detail(size_t index) { return index < pith_method_count() ? entries[index].detail : NULL; }

const char *pith_method_use(size_t index) { return index < pith_method_count() ? entries[index].use : NULL; }
