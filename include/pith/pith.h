/*
 * Pith: compressed communication for distributed deep learning.
 *
 * This header is the whole public API. The life of a gradient, from top to bottom:
 *
 *   pith_codec *codec;  pith_state *state;               // once for each layer
 *   pith_codec_create("ef/q:4", &codec);
 *   pith_state_create(codec, n, rows, &state);
 *
 *   pith_out out = {bytes, pith_codec_bound(codec, n), 0};     // every step
 *   pith_encode(codec, state, src, &out, &ctx);
 *   pith_decode(codec, (pith_bytes){bytes, out.size}, dst, PITH_ADD, &ctx);
 *
 * Conventions. A function that can fail returns a pith_status, writes its outputs only on success, and leaves a
 * sentence for people in pith_error(). Callers own every tensor and buffer; the library keeps no pointer to them after
 * it returns. Objects are created and destroyed in pairs, destroying NULL is legal. A pith_codec never changes after
 * creation and may be shared by threads; a pith_state belongs to one thread at a time.
 */
#ifndef PITH_PITH_H
#define PITH_PITH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PITH_API __attribute__((visibility("default")))
#else
#define PITH_API
#endif

#define PITH_VERSION_MAJOR 0
#define PITH_VERSION_MINOR 1
#define PITH_VERSION_PATCH 0

/* "0.1.0" of the library that is loaded, which may differ from the header's. */
PITH_API const char *pith_version(void);

/* ---- Status ---------------------------------------------------------------------------------------------------- */

/* Values are frozen: they cross process and language borders. X(name, value, text) */
#define PITH_STATUS_LIST(X)                          \
  X(OK, 0, "success")                                \
  X(ERR_ARGUMENT, 1, "invalid argument")             \
  X(ERR_SPEC, 2, "invalid spec")                     \
  X(ERR_RANGE, 3, "value out of range")              \
  X(ERR_UNSUPPORTED, 4, "parts do not fit together") \
  X(ERR_BUFFER, 5, "buffer too small")               \
  X(ERR_CORRUPT, 6, "corrupt payload")               \
  X(ERR_MEMORY, 7, "out of memory")                  \
  X(ERR_STATE, 8, "state does not fit")              \
  X(ERR_PLUGIN, 9, "plug-in cannot be used")         \
  X(ERR_SYSTEM, 10, "system call failed")            \
  X(ERR_PEER, 11, "a rank failed")                   \
  X(ERR_TIMEOUT, 12, "timed out")                    \
  X(ERR_MISMATCH, 13, "ranks disagree")              \
  X(ERR_ABORTED, 14, "aborted")                      \
  X(ERR_INTERRUPTED, 15, "interrupted")

typedef enum pith_status {
#define PITH_STATUS_ENUM(name, value, text) PITH_##name = value,
  PITH_STATUS_LIST(PITH_STATUS_ENUM)
#undef PITH_STATUS_ENUM
} pith_status;

/* The status in words; never NULL, for any value. */
PITH_API const char *pith_status_string(pith_status status);

/* What went wrong in the last failed call of this thread: what, where, and what to do. Valid until the next failure. */
PITH_API const char *pith_error(void);

/* ---- Tensors and bytes ----------------------------------------------------------------------------------------- */

typedef enum pith_dtype {
  PITH_F32 = 0,
  PITH_F16 = 1,
  PITH_BF16 = 2,
  PITH_I8 = 3,
  PITH_I16 = 4,
  PITH_I32 = 5,
  PITH_F64 = 6,
  PITH_I64 = 7,
  PITH_U8 = 8,
} pith_dtype;

PITH_API size_t pith_dtype_size(pith_dtype dtype);      /* bytes of one value; 0 for an unknown type */
PITH_API const char *pith_dtype_name(pith_dtype dtype); /* "f32", …; "?" for an unknown type */

/* n values in memory, without alignment beyond that of one value. Tensors are f32, f16 or bf16. */
typedef struct pith_span {
  void *data;
  size_t n;
  pith_dtype dtype;
} pith_span;

typedef struct pith_cspan {
  const void *data;
  size_t n;
  pith_dtype dtype;
} pith_cspan;

typedef struct pith_bytes {
  const void *data;
  size_t size;
} pith_bytes;

/* A buffer to fill: `capacity` is the caller's, `size` is set on success. */
typedef struct pith_out {
  void *data;
  size_t capacity;
  size_t size;
} pith_out;

/* ---- Codecs ---------------------------------------------------------------------------------------------------- */

/* What a codec can do; decides how it travels. */
typedef enum pith_cap {
  PITH_CAP_FIXED = 1 << 0,    /* payload bytes follow from n alone */
  PITH_CAP_CHUNKED = 1 << 1,  /* a payload is the payloads of the tensor's granule-aligned pieces, one after another */
  PITH_CAP_LINEAR = 1 << 2,   /* payloads (or rounds) of several ranks add up */
  PITH_CAP_SPARSE = 1 << 3,   /* only some values travel, with their indices */
  PITH_CAP_ROUNDS = 1 << 4,   /* several exchanges: see pith_round_* */
  PITH_CAP_VOTE = 1 << 5,     /* ranks are joined by majority, not by mean */
  PITH_CAP_UNBIASED = 1 << 6, /* the expectation of the decoded value is the value */
  PITH_CAP_SEEDED = 1 << 7,   /* bytes depend on seed, step, layer and rank; decoding is given the encoder's */
} pith_cap;

/* A spec such as "ef/topk:0.01,values=fp16", parsed, validated and joined to its methods. */
typedef struct pith_codec pith_codec;

PITH_API pith_status pith_codec_create(const char *spec, pith_codec **codec);
PITH_API void pith_codec_destroy(pith_codec *codec);

/* The canonical text of the spec: defaults left out, values in their shortest form. Lives as long as the codec. */
PITH_API const char *pith_codec_spec(const pith_codec *codec);

/* The same with presets taken apart ("signum:0.9" is "momentum:0.9/sign"). Lives as long as the codec. */
PITH_API const char *pith_codec_parts(const pith_codec *codec);

/* A number that two codecs share exactly when they mean the same; ranks compare it before they exchange data. */
PITH_API uint64_t pith_codec_fingerprint(const pith_codec *codec);

PITH_API uint32_t pith_codec_caps(const pith_codec *codec); /* pith_cap bits */
PITH_API uint16_t pith_codec_wire_id(const pith_codec *codec);

/* Pieces of a CHUNKED codec start at multiples of this many values; 0 where the tensor is encoded as a whole. */
PITH_API size_t pith_codec_granule(const pith_codec *codec);

/* The most bytes that n values can take; SIZE_MAX if n is too large for any buffer. FIXED codecs take exactly this. */
PITH_API size_t pith_codec_bound(const pith_codec *codec, size_t n);

/* Bytes of scratch that one encode or decode of n values needs (pith_ctx.scratch). */
PITH_API size_t pith_codec_scratch(const pith_codec *codec, size_t n);

/* What random numbers, and the parts of a method that depend on the place of a value, follow from. */
typedef struct pith_ctx {
  size_t size;     /* sizeof(pith_ctx): lets the struct grow */
  uint64_t seed;   /* one for a training run, the same on every rank */
  uint64_t step;   /* counts up */
  uint64_t layer;  /* number of the layer, the same on every rank */
  uint32_t rank;   /* the encoder's rank, when decoding too */
  uint32_t ranks;  /* how many ranks are summed; 0 counts as 1 */
  uint64_t offset; /* index in the layer of the first value: a multiple of the granule */
  uint64_t rows;   /* first dimension, for low rank; 0: near-square */
  float gamma;     /* factor on the gradient before it meets the memory; 0 counts as 1 */
  void *scratch;   /* at least pith_codec_scratch() bytes, or NULL: then the call allocates and frees its own */
  size_t scratch_size;
} pith_ctx;

#define PITH_CTX_INIT {.size = sizeof(pith_ctx)}

/* ---- State: what one rank keeps for one layer between steps ----------------------------------------------------- */

typedef struct pith_state pith_state;

/* A fresh state (zero residual) for a layer of n values. A codec without memory or rounds needs none: *state is then
 * a valid object that holds nothing, and NULL may be passed in its place. */
PITH_API pith_status pith_state_create(const pith_codec *codec, size_t n, size_t rows, pith_state **state);
PITH_API void pith_state_destroy(pith_state *state);

/* Moves to another spec: residual and momentum stay where the new spec has them too, the rest starts fresh. */
PITH_API pith_status pith_state_adapt(pith_state *state, const pith_codec *codec);

/* Checkpoints. The bytes are checked on load: another layer size or a damaged file is an error and changes nothing. A
 * state that a comm has used belongs to that rank: loading it into one that another rank has used is PITH_ERR_STATE,
 * and so is the first operation of another rank after loading it into a fresh one. */
PITH_API size_t pith_state_save_size(const pith_state *state);
PITH_API pith_status pith_state_save(const pith_state *state, pith_out *out);
PITH_API pith_status pith_state_load(pith_state *state, pith_bytes bytes);

/* Multiplies all that is kept: gradients come in other units now, as after a change of the loss scale. */
PITH_API pith_status pith_state_scale(pith_state *state, float factor);

/* The residual of `ef` (or `v` of `dgc`): n floats, NULL if the state has none. For tests and statistics. */
PITH_API const float *pith_state_residual(const pith_state *state);

/* ---- Encode, decode, aggregate ---------------------------------------------------------------------------------- */

typedef enum pith_mode {
  PITH_SET = 0, /* dst = decoded */
  PITH_ADD = 1, /* dst += decoded, summed in f32 whatever the type of dst */
} pith_mode;

/* Encodes src, after the memory if the codec has one (state must then fit, and is updated).
 * out->capacity must be at least pith_codec_bound(). ctx may be NULL for all defaults. */
PITH_API pith_status pith_encode(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                 const pith_ctx *ctx);

/* Decodes any bytes: a payload that is not one of this codec and length is refused, and dst is then unchanged. */
PITH_API pith_status pith_decode(const pith_codec *codec, pith_bytes in, pith_span dst, pith_mode mode,
                                 const pith_ctx *ctx);

/* Turns a sum over ctx->ranks decoded payloads into the result: a mean, or the majority for VOTE codecs. */
PITH_API pith_status pith_aggregate(const pith_codec *codec, pith_span sum, const pith_ctx *ctx);

/* ---- Rounds: methods that need several exchanges ---------------------------------------------------------------- */

typedef enum pith_reduce_op {
  PITH_SUM = 0,
  PITH_MAX = 1,
  PITH_MIN = 2,
  PITH_PROD = 3,
  PITH_MEAN = 4, /* of floats */
  PITH_BAND = 5, /* of integers */
  PITH_BOR = 6,
  PITH_BXOR = 7,
} pith_reduce_op;

/* One exchange: `count` values of `dtype` that are reduced element by element over all ranks. */
typedef struct pith_round {
  pith_dtype dtype;
  pith_reduce_op reduce;
  size_t count;
} pith_round;

/* How many exchanges a ROUNDS codec takes; 0 for all others. */
PITH_API size_t pith_codec_rounds(const pith_codec *codec);

/* Describes exchange `index` for the layer that state was made for. */
PITH_API pith_status pith_round_describe(const pith_codec *codec, const pith_state *state, size_t index,
                                         pith_round *round);

/* Fills `buffer` with this rank's part. src is the same tensor in every round of a step; round 0 starts the step, and
 * with it the memory meets the gradient. */
PITH_API pith_status pith_round_produce(const pith_codec *codec, pith_state *state, size_t index, pith_cspan src,
                                        void *buffer, const pith_ctx *ctx);

/* Takes the reduced values. The last round writes the mean over ctx->ranks to dst and updates the memory; the others
 * leave dst alone. */
PITH_API pith_status pith_round_consume(const pith_codec *codec, pith_state *state, size_t index, const void *buffer,
                                        pith_span dst, const pith_ctx *ctx);

/* ---- Rules: a spec for every layer ------------------------------------------------------------------------------ */

/* "*.bias=none;embed*=ef/topk:0.01;*=q:4": first match wins; a text without a pattern is "*=" that spec. */
typedef struct pith_rules pith_rules;

PITH_API pith_status pith_rules_create(const char *text, pith_rules **rules);
PITH_API void pith_rules_destroy(pith_rules *rules);
PITH_API const char *pith_rules_text(const pith_rules *rules); /* canonical; lives as long as the rules */
PITH_API size_t pith_rules_count(const pith_rules *rules);

typedef struct pith_match {
  const pith_codec *codec; /* lives as long as the rules */
  size_t rule;             /* index of the rule; SIZE_MAX when a default decided */
  const char *reason;      /* a phrase for statistics: "rule embed*", "one dimension", … */
} pith_match;

/* The codec for a layer. Tensors of one dimension or under 1024 values travel uncompressed unless a rule with a pattern
 * other than "*" names them; a layer that no rule matches does too. */
PITH_API pith_status pith_rules_find(const pith_rules *rules, const char *layer, size_t dimensions, size_t n,
                                     pith_match *match);

/* Whether rule `index` matches the name, defaults aside: finds rules that match no layer at all. */
PITH_API int pith_rules_matches(const pith_rules *rules, size_t index, const char *layer);

/* ---- The methods there are -------------------------------------------------------------------------------------- */

typedef enum pith_kind {
  PITH_KIND_CODEC = 0,
  PITH_KIND_TRANSFORM = 1,
  PITH_KIND_MEMORY = 2,
  PITH_KIND_PRESET = 3
} pith_kind;

typedef enum pith_param_type {
  PITH_PARAM_INT = 0,
  PITH_PARAM_REAL = 1,
  PITH_PARAM_CHOICE = 2,
  PITH_PARAM_SPEC = 3, /* a spec; adaptive specs only */
} pith_param_type;

/* One parameter of a method. The first of a list may be given as `name:value`. A list ends with a NULL key. */
typedef struct pith_param {
  const char *key;
  pith_param_type type;
  double min, max;
  const char *initial; /* default, as text; NULL: must be given */
  const char *choices; /* "nearest|stochastic" for CHOICE */
  const char *help;
} pith_param;

typedef struct pith_method {
  const char *name, *family, *summary;
  const char *made_of; /* presets: the parts, with {key} where a parameter goes; NULL otherwise */
  const char *bits;    /* bits per value as a formula; NULL for memories and transforms */
  pith_kind kind;
  uint32_t caps; /* 0 for memories and transforms */
  uint16_t wire_id;
  int survey;         /* one of the sixteen methods of the GRACE survey */
  const char *origin; /* paper, or plug-in file */
  const pith_param *params;
} pith_method;

PITH_API size_t pith_method_count(void);
PITH_API pith_status pith_method_get(size_t index, pith_method *method);

/* More about method `index`, for people; NULL if it says nothing. Detail: what travels (codecs), what a rank keeps
 * (memories). Use: when to use it. */
PITH_API const char *pith_method_detail(size_t index);
PITH_API const char *pith_method_use(size_t index);

/* Algorithms of allreduce: whether one ("sra", "ring", …) can run with a codec, NULL for uncompressed values, where
 * the hosts allow it. The error says why not. PITH_ERR_ARGUMENT for a name that there is none of. */
PITH_API pith_status pith_algorithm_suits(const char *algorithm, const pith_codec *codec);
/* The name of algorithm `index`; NULL beyond the last. */
PITH_API const char *pith_algorithm_get(size_t index);

/* Loads codecs from a shared object: a path, or a name NAME that is looked up as pith_NAME.so in the folders of
 * PITH_PLUGIN_PATH. Names in PITH_PLUGINS (comma-separated) are loaded at first use of the registry. */
PITH_API pith_status pith_plugin_load(const char *name);

/* ---- This machine ----------------------------------------------------------------------------------------------- */

typedef enum pith_isa { PITH_ISA_SCALAR = 0, PITH_ISA_AVX2 = 1, PITH_ISA_AVX512 = 2, PITH_ISA_COUNT = 3 } pith_isa;

PITH_API const char *pith_isa_name(pith_isa isa);
PITH_API int pith_isa_available(pith_isa isa);      /* built in, and this CPU has it */
PITH_API pith_isa pith_isa_current(void);           /* the best available, or what PITH_CPU or pith_isa_select say */
PITH_API pith_status pith_isa_select(pith_isa isa); /* for tests and comparison; results never depend on it */

#ifdef __cplusplus
}
#endif

#include <pith/bucket.h>
#include <pith/comm.h>
#include <pith/plan.h>

#endif
