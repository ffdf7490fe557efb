/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface for plug-ins: codecs, transforms and memories from outside the library. Built-in codecs use the same
 * table. pith.h does not include it.
 *
 * A plug-in is a shared object that exports
 *
 *   const pith_plugin *pith_plugin_entry(void);
 *
 * and is loaded by pith_plugin_load() or PITH_PLUGINS. docs/adding-a-codec.md walks through an example. A plug-in built
 * with the headers of 0.2 or later works with every later library of the same PITH_PLUGIN_ABI: the library copies its
 * tables, whatever their size, and gives missing fields their defaults (types.h).
 *
 * There are two kinds of codec:
 *  - Block codecs (PITH_CAP_CHUNKED) encode one block of f32 values at a time, independently of all other blocks. The
 *    library cuts tensors into blocks, converts f16 and bf16, applies transforms and error feedback, and checks
 *    buffers. Most codecs are of this kind and need four short functions.
 *  - Whole codecs get the whole tensor at once. Examples are low rank, and sparsifiers that select among all values.
 *    With PITH_CAP_CHUNKED and block() they also get pieces that begin at multiples of block() values; each piece
 *    becomes a separate payload.
 *
 * Several threads may call the functions of the table at once. The functions must not allocate, keep pointers to their
 * arguments, or have state of their own.
 *
 * A program adds its own codecs by pith_plugin_add(), as the Python package does with methods written in Python.
 */
#ifndef PITH_PLUGIN_H
#define PITH_PLUGIN_H

#include <pith/codec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface, and the limits for plug-ins. */
#define PITH_PLUGIN_ABI 2u
#define PITH_PARAMS_MAX 8
#define PITH_BLOCK_MAX 65536 /* most values of a block */

/* The value of one parameter. Functions get an array of them in the order of the parameter list. .i for INT and CHOICE
 * (index), .f for REAL. */
typedef union pith_value {
  int64_t i;
  double f;
} pith_value;

/* What a whole codec does with decoded values. SUB and CLEAR are for memories. */
typedef enum pith_apply {
  PITH_APPLY_SET = 0,   /* dst = decoded; values that were not sent are zero */
  PITH_APPLY_ADD = 1,   /* dst += decoded */
  PITH_APPLY_SUB = 2,   /* dst -= decoded */
  PITH_APPLY_CLEAR = 3, /* dst = 0 where a value was sent (SPARSE codecs only) */
} pith_apply;

/* One codec: its description and its functions. Functions that a codec does not need are NULL. */
typedef struct pith_codec_ops {
  size_t size; /* sizeof(pith_codec_ops) */
  const char *name, *family, *summary, *bits, *origin;
  uint16_t wire_id; /* 1–0x7fff are Pith's own, 0x8000–0xffff for others */
  uint32_t caps;
  int survey;
  const pith_param *params; /* at most PITH_PARAMS_MAX, then a NULL key */

  /* Optional: checks conditions that the ranges of single parameters cannot express. */
  pith_status (*check)(const pith_value *a);
  /* Optional: capabilities that depend on parameters, instead of `caps`. */
  uint32_t (*caps_of)(const pith_value *a);

  /* Block codecs. */
  size_t (*block)(const pith_value *a);                 /* values of a block, 1…PITH_BLOCK_MAX */
  size_t (*block_bound)(const pith_value *a, size_t n); /* most bytes of a block of n ≤ block() values, at least 1 */
  /* Encodes n values to `out`, which has block_bound() bytes, and returns the number of bytes written; FIXED codecs
   * fill all of them. `index` is the position of x[0] in the layer. A block with a NaN or Inf must decode to NaN. */
  size_t (*encode_block)(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                         const pith_ctx *ctx);
  /* Returns the size of the block of n values at the start of `in`, or 0 if the bytes are not well-formed. Must never
   * read beyond in.size. Optional for FIXED codecs whose decoder accepts any bytes. */
  size_t (*check_block)(const pith_value *a, pith_bytes in, size_t n);
  /* Decodes a block that passed check_block. */
  void (*decode_block)(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                       const pith_ctx *ctx);

  /* Whole codecs. ctx->scratch is never NULL; it has at least scratch() bytes, aligned to 64. */
  size_t (*bound)(const pith_value *a, size_t n);
  size_t (*scratch)(const pith_value *a, size_t n);
  pith_status (*encode)(const pith_value *a, pith_cspan src, pith_out *out, void *part, const pith_ctx *ctx);
  pith_status (*decode)(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply, const pith_ctx *ctx);

  /* ROUNDS codecs. `part` is the codec's own piece of the state: part_size() bytes, initially zero. encode() gets it
   * too, or NULL if the caller has no state. dst.n is the size of the layer in every round; dst.data is set only in the
   * last round. */
  size_t (*part_size)(const pith_value *a, size_t n, uint64_t rows);
  size_t (*rounds)(const pith_value *a);
  /* Optional: whether rounds are possible with this context, such as its number of ranks. Called before anything
   * changes. */
  pith_status (*admit)(const pith_value *a, const pith_ctx *ctx);
  /* Sets the fields of *round that it knows. It must not assign the whole struct, which may be shorter or longer in the
   * library. */
  pith_status (*describe)(const pith_value *a, size_t n, uint64_t rows, size_t index, pith_round *round);
  pith_status (*produce)(const pith_value *a, size_t index, pith_cspan src, void *buffer, void *part,
                         const pith_ctx *ctx);
  pith_status (*consume)(const pith_value *a, size_t index, const void *buffer, pith_span dst, void *part,
                         const pith_ctx *ctx);
  /* Optional, for error feedback: after all rounds, what this rank's share of n f32 values decodes to by itself.
   * Without this function error feedback takes the mean over ranks for what was sent. */
  void (*own)(const pith_value *a, const float *x, size_t n, uint64_t index, float *decoded, const void *part,
              const pith_ctx *ctx);

  /* Optional, for whole codecs that are LINEAR and FIXED and whose payload is an array of values: the type of these
   * values. Ranks then sum the payloads as plain values, and decode the sum. */
  pith_dtype (*linear)(const pith_value *a);

  /* Optional, for ROUNDS codecs: the number of values of a strip. Every produce() and the last consume() are then
   * called once for each strip, in order, while its values are in the cache. src and dst are the whole layer;
   * ctx->offset is the start of the strip. */
  size_t (*strip)(const pith_value *a, size_t n, uint64_t rows);

  /* Optional, for people: what is sent, and when to use the method. */
  const char *detail, *use;

  /* What Pith's own codecs tell the planner and the GPU layer. Ignored in plug-ins; leave it out. */
  const struct pith_codec_traits *traits;
} pith_codec_ops;

/* A transform: an invertible step on blocks of f32 values before the codec. Several threads may call its functions at
 * once; the functions have no state. */
typedef struct pith_plugin_transform {
  size_t size; /* sizeof(pith_plugin_transform) */
  const char *name, *summary;
  const pith_param *params;                  /* at most PITH_PARAMS_MAX, then a NULL key */
  pith_status (*check)(const pith_value *a); /* optional */
  size_t (*block)(const pith_value *a);      /* values of a block, 1…PITH_BLOCK_MAX */
  /* Transform n ≤ block() values in place. `index` is the position of x[0] in the layer. A NaN or Inf must make the
   * whole block NaN. After an error the values are undefined. */
  pith_status (*forward)(const pith_value *a, float *x, size_t n, uint64_t index, const pith_ctx *ctx);
  pith_status (*inverse)(const pith_value *a, float *x, size_t n, uint64_t index, const pith_ctx *ctx);
} pith_plugin_transform;

/* What a memory keeps between steps for a range of a layer's values; each pointer points to the first value of the
 * range. NULL: the memory does not keep this array. */
typedef struct pith_kept {
  float *residual, *momentum;
} pith_kept;

/* A memory decides which values are encoded in place of the gradient. The library stores what remains: in the residual,
 * the part that decoding does not give back, or, if keeps_all is set, all values in the momentum. */
typedef struct pith_plugin_memory {
  size_t size; /* sizeof(pith_plugin_memory) */
  const char *name, *summary;
  const pith_param *params;                  /* at most PITH_PARAMS_MAX, then a NULL key */
  pith_status (*check)(const pith_value *a); /* optional */
  int keeps_all;
  /* p = the values to send for the gradient values g, each multiplied by gamma. Works value by value, on n values from
   * anywhere in the layer. p may be the same memory as a kept array. */
  pith_status (*compensate)(const pith_value *a, const pith_kept *kept, const float *g, float gamma, float *p,
                            size_t n);
} pith_plugin_memory;

/* What pith_plugin_entry() returns. It must live as long as the process. */
typedef struct pith_plugin {
  size_t size;  /* sizeof(pith_plugin) */
  uint32_t abi; /* PITH_PLUGIN_ABI */
  const char *name, *version;
  const pith_codec_ops *const *codecs;
  size_t codec_count;
  const pith_plugin_transform *const *transforms;
  size_t transform_count;
  const pith_plugin_memory *const *memories;
  size_t memory_count;
} pith_plugin;

/* Adds methods from a program's own tables, like pith_plugin_load() but without a shared object. The tables are copied;
 * their functions and texts must stay valid as long as the process runs. `plugin->name` becomes the origin that `pith
 * codecs` shows. PITH_ERR_PLUGIN: a name or a wire id is taken; nothing is then added. Any thread. */
PITH_API pith_status pith_plugin_add(const pith_plugin *plugin);

/* The type and the name of the function that a plug-in exports. */
typedef const pith_plugin *(*pith_plugin_entry_fn)(void);
#define PITH_PLUGIN_ENTRY "pith_plugin_entry"

#ifdef __cplusplus
}
#endif
#endif
