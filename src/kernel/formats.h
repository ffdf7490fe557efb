/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What C and CUDA must agree on: numbers of the payload formats (docs/format.md), and the task that the library hands
 * to the CUDA module. A task is a piece of a layer with everything about its codec written out as plain numbers, so
 * that the module needs neither specs nor the library. Compiled by C and by CUDA C++ compilers.
 */
#ifndef PITH_KERNEL_FORMATS_H
#define PITH_KERNEL_FORMATS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define PITH_FORMAT_ASSERT(condition, text) static_assert(condition, text)
#else
#define PITH_FORMAT_ASSERT(condition, text) _Static_assert(condition, text)
#endif

/* ---- Formats ----------------------------------------------------------------------------------------------------- */

/* Wire ids of Pith's own codecs. Plug-ins have those from 0x8000 on. */
enum {
  PITH_WIRE_NONE = 1,
  PITH_WIRE_FP16 = 2,
  PITH_WIRE_BF16 = 3,
  PITH_WIRE_Q = 4,
  PITH_WIRE_QSGD = 5,
  PITH_WIRE_TERNGRAD = 6,
  PITH_WIRE_NATURAL = 7,
  PITH_WIRE_SIGN = 8,
  PITH_WIRE_SIGNMEAN = 9,
  PITH_WIRE_TREE8 = 10,
  PITH_WIRE_LLOYD = 11,
  PITH_WIRE_INCEPTIONN = 12,
  PITH_WIRE_GQ = 13,
  PITH_WIRE_NUQ = 14,
  PITH_WIRE_MX = 15,
  PITH_WIRE_NVFP4 = 16,
  PITH_WIRE_FP8 = 17,
  PITH_WIRE_LOSSLESS = 18,
  PITH_WIRE_TOPK = 32,
  PITH_WIRE_RANDOMK = 33,
  PITH_WIRE_THRESHOLD = 34,
  PITH_WIRE_ADAPTIVE = 35,
  PITH_WIRE_SKETCHML = 36,
  PITH_WIRE_POWERSGD = 48
};

/* Bytes at the head of a block: one scale, or two. */
enum { PITH_HEAD_ONE = 4, PITH_HEAD_TWO = 8 };

/* Trits: groups of 80 values, 16 bytes of five trits each. */
enum { PITH_TRIT_GROUP = 80, PITH_TRIT_STRIDE = 16, PITH_TRITS = 5 };

/* Votes: bytes of the bits that say which groups of 32 values are all zero, in words of 32 of them. */
enum { PITH_VOTE_GROUP = 32 };
#define PITH_VOTE_ZEROS_SIZE(n) (((n) + 1023) / 1024 * 4)

/* Small floats, by bits of exponent and mantissa: the choices of mx, and the first of them of fp8. Rows of them share a
 * scale: in mx an exponent, of which one means NaN, in nvfp4 a number in E4M3. Blocks have several rows: first all
 * scales, then all values. */
enum {
  PITH_MINI_E4M3 = 0,
  PITH_MINI_E5M2 = 1,
  PITH_MINI_E2M3 = 2,
  PITH_MINI_E3M2 = 3,
  PITH_MINI_E2M1 = 4,
  PITH_MINI_TYPES = 5,
  PITH_FP8_TYPES = 2
};
enum { PITH_MX_ROW = 32, PITH_MX_NAN = 255, PITH_NV_ROW = 16, PITH_MINI_BLOCK = 512 };
#define PITH_FP8_LARGEST_E4M3 448.0f
#define PITH_FP8_LARGEST_E5M2 57344.0f
#define PITH_NV_LARGEST 2688.0f /* of a block: 6, the largest E2M1, times 448, the largest E4M3 */

/* lossless: a head whose first byte is the type, then for each block the place where it ends, u32, counted in words of
 * 4 bytes from the end of these, then the blocks. A block is a head of four bytes (how it is coded; the lowest exponent
 * of the window; the number of escapes, u16), the planes of signs and mantissas, a code for each exponent, and an
 * exponent for each escape. */
enum {
  PITH_LOSSLESS_HEAD = 4,
  PITH_LOSSLESS_BLOCK = 1024,
  PITH_LOSSLESS_WIDTHS = 6, /* of codes in bits: 1 to 5 */
  PITH_LOSSLESS_SAME = 6,   /* all values are equal to the one that follows, in four bytes */
  PITH_LOSSLESS_STORED = 7, /* values as they are */
  PITH_LOSSLESS_SAMPLE = 8, /* windows are chosen by every eighth value */
  PITH_LOSSLESS_ESCAPE_BITS = 8
};

/* Bytes of m values in a tensor of a type (pith_dtype), and of their planes: 16 and 8 bits of f32, 8 and 3 of f16, 8 of
 * bf16. */
#define PITH_LOSSLESS_RAW(type, m) ((type) == 0 ? 4 * (m) : 2 * (m))
#define PITH_LOSSLESS_PLANES(type, m) ((type) == 0 ? 3 * (m) : (type) == 1 ? (m) + (3 * (m) + 7) / 8 : (m))
/* Words of a block of m values. */
#define PITH_LOSSLESS_WORDS(bytes) (1 + ((bytes) + 3) / 4)
#define PITH_LOSSLESS_CODED(type, m, width, escapes) \
  PITH_LOSSLESS_WORDS(PITH_LOSSLESS_PLANES(type, m) + ((m) * (width) + 7) / 8 + (escapes))
#define PITH_LOSSLESS_RAW_WORDS(type, m) PITH_LOSSLESS_WORDS(PITH_LOSSLESS_RAW(type, m))

/* Choices of parameters, in the order of their texts. */
enum { PITH_ROUND_NEAREST = 0, PITH_ROUND_STOCHASTIC = 1 };
enum { PITH_NORM_L2 = 0, PITH_NORM_LINF = 1 };
enum { PITH_SCALE_ONE = 0, PITH_SCALE_MEAN = 1, PITH_SCALE_UNBIASED = 2 };

/* How the indices of a sparse payload are written. On the wire. */
typedef enum pith_index_coding {
  PITH_INDEX_RAW = 0,    /* 32 bits each; n ≤ 2^32 */
  PITH_INDEX_RICE = 1,   /* Rice codes of the gaps between them */
  PITH_INDEX_BITMAP = 2, /* a bit for each of the n values */
  PITH_INDEX_DENSE = 3   /* nothing: all n values travel, and there are no places to read */
} pith_index_coding;

/* How its values are written. On the wire; the first four are the choices of the parameter `values`. */
typedef enum pith_value_coding {
  PITH_VALUES_FP32 = 0,
  PITH_VALUES_FP16 = 1,
  PITH_VALUES_BF16 = 2,
  PITH_VALUES_Q8 = 3,     /* blocks of 512: middle, unit, a byte each */
  PITH_VALUES_MEAN = 4,   /* one f32 for all of them */
  PITH_VALUES_BUCKETS = 5 /* a table of `levels` f32, then ⌈log2 levels⌉ bits each */
} pith_value_coding;

enum { PITH_SPARSE_HEAD = 16, PITH_VALUES_BLOCK = 512, PITH_Q8_HEAD = 8 };
enum { PITH_RICE_MAX = 40, PITH_PERMUTE_ROUNDS = 6 }; /* of Rice codes the largest parameter; randomk's rounds */

#define PITH_NAN_BITS 0x7fc00000u /* of a block that is not finite */
#define PITH_SCALE_MIN 0x1p-119f  /* scales below count as zero: their reciprocal times 255 would overflow */
#define PITH_SUM_LANES 16         /* docs/format.md, "Sums" */

/* The positive half of the Lloyd–Max levels of a standard normal, by bits. */
#define PITH_LLOYD_1 0.797884561f
#define PITH_LLOYD_2 0.452780035f, 1.510417608f
#define PITH_LLOYD_3 0.245094179f, 0.756005281f, 1.343909279f, 2.151945705f
#define PITH_LLOYD_4 \
  0.128395030f, 0.388048299f, 0.656759119f, 0.942340456f, 1.256231197f, 1.618046386f, 2.069017227f, 2.732589571f

/* ---- Residuals --------------------------------------------------------------------------------------------------- */

/* How a state keeps its residual: the choices of the parameter `store`. Saved with the state. Values are rounded to one
 * of their two neighbours at random, by their distance, so that increments below a step are not lost; nothing that is
 * not finite is kept in fewer bits than 32.
 *
 *   f32, bf16: the values, one after another
 *   8: blocks of PITH_STORE_BLOCK values, counted from the start of the layer, the last of which may have fewer. A
 *      block is a unit, f32, and a byte for each value: value = unit · (byte − PITH_STORE_ZERO). The unit is the
 *      largest magnitude of the block (at most 2^127), divided by PITH_STORE_ZERO; 0 for blocks of zeros */
typedef enum pith_store { PITH_STORE_F32 = 0, PITH_STORE_BF16 = 1, PITH_STORE_8 = 2 } pith_store;

enum { PITH_STORE_BLOCK = 256, PITH_STORE_HEAD = 4, PITH_STORE_ZERO = 127 };

#define PITH_STORE_MOST 0x1p127f

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

enum { PITH_GPU_F32 = 0, PITH_GPU_F16 = 1, PITH_GPU_BF16 = 2 }; /* as pith_dtype */
enum {
  PITH_GPU_KEEP_ALL = 0,
  PITH_GPU_KEEP_LOST = 1,
  PITH_GPU_KEEP_UNSENT = 2
}; /* in memories: momentum, error feedback, dgc */
enum { PITH_GPU_SELECT_EXACT = 0, PITH_GPU_SELECT_SAMPLED = 1, PITH_GPU_SELECT_ABOVE = 2 }; /* of sparsifiers */
enum {
  PITH_GPU_TASK_VALUES = 1 << 30,
  PITH_GPU_TILE_MAX = 32768
}; /* most values of a task, and of a rotated granule */

/* Pointers are device memory. Indices count from the start of the task. */
typedef struct pith_gpu_task {
  void *values;     /* source or destination, aligned for its type */
  uint8_t *payload; /* any alignment; multiples of 4 are fastest */
  float *memory;    /* residual or momentum of the same values; NULL: none */
  double clip;      /* terngrad */
  uint32_t n;
  uint32_t index;              /* low half of the place of the first value in its layer */
  uint32_t key0, key1;         /* of stochastic rounding */
  uint32_t rotate0, rotate1;   /* of the rotation's signs */
  float beta, gamma;           /* values to send: beta · memory + gamma · values */
  uint32_t bucket, block_size; /* values and bytes of a full block */
  uint32_t begin, end;         /* work items: the module's own */
  int32_t levels;              /* qsgd, gq, nuq; sign: whether zeros at even places vote minus */
  uint32_t tile;               /* rotated: values worked on together */
  uint16_t kind;               /* wire id */
  uint8_t dtype, bits;
  uint8_t choice; /* of rounding or scale */
  uint8_t keeps;
  uint8_t rotation; /* log2 of the rotated block; 0: none */
  uint8_t norm;     /* qsgd, nuq */
} pith_gpu_task;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_task) == 96, "both compilers lay out tasks alike");

#define PITH_GPU_WHOLE_VALUES (1u << 31) /* most values of a tensor that may not be cut */

/* A whole tensor for a sparsifier. */
typedef struct pith_gpu_sparse {
  void *values; /* source or destination */
  uint8_t *payload;
  uint64_t *size;      /* of the payload: written by encoding, read by decoding; may be NULL for randomk */
  float *memory;       /* residual or momentum; NULL: none */
  float *momentum;     /* dgc's */
  void *space;         /* workspace */
  double ratio;        /* adaptive: of each side */
  double clip;         /* dgc: largest norm of the gradient; 0: none */
  uint64_t capacity;   /* most bytes of the payload */
  uint32_t n, k;       /* of n values k travel, or are wanted */
  uint32_t most;       /* that may travel */
  uint32_t cut;        /* threshold: the bits of the least |x| that travels */
  uint32_t key0, key1; /* of samples */
  uint32_t permute[2 * PITH_PERMUTE_ROUNDS]; /* randomk: the keys of its rounds */
  float beta, gamma;
  float factor;  /* randomk: on decoded values */
  uint16_t kind; /* wire id */
  uint8_t dtype, keeps;
  uint8_t coding; /* of values */
  uint8_t select;
  uint8_t unused[2];
} pith_gpu_sparse;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_sparse) == 168, "both compilers lay out sparsifiers alike");

/* A whole tensor for lossless. */
typedef struct pith_gpu_lossless {
  void *values; /* source or destination */
  uint8_t *payload;
  uint64_t *size; /* of the payload: written by encoding, read by decoding; NULL: decoding takes `capacity` */
  void *space;    /* encoding: PITH_GPU_LOSSLESS_SPACE bytes */
  uint64_t capacity;
  uint32_t n;
  uint32_t begin, end; /* work items: the module's own */
  uint8_t dtype;
  uint8_t unused[3];
} pith_gpu_lossless;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_lossless) == 56, "both compilers lay out tensors alike");

/* Words for each block, and for each item of the module's. A multiple of 256. */
#define PITH_GPU_LOSSLESS_SPACE(n) ((((size_t)(n) / PITH_LOSSLESS_BLOCK + 2) * 8 + 255) / 256 * 256)

/* A matrix of low rank. P and Q lie one behind the other, column by column: Q first in `part`, P first in payloads. */
typedef struct pith_gpu_lowrank {
  void *values;     /* source or destination */
  uint8_t *payload; /* or the buffer of a round, aligned for f32 */
  uint64_t *size;   /* of the payload; may be NULL */
  float *memory;
  float *part; /* NULL: Q starts anew */
  void *space;
  uint64_t hash; /* of seed, step and layer: what keys of columns are made from */
  uint32_t n, rows, cols, rank;
  float beta, gamma;
  float factor; /* on sums over ranks */
  uint8_t dtype, keeps;
  uint8_t dense; /* not worth factoring */
  uint8_t unused[1];
} pith_gpu_lowrank;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_lowrank) == 88, "both compilers lay out matrices alike");

enum {
  PITH_GPU_LOWRANK_ENCODE,
  PITH_GPU_LOWRANK_SET,
  PITH_GPU_LOWRANK_ADD,
  PITH_GPU_LOWRANK_PRODUCE_P,
  PITH_GPU_LOWRANK_PRODUCE_Q,
  PITH_GPU_LOWRANK_CONSUME_P,
  PITH_GPU_LOWRANK_CONSUME_Q
};

/* Sums over ranks that become means, or votes. */
typedef struct pith_gpu_mean {
  const float *sums;
  void *values; /* of any type; the sums themselves if that is f32 */
  uint32_t n;
  uint32_t begin, end; /* work items: the module's own */
  float factor;        /* on sums, unless they are votes */
  uint8_t dtype, vote;
  uint8_t unused[6];
} pith_gpu_mean;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_mean) == 40, "both compilers lay out means alike");

/* Values that their owner adds to a sum as they are, behind a memory. */
typedef struct pith_gpu_own {
  const void *values;
  float *memory; /* NULL: none */
  float *sums;
  uint32_t n;
  uint32_t begin, end; /* work items: the module's own */
  float beta, gamma;   /* beta · memory + gamma · value is what is added */
  uint8_t dtype, keeps;
  uint8_t add; /* 0: the sums are set */
  uint8_t unused;
} pith_gpu_own;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_own) == 48, "both compilers lay out own values alike");

/* All that the owner of a part does to it, for whole blocks of f32 values: decodes what the others sent, adds it up in
 * rank order with its own values as they are, behind their memory, and encodes the mean. */
typedef struct pith_gpu_reduce {
  pith_gpu_task result;    /* the mean, without values: payload, keys and the memory of results */
  const uint8_t *received; /* of rank 0; that of rank p is p · stride behind it, and that of the own rank is not read */
  uint64_t stride;
  const float *own;
  float *memory;       /* of own values; NULL: none */
  uint32_t n;          /* a multiple of PITH_GPU_REDUCE_VALUES */
  uint32_t begin, end; /* work items: the module's own */
  float beta, gamma;   /* of own values */
  float factor;        /* on sums */
  uint8_t rank, ranks;
  uint8_t keeps;
  uint8_t unused[5];
} pith_gpu_reduce;

enum { PITH_GPU_REDUCE_BUCKET = 512, PITH_GPU_REDUCE_VALUES = 1024 };

PITH_FORMAT_ASSERT(sizeof(pith_gpu_reduce) == 160, "both compilers lay out an owner's work alike");

/* A layer's part of an optimizer's step (include/pith/optimizer.h), in main memory or on a device. All arithmetic is
 * f32, without fused multiply-add:
 *
 *   moment = keep · before + take · gradient
 *   parameter = start = decay · base − rate · moment / (root · √variance + epsilon)
 *   residual = pass · residual + fold · moment
 *
 * What is NULL is left out: a term of the moment, a value that is not stored, the division. base is the parameter, or
 * start if there is one. */
typedef struct pith_update_task {
  const void *gradient, *before, *variance;
  void *moment, *parameter;
  float *start;
  void *residual;
  uint64_t n;
  float keep, take, decay, rate, root, epsilon, pass, fold;
  uint32_t begin, end; /* work items: the module's own */
  uint32_t index;      /* these three: as in pith_repack_task */
  uint32_t key0, key1;
  uint8_t dtype; /* of all but start and residual */
  uint8_t store; /* of the residual */
  uint8_t unused[2];
} pith_update_task;

PITH_FORMAT_ASSERT(sizeof(pith_update_task) == 120, "both compilers lay out updates alike");

/* Residuals that go from one store to another: to = factor · from, or to + factor · from. */
typedef struct pith_repack_task {
  const void *from; /* blocks begin here, and at `to` */
  void *to;         /* may be `from`, if both have one store */
  uint64_t n;
  uint32_t index;      /* low half of the place of the first value in its layer: what is drawn for a value follows from
                          that, */
  uint32_t key0, key1; /* and from these */
  float factor;
  uint32_t begin, end; /* work items: the module's own */
  uint8_t from_store, to_store, add;
  uint8_t unused[5];
} pith_repack_task;

PITH_FORMAT_ASSERT(sizeof(pith_repack_task) == 56, "both compilers lay out residuals alike");

/* ---- Statistics for the planner ---------------------------------------------------------------------------------- */

/* Results are doubles in device memory. `space`: PITH_GPU_STATISTICS_SPACE bytes, aligned to 256, which what is
 * enqueued on one stream can share. */
#define PITH_GPU_STATISTICS_SPACE ((size_t)5 << 18)
enum { PITH_GPU_TOPS = 256, PITH_GPU_DIFFERENCES = 64 }; /* most of a call */

/* A sample of a tensor, as f32: pieces that begin at piece · (first + i · stride), one behind the other. */
typedef struct pith_gpu_sample {
  const void *values;
  float *sample;
  uint64_t n, count; /* values of the tensor, and of the sample */
  uint32_t piece, stride, first;
  uint8_t dtype;
  uint8_t unused[3];
} pith_gpu_sample;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_sample) == 48, "both compilers lay out samples alike");

/* How the magnitudes of a tensor of at most 2^32 values are spread. Numbers: whether all values are finite, 1 or 0;
 * Σx²; and for each top Σx² of that many of the largest |x|, in which those of one bin (exponent and seven bits of the
 * fraction) count alike. */
typedef struct pith_gpu_magnitudes {
  const void *values;
  double *numbers; /* 2 + tops */
  void *space;     /* begins with the number of values in each of 32768 bins, uint64_t */
  uint64_t n;
  uint32_t tops;
  uint8_t dtype;
  uint8_t unused[3];
  uint64_t top[PITH_GPU_TOPS];
} pith_gpu_magnitudes;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_magnitudes) == 40 + 8 * PITH_GPU_TOPS, "both compilers lay out magnitudes alike");

/* Squared errors of uniform levels, rounded to the nearest (the codec q), of all widths in one pass: error 8 · b + w −
 * 1 is that of w bits in buckets of 128 << b values. */
typedef struct pith_gpu_uniform {
  const float *values;
  double *errors; /* 32 */
  void *space;
  uint64_t n;
  uint32_t wanted; /* a bit for each error; the others are left as they are */
  uint32_t unused;
} pith_gpu_uniform;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_uniform) == 40, "both compilers lay out uniform levels alike");

/* Σ(a − b)². */
typedef struct pith_gpu_difference {
  const float *a, *b; /* b is NULL: zeros */
  double *sum;
  uint64_t n;
} pith_gpu_difference;

PITH_FORMAT_ASSERT(sizeof(pith_gpu_difference) == 32, "both compilers lay out differences alike");

/* ---- Messages between the GPUs of one host: docs/gpu.md ---------------------------------------------------------- */

enum { PITH_IPC_RANKS = 16 };                     /* most of a host */
enum { PITH_IPC_ABORTED = 1, PITH_IPC_LATE = 2 }; /* how a wait failed */

/* Which device this is, for all processes alike. */
typedef struct pith_ipc_device {
  uint8_t uuid[16];
  uint32_t has_mps; /* processes that use it run at the same time, by CUDA's multi-process service; else in turns */
  uint32_t others, reached; /* other devices that the process sees, and those of them that this one can reach */
} pith_ipc_device;

/* What kernels that wait and their host tell each other: pinned memory that both see. */
typedef struct pith_ipc_report {
  uint32_t abort;  /* by the host: whoever is waited for is gone */
  uint32_t failed; /* by the device, once: how a wait ended, … */
  int32_t rank;    /* … which was for this rank */
  uint32_t unused[13];
} pith_ipc_report;

/* Waits until all flags, words of the own device, are 1, and makes them 0. Where the host aborts, or that takes longer
 * than the limit, *broken becomes 1, and the report tells. From then on nothing is waited for. */
typedef struct pith_ipc_wait {
  uint32_t *flag[PITH_IPC_RANKS];
  uint32_t *broken;
  pith_ipc_report *report;
  uint64_t limit; /* nanoseconds */
  uint32_t count;
  uint8_t rank[PITH_IPC_RANKS]; /* that sets the flag */
  uint8_t unused[4];
} pith_ipc_wait;

PITH_FORMAT_ASSERT(sizeof(pith_ipc_wait) == 176, "both compilers lay out waits alike");

typedef struct pith_ipc_piece {
  const void *from;
  void *to;
  uint64_t size;
} pith_ipc_piece;

/* Copies pieces, and behind all of them makes flags 1, which may be words of other devices. If *broken is not 0, it
 * does neither, but with `spoils` fills the pieces with ones: what no rank has sent must not look like values. */
typedef struct pith_ipc_copy {
  pith_ipc_piece piece[PITH_IPC_RANKS];
  uint32_t *flag[PITH_IPC_RANKS];
  uint32_t *broken;
  uint32_t *blocks; /* a word that is 0 before and afterwards; no two copies at a time use it */
  uint32_t pieces, flags;
  uint32_t spoils, unused;
} pith_ipc_copy;

PITH_FORMAT_ASSERT(sizeof(pith_ipc_copy) == 544, "both compilers lay out copies alike");

/* to = from[0] + from[1] + …, in that order, value by value, or the mean. NaN if *broken is not 0. */
typedef struct pith_ipc_combine {
  const void *from[PITH_IPC_RANKS];
  void *to; /* may be one of them */
  uint32_t *broken;
  uint64_t n;
  uint32_t count;
  uint8_t is_mean;
  uint8_t is_f64; /* else f32 */
  uint8_t unused[2];
} pith_ipc_combine;

PITH_FORMAT_ASSERT(sizeof(pith_ipc_combine) == 160, "both compilers lay out sums alike");

/* ---- The module -------------------------------------------------------------------------------------------------- */

#define PITH_CUDA_ABI 10
#define PITH_CUDA_ENTRY "pith_cuda_module_entry"

/* Functions return 0, or another number and a sentence in `text` (256 bytes). They only enqueue. */
typedef struct pith_cuda_module {
  uint32_t abi;
  int (*describe)(char *text); /* the current device in words */
  int (*encode)(const pith_gpu_task *tasks, size_t count, void *stream, char *text);
  int (*decode)(const pith_gpu_task *tasks, size_t count, int add, void *stream, char *text);
  size_t (*sparse_space)(const pith_gpu_sparse *task); /* bytes of workspace, a multiple of 256 */
  int (*sparse_encode)(const pith_gpu_sparse *tasks, size_t count, void *stream, char *text);
  /* Tasks with the same destination are applied in their order. */
  int (*sparse_decode)(const pith_gpu_sparse *tasks, size_t count, int add, void *stream, char *text);
  size_t (*lowrank_space)(const pith_gpu_lowrank *task);
  int (*lowrank)(const pith_gpu_lowrank *tasks, size_t count, int what, void *stream, char *text);
  int (*mean)(const pith_gpu_mean *tasks, size_t count, void *stream, char *text);
  int (*own)(const pith_gpu_own *tasks, size_t count, void *stream, char *text);
  int (*update)(const pith_update_task *tasks, size_t count, void *stream, char *text);
  int (*repack)(const pith_repack_task *tasks, size_t count, void *stream, char *text);
  int (*sample)(const pith_gpu_sample *task, void *stream, char *text);
  int (*magnitudes)(const pith_gpu_magnitudes *task, void *stream, char *text);
  int (*uniform_errors)(const pith_gpu_uniform *task, void *stream, char *text);
  int (*differences)(const pith_gpu_difference *tasks, size_t count, void *space, void *stream, char *text);
  int (*keep_if)(const double *flag, float *to, const float *from, size_t n, void *stream, char *text); /* to = from */
  int (*stamp)(double *nanoseconds, void *stream, char *text); /* the device's clock, modulo 2^52 */
  /* Memory of the current device, for objects that keep some; these wait for all the device has been given. */
  int (*device)(int *number, char *text);                  /* the current one; waits for nothing */
  int (*allocate)(size_t size, void **memory, char *text); /* zeros */
  void (*release)(void *memory);
  int (*copy)(void *to, const void *from, size_t size, char *text); /* from anywhere to anywhere */
  /* Pinned memory of the host, and copies between it and the device, which are enqueued; events tell how far a stream
   * has come. */
  int (*pin)(size_t size, void **memory, char *text);
  void (*unpin)(void *memory); /* waits for the device */
  int (*to_host)(void *to, const void *from, size_t size, void *stream, char *text);
  int (*to_device)(void *to, const void *from, size_t size, void *stream, char *text);
  int (*event_create)(void **event, char *text);
  void (*event_destroy)(void *event);
  int (*event_record)(void *event, void *stream, char *text);
  int (*event_wait)(void *event, char *text);            /* until the stream has come to where it was recorded */
  int (*event_done)(void *event, int *done, char *text); /* whether it has; waits for nothing */
  /* A stream of the current device beside all others, whose work goes first; what is enqueued on it later comes behind
   * an event. */
  int (*stream_create)(void **stream, char *text);
  void (*stream_destroy)(void *stream);
  int (*stream_wait)(void *stream, void *event, char *text);
  int (*use_device)(int number, char *text); /* by the calling thread, from now on */
  /* Both are enqueued. Copies are from anywhere to anywhere. */
  int (*move)(void *to, const void *from, size_t size, void *stream, char *text);
  int (*clear)(void *memory, size_t size, void *stream, char *text);
  int (*identify)(pith_ipc_device *device, char *text); /* the current one */
  /* Memory of the current device that other processes can map, with a descriptor that is the only way to it and that
   * the caller closes. The memory lives until the last process has unmapped it. Those who unmap it have waited for all
   * that uses it. */
  int (*share)(size_t size, void **memory, int *descriptor, char *text);
  int (*map)(int descriptor, size_t size, void **memory, char *text); /* another's, for the current device */
  void (*unmap)(void *memory, size_t size);                           /* both kinds */
  int (*ipc_wait)(const pith_ipc_wait *task, void *stream, char *text);
  int (*ipc_copy)(const pith_ipc_copy *task, void *stream, char *text);
  int (*ipc_combine)(const pith_ipc_combine *task, void *stream, char *text);
  int (*reduce)(const pith_gpu_reduce *tasks, size_t count, void *stream, char *text);
  int (*lossless_encode)(const pith_gpu_lossless *tasks, size_t count, void *stream, char *text);
  int (*lossless_decode)(const pith_gpu_lossless *tasks, size_t count, int add, void *stream, char *text);
} pith_cuda_module;

typedef const pith_cuda_module *(*pith_cuda_entry_fn)(void);

#endif
