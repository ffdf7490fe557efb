/* SPDX-License-Identifier: Apache-2.0 */
/* Names and what they stand for. Built-in tables come from builtin.c, others from plug-ins. */
#ifndef PITH_CODEC_REGISTRY_H
#define PITH_CODEC_REGISTRY_H

#include "codec/codec.h"

#define PITH_WIRE_FOREIGN 0x8000u /* wire ids from here on are those of codecs from outside */

/* One entry: exactly one of the pointers is set, as `info.kind` says. */
typedef struct pith_entry {
  pith_method info;
  const pith_codec_ops *codec;
  const pith_transform_ops *transform;
  const pith_memory_ops *memory;
  const pith_preset *preset;
  const pith_codec_traits *traits; /* of a codec; NULL where it has none */
  const char *detail, *use;        /* for people, or NULL */
} pith_entry;

/* Finds a name among entries of the given kinds (a mask of 1 << pith_kind). An unknown name is an error that offers the
 * nearest known one. */
pith_status pith__registry_find(pith_text name, unsigned kinds, const pith_entry **entry);

#define PITH_KINDS_LAST ((1u << PITH_KIND_CODEC) | (1u << PITH_KIND_PRESET))
#define PITH_KINDS_BEFORE ((1u << PITH_KIND_TRANSFORM) | (1u << PITH_KIND_MEMORY))

/* Adds what a plug-in has, all or nothing; its functions and texts must live as long as the process. `origin` (a file)
 * is copied. */
pith_status pith__registry_add(const pith_plugin *plugin, const char *origin);

/* Keeps other threads from adding while one call adds several things; opens the registry first. May be nested. */
void pith__registry_lock(void);
void pith__registry_unlock(void);

/* The built-in tables, each ending with NULL. */
extern const pith_codec_ops *const pith__builtin_codecs[];
extern const pith_transform_ops *const pith__builtin_transforms[];
extern const pith_memory_ops *const pith__builtin_memories[];
extern const pith_preset *const pith__builtin_presets[];

#endif
