/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a spec to a codec object. Stages are taken from left to right; each must fit behind the ones before it. A preset
 * is replaced by the parts it is made of, which go through the same door. Whether the parts fit together is decided
 * here, once, from their capabilities, so that nothing has to be refused in the middle of a training run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/size.h"
#include "codec/registry.h"

#define GRANULE_MAX ((size_t)1 << 20)
#define TILE_VALUES 4096 /* 16 KiB of f32: leaves room in a first-level cache of 32 KiB */

#define ONCE "," PITH_SPEC_ENCODE "=once"

#define FNV_START 0xcbf29ce484222325u
#define FNV_PRIME 0x100000001b3u

/* A codec under construction. */
typedef struct pith_draft {
  pith_codec *codec;
  const pith_entry *memory, *transform, *last;
  const pith_entry *preset; /* the one whose parts are being added */
  int once, preset_once;    /* the spec says so; so do the parts of its preset */
} pith_draft;

/* ---- Texts and fingerprint --------------------------------------------------------------------------------------- */

static pith_status append_stage(char *text, const pith_entry *entry, const pith_value *values) {
  size_t used = strlen(text);
  if (used > 0 && used < PITH_SPEC_MAX - 1) {
    text[used++] = '/';
    text[used] = 0;
  }
  size_t length = pith__spec_print(entry->info.name, entry->info.params, values, text + used, PITH_SPEC_MAX - used);
  PITH_REQUIRE(length != SIZE_MAX, PITH_ERR_SPEC, "the spec is longer than %d characters when written out",
               PITH_SPEC_MAX - 1);
  return PITH_OK;
}

static uint64_t hash_text(uint64_t hash, const char *text) {
  for (; *text; text++) {
    hash = (hash ^ (uint8_t)*text) * FNV_PRIME;
  }
  return (hash ^ 0xff) * FNV_PRIME; /* an end that no character can fake */
}

/* All values count, spelled or not: a library with another default must not pass for this one. */
static uint64_t hash_stage(uint64_t hash, const pith_entry *entry, const pith_value *values) {
  const pith_param *params = entry->info.params;
  hash = hash_text(hash, entry->info.name);
  for (size_t i = 0; params[i].key; i++) {
    char value[PITH_SPEC_MAX] = "";
    pith__spec_print_value(&params[i], values[i], value, sizeof value);
    if (entry->memory && strcmp(params[i].key, PITH_PARAM_STORE) == 0 && strcmp(value, params[i].initial) == 0) {
      continue; /* f32, as all residuals were before there was a choice: their checkpoints still count */
    }
    hash = hash_text(hash_text(hash, params[i].key), value);
  }
  return hash;
}

/* A part of the chain has its place: now it shows in the texts. */
static pith_status record_part(pith_draft *draft, const pith_entry *entry, const pith_value *values) {
  pith_codec *codec = draft->codec;
  codec->fingerprint = hash_stage(codec->fingerprint, entry, values);
  PITH_TRY(append_stage(codec->parts, entry, values));
  return draft->preset ? PITH_OK : append_stage(codec->spec, entry, values);
}

/* ---- Placing parts ----------------------------------------------------------------------------------------------- */

static pith_status refuse_second(const pith_draft *draft, const pith_entry *first, const pith_entry *second,
                                 const char *what) {
  if (draft->preset) {
    return pith_fail(PITH_ERR_UNSUPPORTED, "%s has a %s of its own (%s: %s): leave out %s", draft->preset->info.name,
                     what, second->info.name, draft->preset->info.made_of, first->info.name);
  }
  return pith_fail(PITH_ERR_UNSUPPORTED, "%s cannot stand behind %s: a spec has at most one %s", second->info.name,
                   first->info.name, what);
}

static pith_status place_memory(pith_draft *draft, const pith_entry *entry, const pith_value *values) {
  if (draft->preset && draft->memory && draft->memory->memory->in_place_of == entry->memory) {
    return PITH_OK;
  }
  if (draft->memory) {
    return refuse_second(draft, draft->memory, entry, "memory");
  }
  PITH_REQUIRE(!draft->transform, PITH_ERR_UNSUPPORTED,
               "the memory %s must stand before the transform %s: a spec is memory/transform/codec%s%s",
               entry->info.name, draft->transform->info.name,
               draft->preset ? "; write out the parts of the preset: " : "",
               draft->preset ? draft->preset->info.made_of : "");
  PITH_TRY(entry->memory->check ? entry->memory->check(values) : PITH_OK);
  draft->memory = entry;
  draft->codec->memory = entry->memory;
  memcpy(draft->codec->memory_args, values, sizeof draft->codec->memory_args);
  return record_part(draft, entry, values);
}

static pith_status place_transform(pith_draft *draft, const pith_entry *entry, const pith_value *values) {
  if (draft->transform) {
    return refuse_second(draft, draft->transform, entry, "transform");
  }
  if (entry->transform->check) {
    PITH_TRY(entry->transform->check(values));
  }
  draft->transform = entry;
  draft->codec->transform = entry->transform;
  memcpy(draft->codec->transform_args, values, sizeof draft->codec->transform_args);
  return record_part(draft, entry, values);
}

static pith_strength strength_of(const pith_param *first) {
  static const struct {
    const char *key;
    pith_strength strength;
  } known[] = {{"bits", PITH_STRENGTH_BITS},       {"ratio", PITH_STRENGTH_RATIO},   {"rank", PITH_STRENGTH_RANK},
               {"levels", PITH_STRENGTH_LEVELS},   {"q", PITH_STRENGTH_TABLE},       {"v", PITH_STRENGTH_MAGNITUDE},
               {"bound", PITH_STRENGTH_MAGNITUDE}, {"clip", PITH_STRENGTH_MAGNITUDE}};
  for (size_t i = 0; first->key && i < sizeof known / sizeof *known; i++) {
    if (strcmp(first->key, known[i].key) == 0) {
      return known[i].strength;
    }
  }
  return PITH_STRENGTH_NONE;
}

static pith_status place_codec(pith_draft *draft, const pith_entry *entry, const pith_value *values) {
  static const pith_codec_traits no_traits;
  const pith_param *first = draft->preset ? draft->preset->info.params : entry->info.params;
  if (entry->codec->check) {
    PITH_TRY(entry->codec->check(values));
  }
  draft->last = entry;
  draft->codec->ops = entry->codec;
  draft->codec->traits = entry->traits ? entry->traits : &no_traits;
  draft->codec->strength = strength_of(first);
  memcpy(draft->codec->args, values, sizeof draft->codec->args);
  return record_part(draft, entry, values);
}

/* ---- Presets ----------------------------------------------------------------------------------------------------- */

static const pith_param *param_called(const pith_param *params, pith_text key) {
  while (params->key && !pith__text_is(key, params->key)) {
    params++;
  }
  return params->key ? params : NULL;
}

/* Writes the value of {key} to text; `made_of` points at the '{' and moves behind the '}'. */
static size_t expand_key(const pith_entry *preset, const pith_value *values, const char **made_of, char *text,
                         size_t size) {
  const char *start = *made_of + 1, *end = strchr(start, '}');
  const pith_param *param = end ? param_called(preset->info.params, (pith_text){start, (size_t)(end - start)}) : NULL;
  if (!param) {
    return SIZE_MAX;
  }
  *made_of = end + 1;
  return pith__spec_print_value(param, values[param - preset->info.params], text, size);
}

/* What a combination has no place for cannot be asked of it. */
static pith_status check_used(const pith_entry *preset, const pith_value *values, const char *made_of) {
  const pith_param *params = preset->info.params;
  for (size_t i = 1; preset->preset->each && params[i].key; i++) {
    char value[PITH_SPEC_MAX] = "", key[PITH_SPEC_MAX];
    pith__spec_print_value(&params[i], values[i], value, sizeof value);
    snprintf(key, sizeof key, "{%s}", params[i].key);
    PITH_REQUIRE(strstr(made_of, key) || strcmp(value, params[i].initial) == 0, PITH_ERR_SPEC,
                 "%s: %s=%s means nothing to this method: it is %s", preset->info.name, params[i].key, value, made_of);
  }
  return PITH_OK;
}

static pith_status expand_preset(const pith_entry *preset, const pith_value *values, char text[PITH_SPEC_MAX]) {
  size_t used = 0;
  const char *made_of = preset->preset->each ? preset->preset->each[values[0].i] : preset->info.made_of;
  PITH_TRY(check_used(preset, values, made_of));
  for (const char *p = made_of; *p;) {
    size_t length = 1;
    if (*p == '{') {
      length = expand_key(preset, values, &p, text + used, PITH_SPEC_MAX - used);
    } else {
      text[used] = *p++;
    }
    PITH_REQUIRE(length < PITH_SPEC_MAX - used, PITH_ERR_SPEC, "the preset %s cannot be written out: %s",
                 preset->info.name, made_of);
    used += length;
  }
  text[used] = 0;
  return PITH_OK;
}

/* encode=auto|once: of the last stage, whatever its method. It is about sums of ranks, not about the codec. */
static pith_status take_encode(pith_spec *spec, int *once) {
  pith_spec_stage *last = &spec->stage[spec->stages - 1];
  size_t kept = 0, found = 0;
  for (size_t i = 0; i < last->pairs; i++) {
    if (!pith__text_is(last->pair[i].key, PITH_SPEC_ENCODE)) {
      last->pair[kept++] = last->pair[i];
      continue;
    }
    pith_text value = last->pair[i].value;
    *once = pith__text_is(value, "once");
    PITH_REQUIRE(*once || pith__text_is(value, "auto"), PITH_ERR_SPEC, "%.*s: encode=%.*s is not one of auto|once",
                 (int)last->name.size, last->name.at, (int)value.size, value.at);
    PITH_REQUIRE(found++ == 0, PITH_ERR_SPEC, "%.*s: encode is given twice", (int)last->name.size, last->name.at);
  }
  last->pairs = kept;
  return PITH_OK;
}

static pith_status add_stages(pith_draft *draft, const pith_spec *spec);

static pith_status add_preset(pith_draft *draft, const pith_entry *entry, const pith_value *values) {
  char text[PITH_SPEC_MAX];
  pith_spec spec;
  PITH_TRY(append_stage(draft->codec->spec, entry, values));
  PITH_TRY(expand_preset(entry, values, text));
  PITH_TRY(pith__spec_parse(text, &spec));
  PITH_TRY(take_encode(&spec, &draft->preset_once));
  draft->preset = entry;
  return add_stages(draft, &spec);
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

static pith_status add_stage(pith_draft *draft, const pith_spec_stage *stage, unsigned kinds) {
  const pith_entry *entry = NULL;
  pith_value values[PITH_PARAMS_MAX];
  PITH_TRY(pith__registry_find(stage->name, kinds, &entry));
  PITH_TRY(pith__spec_bind(stage, entry->info.params, values));
  switch (entry->info.kind) {
    case PITH_KIND_MEMORY:
      return place_memory(draft, entry, values);
    case PITH_KIND_TRANSFORM:
      return place_transform(draft, entry, values);
    case PITH_KIND_PRESET:
      return add_preset(draft, entry, values);
    case PITH_KIND_CODEC:
      break;
  }
  return place_codec(draft, entry, values);
}

static pith_status add_stages(pith_draft *draft, const pith_spec *spec) {
  for (size_t i = 0; i + 1 < spec->stages; i++) {
    PITH_TRY(add_stage(draft, &spec->stage[i], PITH_KINDS_BEFORE));
  }
  unsigned last = draft->preset ? 1u << PITH_KIND_CODEC : PITH_KINDS_LAST;
  return add_stage(draft, &spec->stage[spec->stages - 1], last);
}

/* ---- Fitting parts together -------------------------------------------------------------------------------------- */

/* Why a memory needs, or cannot work with, a codec that has a capability. */
static const struct {
  uint32_t cap;
  const char *needed, *refused;
} reasons[] = {
    {PITH_CAP_SPARSE, "it clears what was sent, so the codec must send only some values, as topk:0.01 does",
     "it needs all values to travel"},
    {PITH_CAP_VOTE, "it needs a majority vote", "a vote has no magnitude to feed back"},
    {PITH_CAP_ROUNDS, "it needs a codec of several exchanges", "it needs a codec that sends in one exchange"},
    {PITH_CAP_CHUNKED, "it needs a codec that works in blocks", "it needs a codec that sees the whole tensor"},
};

/* What encodes pieces at once sees no tiles of a memory or a transform; and such a codec loses nothing. */
static pith_status check_blocks(const pith_draft *draft, const char *kind, const char *name) {
  int at_once = (draft->codec->caps & PITH_CAP_CHUNKED) && !pith__codec_has_blocks(draft->codec);
  PITH_REQUIRE(!at_once, PITH_ERR_UNSUPPORTED,
               "the %s %s does not fit %s: it works on blocks, and %s encodes a tensor at once", kind, name,
               draft->last->info.name, draft->last->info.name);
  return PITH_OK;
}

static pith_status check_memory(const pith_draft *draft) {
  PITH_TRY(check_blocks(draft, "memory", draft->memory->info.name));
  uint32_t caps = draft->codec->caps;
  uint32_t missing = draft->codec->memory->needs & ~caps;
  uint32_t unwanted = draft->codec->memory->refuses & caps;
  const char *why = NULL;
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons && !why; i++) {
    why = missing & reasons[i].cap ? reasons[i].needed : unwanted & reasons[i].cap ? reasons[i].refused : NULL;
  }
  PITH_REQUIRE(!missing && !unwanted, PITH_ERR_UNSUPPORTED, "the memory %s does not fit %s: %s",
               draft->memory->info.name, draft->last->info.name, why ? why : "a capability is missing");
  return PITH_OK;
}

/* Between rounds the residual is what the method works on. */
static pith_status check_store(const pith_draft *draft) {
  PITH_REQUIRE(
      pith__codec_store(draft->codec) == PITH_STORE_F32 || !(draft->codec->caps & PITH_CAP_ROUNDS),
      PITH_ERR_UNSUPPORTED,
      "%s: store does not fit %s: it works on the residual from one exchange to the next, and needs it in f32; "
      "leave store out",
      draft->memory->info.name, draft->last->info.name);
  return PITH_OK;
}

static pith_status check_transform(const pith_draft *draft) {
  const char *transform = draft->transform->info.name, *codec = draft->last->info.name;
  uint32_t caps = draft->codec->caps;
  PITH_TRY(check_blocks(draft, "transform", transform));
  int is_foreign = draft->codec->ops->wire_id >= PITH_WIRE_FOREIGN; /* a whole codec from outside sees rotated values */
  PITH_REQUIRE(((caps & PITH_CAP_CHUNKED) || (is_foreign && !(caps & (PITH_CAP_SPARSE | PITH_CAP_LINEAR)))) &&
                   !(caps & PITH_CAP_ROUNDS),
               PITH_ERR_UNSUPPORTED,
               "the transform %s does not fit %s: it works on blocks, and %s takes the tensor as a whole", transform,
               codec, codec);
  PITH_REQUIRE(!(caps & PITH_CAP_VOTE), PITH_ERR_UNSUPPORTED,
               "the transform %s does not fit %s: ranks vote on each value, and rotated values are mixtures", transform,
               codec);
  return PITH_OK;
}

static pith_status append_text(char text[PITH_SPEC_MAX], const char *more) {
  size_t used = strlen(text);
  int length = snprintf(text + used, PITH_SPEC_MAX - used, "%s", more);
  PITH_REQUIRE(length >= 0 && (size_t)length < PITH_SPEC_MAX - used, PITH_ERR_SPEC,
               "the spec is longer than %d characters when written out", PITH_SPEC_MAX - 1);
  return PITH_OK;
}

/* Codecs that see the whole tensor are encoded once anyway, and need no word for it. */
static pith_status settle_once(const pith_draft *draft) {
  pith_codec *codec = draft->codec;
  PITH_REQUIRE(!(codec->caps & PITH_CAP_ROUNDS), PITH_ERR_UNSUPPORTED,
               "encode=once does not fit %s: its exchanges are sums, of which nothing is encoded again",
               draft->last->info.name);
  if (!(codec->caps & PITH_CAP_CHUNKED)) {
    return PITH_OK;
  }
  codec->caps |= PITH_CAP_ONCE;
  codec->fingerprint = hash_text(codec->fingerprint, ONCE);
  PITH_TRY(draft->once ? append_text(codec->spec, ONCE) : PITH_OK);
  return append_text(codec->parts, ONCE);
}

static pith_status choose_granule(const pith_draft *draft) {
  pith_codec *codec = draft->codec;
  if (!(codec->caps & PITH_CAP_CHUNKED)) {
    return PITH_OK;
  }
  size_t block = codec->ops->block(codec->args);
  PITH_REQUIRE(block >= 1 && block <= PITH_BLOCK_MAX, PITH_ERR_RANGE,
               "%s works on blocks of %zu values, not of 1 to %d", draft->last->info.name, block, PITH_BLOCK_MAX);
  size_t other = codec->transform ? codec->transform->block(codec->transform_args) : 1;
  codec->granule = pith__least_common_multiple(block, other);
  PITH_REQUIRE(codec->granule <= GRANULE_MAX, PITH_ERR_RANGE,
               "blocks of %zu (%s) and %zu (%s) values meet only every %zu values; make one a multiple of the other",
               block, draft->last->info.name, other, draft->transform->info.name, codec->granule);
  if (pith__codec_store(codec) == PITH_STORE_8) { /* pieces of a layer share no block of its residual either */
    codec->granule = pith__least_common_multiple(codec->granule, PITH_STORE_BLOCK);
  }
  codec->tile = codec->granule < TILE_VALUES ? TILE_VALUES / codec->granule * codec->granule : codec->granule;
  return PITH_OK;
}

static pith_status join_parts(const pith_draft *draft) {
  pith_codec *codec = draft->codec;
  codec->caps = codec->ops->caps_of ? codec->ops->caps_of(codec->args) : codec->ops->caps;
  if (codec->transform) {
    PITH_TRY(check_transform(draft));
    codec->caps = (codec->caps & ~(uint32_t)PITH_CAP_LINEAR) | PITH_CAP_SEEDED;
  }
  if (codec->memory) {
    PITH_TRY(check_memory(draft));
    PITH_TRY(check_store(draft));
  }
  PITH_TRY(draft->once || draft->preset_once ? settle_once(draft) : PITH_OK);
  codec->fingerprint = pith__mix64(codec->fingerprint);
  return choose_granule(draft);
}

static pith_status build(const char *text, pith_codec *codec) {
  pith_draft draft = {.codec = codec};
  pith_spec spec;
  codec->fingerprint = FNV_START;
  PITH_TRY(pith__spec_parse(text, &spec));
  PITH_TRY(take_encode(&spec, &draft.once));
  PITH_TRY(add_stages(&draft, &spec));
  return join_parts(&draft);
}

/* ---- The object -------------------------------------------------------------------------------------------------- */

pith_status pith_codec_create(const char *spec, pith_codec **codec) {
  PITH_REQUIRE(spec, PITH_ERR_ARGUMENT, "pith_codec_create: spec is NULL");
  PITH_REQUIRE(codec, PITH_ERR_ARGUMENT, "pith_codec_create: codec is NULL");
  pith_codec *made = calloc(1, sizeof *made);
  PITH_REQUIRE(made, PITH_ERR_MEMORY, "no memory for a codec");
  pith_status status = build(spec, made);
  if (status != PITH_OK) {
    free(made);
    return status;
  }
  *codec = made;
  return PITH_OK;
}

void pith_codec_destroy(pith_codec *codec) { free(codec); }

const char *pith_codec_spec(const pith_codec *codec) { return codec->spec; }

const char *pith_codec_parts(const pith_codec *codec) { return codec->parts; }

uint64_t pith_codec_fingerprint(const pith_codec *codec) { return codec->fingerprint; }

uint32_t pith_codec_caps(const pith_codec *codec) { return codec->caps; }

uint16_t pith_codec_wire_id(const pith_codec *codec) { return codec->ops->wire_id; }

size_t pith_codec_granule(const pith_codec *codec) { return codec->granule; }

size_t pith_codec_rounds(const pith_codec *codec) {
  return codec->caps & PITH_CAP_ROUNDS ? codec->ops->rounds(codec->args) : 0;
}
