/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pith's codecs turn gradients into bytes and back. Part of the public API; pith.h includes it. The life of a gradient,
 * from top to bottom:
 *
 *   pith_codec *codec;                                         // once for each layer
 *   pith_state *state;
 *   pith_codec_create("ef/q:4", &codec);
 *   pith_state_create(codec, n, rows, &state);
 *
 *   pith_out out = {bytes, pith_codec_bound(codec, n), 0};     // every step
 *   pith_encode(codec, state, src, &out, &ctx);
 *   pith_decode(codec, (pith_bytes){bytes, out.size}, dst, PITH_ADD, &ctx);
 *
 * A pith_codec never changes after creation and may be shared by threads. A pith_state belongs to one thread at a time.
 */
#ifndef PITH_CODEC_H
#define PITH_CODEC_H

#include <pith/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Codecs ------------------------------------------------------------------------------------------------------ */

/* What a codec can do. Collectives choose from this how to exchange its payloads. */
typedef enum pith_cap {
  PITH_CAP_FIXED = 1 << 0,    /* the size of a payload depends on n only */
  PITH_CAP_CHUNKED = 1 << 1,  /* a payload is the payloads of the tensor's granule-aligned pieces, one after another */
  PITH_CAP_LINEAR = 1 << 2,   /* payloads (or rounds) of several ranks can be added */
  PITH_CAP_SPARSE = 1 << 3,   /* only some values are sent, with their indices */
  PITH_CAP_ROUNDS = 1 << 4,   /* several exchanges: see pith_round_* */
  PITH_CAP_VOTE = 1 << 5,     /* the result of several ranks is their majority, not their mean */
  PITH_CAP_UNBIASED = 1 << 6, /* the expectation of the decoded value is the value */
  PITH_CAP_SEEDED = 1 << 7,   /* bytes depend on seed, step, layer and rank; decoding needs the encoder's values */
  PITH_CAP_ONCE = 1 << 8,     /* the spec says encode=once: all ranks' payloads are gathered; sums are not encoded */
} pith_cap;

/* A spec such as "ef/topk:0.01,values=fp16", parsed, validated and bound to its methods. */
typedef struct pith_codec pith_codec;

/* Parses a spec and creates its codec. PITH_ERR_SPEC: the text is not a valid spec. PITH_ERR_RANGE: a parameter is out
 * of range. PITH_ERR_UNSUPPORTED: the parts do not fit together. */
PITH_API pith_status pith_codec_create(const char *spec, pith_codec **codec);
PITH_API void pith_codec_destroy(pith_codec *codec);

/* The canonical text of the spec: defaults left out, values in their shortest form. Lives as long as the codec. */
PITH_API const char *pith_codec_spec(const pith_codec *codec);

/* The same with presets replaced by their parts ("signum:0.9" is "momentum:0.9/sign"). Lives as long as the codec. */
PITH_API const char *pith_codec_parts(const pith_codec *codec);

/* A number that is equal for two codecs exactly if they mean the same. Ranks compare it before they exchange data. */
PITH_API uint64_t pith_codec_fingerprint(const pith_codec *codec);

PITH_API uint32_t pith_codec_caps(const pith_codec *codec);    /* pith_cap bits */
PITH_API uint16_t pith_codec_wire_id(const pith_codec *codec); /* the codec's number in messages */

/* Pieces of a tensor for a CHUNKED codec start at multiples of this many values. 0 for codecs that encode a tensor as a
 * whole. */
PITH_API size_t pith_codec_granule(const pith_codec *codec);

/* The most bytes that the payload of n values can take. FIXED codecs take exactly this many. SIZE_MAX if n is too large
 * for any buffer. */
PITH_API size_t pith_codec_bound(const pith_codec *codec, size_t n);

/* Bytes of scratch memory that one encode or decode of n values needs (pith_ctx.scratch). */
PITH_API size_t pith_codec_scratch(const pith_codec *codec, size_t n);

/* The place of a tensor in the training run. Random numbers are derived from it, and so are the parts of a method that
 * depend on a value's position. */
typedef struct pith_ctx {
  size_t size;     /* sizeof(pith_ctx) */
  uint64_t seed;   /* of the training run, the same on every rank */
  uint64_t step;   /* counts up */
  uint64_t layer;  /* number of the layer, the same on every rank */
  uint32_t rank;   /* the encoder's rank, when decoding too */
  uint32_t ranks;  /* the number of ranks that are summed; 0 counts as 1 */
  uint64_t offset; /* index of the first value in the layer: a multiple of the granule */
  uint64_t rows;   /* first dimension, for low rank; 0: near-square */
  float gamma;     /* factor applied to the gradient before the residual is added; 0 counts as 1 */
  void *scratch;   /* at least pith_codec_scratch() bytes. NULL: the call allocates and frees its own */
  size_t scratch_size;
} pith_ctx;

#define PITH_CTX_INIT {.size = sizeof(pith_ctx)}

/* ---- State: what one rank keeps for one layer between steps ------------------------------------------------------ */

/* What error feedback, momentum or low rank keeps of one layer. One thread uses it at a time. */
typedef struct pith_state pith_state;

/* Creates a state with a zero residual for a layer of n values with a first dimension of `rows` (0: near-square). A
 * codec without memory or rounds needs no state: *state is then a valid object that holds nothing, and you may pass
 * NULL in its place. */
PITH_API pith_status pith_state_create(const pith_codec *codec, size_t n, size_t rows, pith_state **state);
PITH_API void pith_state_destroy(pith_state *state);

/* Changes the state to another spec. The residual and the momentum are kept if the new spec has them too. When only the
 * rank of a low-rank method changes, the columns that both have are kept. Everything else starts from zero. */
PITH_API pith_status pith_state_adapt(pith_state *state, const pith_codec *codec);

/* Checkpoints. pith_state_save() needs a buffer of pith_state_save_size() bytes. Loading checks the bytes: a different
 * layer size or a damaged file is an error and changes nothing. A state that a comm has used belongs to its rank:
 * loading its checkpoint into another rank's state is PITH_ERR_STATE. A new state takes it, but another rank's first
 * operation with it is then PITH_ERR_STATE. */
PITH_API size_t pith_state_save_size(const pith_state *state);
PITH_API pith_status pith_state_save(const pith_state *state, pith_out *out);
PITH_API pith_status pith_state_load(pith_state *state, pith_bytes bytes);

/* Multiplies everything the state keeps by `factor`, for example after a change of the loss scale. */
PITH_API pith_status pith_state_scale(pith_state *state, float factor);

/* Multiplies what is still to be sent by `factor`: the residual of `ef`, `v` of `dgc`, and the residual of results.
 * After a change of the learning rate from a to b, a factor of a/b preserves the pending update. Momenta (of
 * `momentum`, `u` of `dgc`) are means or sums of gradients; they do not depend on the rate and stay as they are. */
PITH_API pith_status pith_state_scale_residual(pith_state *state, float factor);

/* The residual of `ef` (or `v` of `dgc`): n floats that belong to the state. NULL if the state has none, or keeps it in
 * fewer bits (`ef,store=8`). For tests and statistics. */
PITH_API const float *pith_state_residual(const pith_state *state);

/* Writes the residual as n floats to `to`, in whatever format the state stores it. Returns n, or 0 if the state has no
 * residual. */
PITH_API size_t pith_state_copy_residual(const pith_state *state, float *to);

/* Bytes of the residual of n values, which depend on the codec's parameter `store`; 0 if its memory keeps none. A rank
 * that encodes results for others keeps as many bytes again for each of their values. */
PITH_API size_t pith_codec_residual_size(const pith_codec *codec, size_t n);

/* ---- Encode, decode, aggregate ----------------------------------------------------------------------------------- */

/* What decoding does with the destination. */
typedef enum pith_mode {
  PITH_SET = 0, /* dst = decoded */
  PITH_ADD = 1, /* dst += decoded, summed in f32 whatever the type of dst */
} pith_mode;

/* Encodes src (f32, f16 or bf16). A codec with a memory needs a state created for it, which the call updates.
 * out->capacity must be at least pith_codec_bound(), else PITH_ERR_BUFFER. ctx may be NULL for all defaults. */
PITH_API pith_status pith_encode(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                 const pith_ctx *ctx);

/* Decodes a payload. Any bytes are safe: PITH_ERR_CORRUPT if they are not a payload of this codec and length; dst is
 * then unchanged. */
PITH_API pith_status pith_decode(const pith_codec *codec, pith_bytes in, pith_span dst, pith_mode mode,
                                 const pith_ctx *ctx);

/* Turns a sum of ctx->ranks decoded payloads into the result, in place. The result is the mean, or for VOTE codecs the
 * majority: 1, −1, or 0 for a tie. */
PITH_API pith_status pith_aggregate(const pith_codec *codec, pith_span sum, const pith_ctx *ctx);

/* ---- Rounds: methods that need several exchanges ----------------------------------------------------------------- */

/* One exchange: `count` values of `dtype` are reduced element by element over all ranks. */
typedef struct pith_round {
  size_t size; /* sizeof(pith_round) */
  pith_dtype dtype;
  pith_reduce_op reduce;
  size_t count;
} pith_round;

#define PITH_ROUND_INIT {.size = sizeof(pith_round)}

/* The number of exchanges of a ROUNDS codec; 0 for all others. */
PITH_API size_t pith_codec_rounds(const pith_codec *codec);

/* Describes exchange `index` for the layer that the state was made for. */
PITH_API pith_status pith_round_describe(const pith_codec *codec, const pith_state *state, size_t index,
                                         pith_round *round);

/* Fills `buffer` with this rank's values for exchange `index`. src is the same tensor in every round of a step. Round 0
 * starts the step and adds the residual to the gradient. */
PITH_API pith_status pith_round_produce(const pith_codec *codec, pith_state *state, size_t index, pith_cspan src,
                                        void *buffer, const pith_ctx *ctx);

/* Takes the reduced values of exchange `index`. The last round writes the mean over ctx->ranks to dst and updates the
 * residual; the others do not touch dst. */
PITH_API pith_status pith_round_consume(const pith_codec *codec, pith_state *state, size_t index, const void *buffer,
                                        pith_span dst, const pith_ctx *ctx);

/* ---- Rules: a spec for every layer ------------------------------------------------------------------------------- */

/* Rules such as "*.bias=none;embed*=ef/topk:0.01;*=q:4": the first pattern that matches a layer's name gives its spec.
 * A text without a pattern is the spec of all layers. Rules never change, so threads may share them. */
typedef struct pith_rules pith_rules;

/* Parses rules. PITH_ERR_SPEC names the rule that is wrong. */
PITH_API pith_status pith_rules_create(const char *text, pith_rules **rules);
PITH_API void pith_rules_destroy(pith_rules *rules);
PITH_API const char *pith_rules_text(const pith_rules *rules); /* canonical; lives as long as the rules */
PITH_API size_t pith_rules_count(const pith_rules *rules);     /* how many there are */

/* What the rules say about a layer. */
typedef struct pith_match {
  size_t size;             /* sizeof(pith_match) */
  const pith_codec *codec; /* lives as long as the rules */
  size_t rule;             /* index of the rule; SIZE_MAX if a default decided */
  const char *reason;      /* a phrase for statistics: "rule embed*", "one dimension", … */
} pith_match;

#define PITH_MATCH_INIT {.size = sizeof(pith_match)}

/* Finds the codec for a layer of n values. Tensors with one dimension or with fewer than pith_minimal_size() values are
 * not compressed unless a rule with a pattern other than "*" matches them. A layer that no rule matches is not
 * compressed either. */
PITH_API pith_status pith_rules_find(const pith_rules *rules, const char *layer, size_t dimensions, size_t n,
                                     pith_match *match);

/* 1 if the pattern of rule `index` matches the name, regardless of earlier rules and of defaults. Use it to find rules
 * that match no layer at all. */
PITH_API int pith_rules_matches(const pith_rules *rules, size_t index, const char *layer);

/* The smallest number of values for which a tensor is compressed without a rule that names it: the value that was set,
 * else the environment variable PITH_MINIMAL_SIZE, else 1024. PITH_ERR_ARGUMENT if the variable is not a number. The
 * value holds for the whole process. Rules, profiles and adapters read it when they are created, and it must be the
 * same on all ranks. Setting PITH_MINIMAL_SIZE_UNSET undoes an earlier setting. */
#define PITH_MINIMAL_SIZE_UNSET SIZE_MAX
PITH_API pith_status pith_minimal_size(size_t *values);
PITH_API void pith_minimal_size_set(size_t values);

/* ---- The list of methods ----------------------------------------------------------------------------------------- */

/* The kind of a method. The first parts of a spec are memories and transforms, the last is a codec or a preset. */
typedef enum pith_kind {
  PITH_KIND_CODEC = 0,
  PITH_KIND_TRANSFORM = 1,
  PITH_KIND_MEMORY = 2,
  PITH_KIND_PRESET = 3
} pith_kind;

/* The type of a parameter's values. */
typedef enum pith_param_type {
  PITH_PARAM_INT = 0,
  PITH_PARAM_REAL = 1,
  PITH_PARAM_CHOICE = 2,
  PITH_PARAM_SPEC = 3, /* a spec; adaptive specs only */
} pith_param_type;

/* One parameter of a method. The first parameter of a list may be given as `name:value`. A list ends with an element
 * whose key is NULL. */
typedef struct pith_param {
  size_t size; /* sizeof(pith_param) */
  const char *key;
  pith_param_type type;
  double min, max;
  const char *initial; /* default, as text; NULL: must be given */
  const char *choices; /* CHOICE: the words, as in "nearest|stochastic". REAL: words for the numbers 0, 1, …, or NULL */
  const char *help;
} pith_param;

/* The texts and lists of a method live as long as the process. */
typedef struct pith_method {
  size_t size; /* sizeof(pith_method) */
  const char *name, *family, *summary;
  const char *made_of; /* presets: the parts, with {key} where a parameter goes; NULL otherwise */
  const char *bits;    /* bits per value as a formula; NULL for memories and transforms */
  pith_kind kind;
  uint32_t caps; /* 0 for memories and transforms */
  uint16_t wire_id;
  int survey;               /* one of the sixteen methods of the GRACE survey */
  const char *origin;       /* paper, or plug-in file */
  const pith_param *params; /* of the library's size: consecutive elements are params->size bytes apart */
} pith_method;

#define PITH_METHOD_INIT {.size = sizeof(pith_method)}

/* All methods: Pith's own, those of plug-ins, and those that the program added. PITH_ERR_RANGE beyond the last. Any
 * thread. */
PITH_API size_t pith_method_count(void);
PITH_API pith_status pith_method_get(size_t index, pith_method *method);

/* More about method `index`, for people; NULL if there is no such text. The detail says what is sent (codecs) or what a
 * rank keeps (memories). The use says when to use the method. */
PITH_API const char *pith_method_detail(size_t index);
PITH_API const char *pith_method_use(size_t index);

/* Whether an allreduce algorithm ("sra", "ring", …) can run with a codec (NULL: with uncompressed values). The error
 * says why not. PITH_ERR_ARGUMENT for an unknown name. Whether the placement of ranks on hosts allows it is only known
 * when it runs. */
PITH_API pith_status pith_algorithm_suits(const char *algorithm, const pith_codec *codec);
/* The name of algorithm `index`; NULL beyond the last. */
PITH_API const char *pith_algorithm_get(size_t index);

/* Loads codecs from a shared object. `name` is a path, or a NAME that is looked up as pith_NAME.so in the folders of
 * PITH_PLUGIN_PATH. The names in PITH_PLUGINS (comma-separated) are loaded when methods are first looked up. A plug-in
 * is never unloaded. */
PITH_API pith_status pith_plugin_load(const char *name);

/* ---- This machine ------------------------------------------------------------------------------------------------ */

/* Instruction sets, slowest first. All give the same bits. */
typedef enum pith_isa { PITH_ISA_SCALAR = 0, PITH_ISA_AVX2 = 1, PITH_ISA_AVX512 = 2, PITH_ISA_COUNT = 3 } pith_isa;

PITH_API const char *pith_isa_name(pith_isa isa);   /* "scalar", "avx2", "avx512" */
PITH_API int pith_isa_available(pith_isa isa);      /* built in, and this CPU has it */
PITH_API pith_isa pith_isa_current(void);           /* the best, or what PITH_CPU or pith_isa_select() chose */
PITH_API pith_status pith_isa_select(pith_isa isa); /* for tests and comparison; results never depend on it */

#ifdef __cplusplus
}
#endif
#endif
