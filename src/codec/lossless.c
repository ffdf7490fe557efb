/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless: the values themselves, bit for bit, with fewer bits for exponents. Those of neighbours lie close together,
 * so that a block of 1024 values chooses a window of 1, 3, 7, 15 or 31 exponents with codes of 1 to 5 bits; the last
 * code says that the exponent follows behind, in a byte. Signs and mantissas are noise, and travel as they are, in
 * planes. Codes of a fixed size, and a table of where blocks end, let CPUs work on 16 values at a time and GPUs on
 * all blocks.
 *
 * A payload has the type of the tensor that was encoded. It is decoded into a tensor of any type.
 */
#include "base/saturate.h"
#include "codec/block.h"

#define BLOCK PITH_LOSSLESS_BLOCK
#define WORD 4
#define LINE 64                           /* of the cache */
#define VALUES_MOST PITH_GPU_WHOLE_VALUES /* places in the table have 32 bits */

static const pith_param lossless_params[] = {{0}};

static size_t lossless_block(const pith_value *a) {
  (void)a;
  return BLOCK;
}

static size_t blocks_of(size_t n) { return n / BLOCK + (n % BLOCK != 0); }

static size_t table_end(size_t n) { return PITH_LOSSLESS_HEAD + WORD * blocks_of(n); }

static size_t lossless_bound(const pith_value *a, size_t n) {
  (void)a;
  size_t stored = pith__sat_add(pith__sat_mul(n, sizeof(float)), pith__sat_mul(blocks_of(n), WORD));
  return pith__sat_add(stored, pith__sat_add(PITH_LOSSLESS_HEAD, pith__sat_mul(blocks_of(n), WORD)));
}

static size_t no_scratch(const pith_value *a, size_t n) {
  (void)a, (void)n;
  return 0;
}

static void put_u32(uint8_t *out, uint32_t x) { memcpy(out, &x, sizeof x); }

static uint32_t get_u32(const uint8_t *in) {
  uint32_t x;
  memcpy(&x, in, sizeof x);
  return x;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

typedef struct block_head {
  uint8_t coding, base; /* 1…5: bits of a code */
  uint16_t escapes;
} block_head;

PITH_FORMAT_ASSERT(sizeof(block_head) == WORD, "the head of a block is a word");

typedef struct counts {
  uint8_t below[256 + (1 << 5)]; /* of each exponent: how many of the sample are lower */
  unsigned lowest, samples;
} counts;

PITH_FORMAT_ASSERT(BLOCK / PITH_LOSSLESS_SAMPLE < 256, "samples are counted in bytes");

/* Two tables, so that equal exponents do not wait for each other. */
static void count_sample(const uint8_t *exponents, size_t m, counts *c) {
  uint8_t bins[2][256] = {{0}};
  unsigned sum = 0, lowest = 0, highest = 255;
  for (size_t i = 0; i < m; i += 2 * (size_t)PITH_LOSSLESS_SAMPLE) {
    bins[0][exponents[i]]++;
    bins[1][exponents[i + PITH_LOSSLESS_SAMPLE < m ? i + PITH_LOSSLESS_SAMPLE : i]] += i + PITH_LOSSLESS_SAMPLE < m;
  }
  for (size_t e = 0; e < 256; e++) {
    bins[0][e] = (uint8_t)(bins[0][e] + bins[1][e]);
  }
  while (!bins[0][lowest]) {
    lowest++;
  }
  while (!bins[0][highest]) {
    highest--;
  }
  for (unsigned e = lowest; e <= highest; e++) {
    c->below[e] = (uint8_t)sum;
    sum += bins[0][e];
  }
  memset(c->below + highest + 1, (int)sum, 1 << 5);
  c->lowest = lowest;
  c->samples = sum;
}

/* The window that costs the sample least; of equally good ones the narrowest, and of those the lowest. A window begins
 * with an exponent that occurs. */
static block_head choose_window(const uint8_t *exponents, size_t m) {
  counts c;
  uint32_t best = UINT32_MAX;
  count_sample(exponents, m, &c);
  for (unsigned e = c.lowest; c.below[e] < c.samples; e++) {
    for (unsigned bits = 1; bits < PITH_LOSSLESS_WIDTHS && c.below[e + 1] > c.below[e]; bits++) {
      unsigned inside = (unsigned)c.below[e + (1u << bits) - 1] - c.below[e];
      uint32_t cost = bits * c.samples + PITH_LOSSLESS_ESCAPE_BITS * (c.samples - inside);
      uint32_t choice = cost << 16 | bits << 8 | e;
      best = choice < best ? choice : best;
    }
  }
  return (block_head){.coding = (uint8_t)(best >> 8), .base = (uint8_t)best};
}

static size_t finish_block(uint8_t *out, block_head head, size_t used, size_t words) {
  memcpy(out, &head, sizeof head);
  memset(out + used, 0, words * WORD - used);
  return words;
}

/* Returns the block's words. */
static size_t encode_values(pith_dtype type, const uint8_t *x, size_t m, uint8_t *out) {
  const pith_kernels *k = pith__kernels();
  uint8_t exponents[BLOCK], codes[BLOCK], escapes[BLOCK + 16], *planes = out + WORD;
  size_t width = PITH_LOSSLESS_RAW(type, 1u), raw = m * width;
  if (memcmp(x, x + width, raw - width) == 0) {
    memcpy(planes, x, width);
    return finish_block(out, (block_head){.coding = PITH_LOSSLESS_SAME}, WORD + width, 2);
  }
  k->float_split[type](x, m, planes, exponents);
  block_head head = choose_window(exponents, m);
  size_t bits = head.coding, size = PITH_LOSSLESS_PLANES(type, m), packed = pith__packed_size(m, bits);
  size_t count = k->window_pack[bits](exponents, m, head.base, codes, escapes);
  size_t words = PITH_LOSSLESS_CODED(type, m, bits, count), most = PITH_LOSSLESS_RAW_WORDS(type, m);
  if (words >= most) {
    memcpy(planes, x, raw);
    return finish_block(out, (block_head){.coding = PITH_LOSSLESS_STORED}, WORD + raw, most);
  }
  head.escapes = (uint16_t)count;
  memcpy(planes + size, codes, packed);
  memcpy(planes + size + packed, escapes, count);
  return finish_block(out, head, WORD + size + packed + count, words);
}

/* The words of a block of m values whose head is this; 0 if there is none such. */
static size_t words_of(pith_dtype type, block_head head, size_t m) {
  if (head.coding == PITH_LOSSLESS_SAME) {
    return 2;
  }
  if (head.coding == PITH_LOSSLESS_STORED) {
    return PITH_LOSSLESS_RAW_WORDS(type, m);
  }
  int is_coded = head.coding >= 1 && head.coding < PITH_LOSSLESS_WIDTHS && head.escapes <= m;
  return is_coded ? PITH_LOSSLESS_CODED(type, m, (size_t)head.coding, head.escapes) : 0;
}

/* m values of the payload's type. The block has been checked. */
static void decode_values(pith_dtype type, const uint8_t *in, size_t m, uint8_t *x) {
  const pith_kernels *k = pith__kernels();
  uint8_t exponents[BLOCK];
  size_t width = PITH_LOSSLESS_RAW(type, 1u), size = PITH_LOSSLESS_PLANES(type, m);
  const uint8_t *planes = in + WORD;
  block_head head;
  memcpy(&head, in, sizeof head);
  if (head.coding == PITH_LOSSLESS_STORED) {
    memcpy(x, planes, m * width);
    return;
  }
  if (head.coding == PITH_LOSSLESS_SAME) {
    for (size_t i = 0; i < m; i++) {
      memcpy(x + i * width, planes, width);
    }
    return;
  }
  uint8_t escapes[BLOCK + 16];
  const uint8_t *codes = planes + size;
  memcpy(escapes, codes + pith__packed_size(m, head.coding), head.escapes);
  memset(escapes + head.escapes, 0, 16);
  k->window_unpack[head.coding](codes, m, head.base, escapes, head.escapes, exponents);
  k->float_join[type](planes, exponents, m, x);
}

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* The next block is asked for while one is worked on: a block is read, or written, in three places at once, which the
 * CPU's own prefetching does not follow. */
static void prefetch(const uint8_t *in, size_t size) {
  for (size_t i = 0; i < size; i += LINE) {
    __builtin_prefetch(in + i);
  }
}

static void prefetch_to_write(const uint8_t *out, size_t size) {
  for (size_t i = 0; i < size; i += LINE) {
    __builtin_prefetch(out + i, 1);
  }
}

static pith_status lossless_encode(const pith_value *a, pith_cspan src, pith_out *out, void *part,
                                   const pith_ctx *ctx) {
  (void)a, (void)part, (void)ctx;
  PITH_REQUIRE(src.n <= VALUES_MOST, PITH_ERR_RANGE, "lossless: %zu values are too many for one payload; %u are not",
               src.n, VALUES_MOST);
  uint8_t *to = out->data, *table = to + PITH_LOSSLESS_HEAD, *blocks = to + table_end(src.n);
  const uint8_t *x = src.data;
  size_t words = 0;
  put_u32(to, (uint32_t)src.dtype);
  for (size_t first = 0; first < src.n; first += BLOCK, table += WORD) {
    size_t m = pith__least(BLOCK, src.n - first);
    size_t next = first + BLOCK, raw = PITH_LOSSLESS_RAW(src.dtype, BLOCK);
    if (next + BLOCK < src.n) { /* as long as this one, or nearly; there is room for all of them as they are */
      prefetch(x + PITH_LOSSLESS_RAW(src.dtype, next), raw);
      prefetch_to_write(blocks + words * WORD + raw, raw);
    }
    words += encode_values(src.dtype, x + PITH_LOSSLESS_RAW(src.dtype, first), m, blocks + words * WORD);
    put_u32(table, (uint32_t)words);
  }
  out->size = table_end(src.n) + words * WORD;
  return PITH_OK;
}

static pith_status check_payload(pith_bytes in, size_t n, pith_dtype *type) {
  const uint8_t *from = in.data;
  PITH_REQUIRE(n <= VALUES_MOST && in.size >= table_end(n), PITH_ERR_CORRUPT,
               "lossless: %zu bytes are too few for %zu values", in.size, n);
  *type = (pith_dtype)get_u32(from);
  PITH_REQUIRE(*type == PITH_F32 || *type == PITH_F16 || *type == PITH_BF16, PITH_ERR_CORRUPT,
               "lossless: the payload is of type %u", get_u32(from));
  size_t words = (in.size - table_end(n)) / WORD, at = 0;
  const uint8_t *blocks = from + table_end(n);
  for (size_t b = 0; b < blocks_of(n); b++) {
    size_t end = get_u32(from + PITH_LOSSLESS_HEAD + b * WORD), m = pith__least(BLOCK, n - b * BLOCK);
    block_head head = {0};
    if (at < end && end <= words) {
      memcpy(&head, blocks + at * WORD, sizeof head);
    }
    PITH_REQUIRE(at < end && end <= words && words_of(*type, head, m) == end - at, PITH_ERR_CORRUPT,
                 "lossless: block %zu of %zu is malformed", b, blocks_of(n));
    at = end;
  }
  PITH_REQUIRE(in.size == table_end(n) + at * WORD, PITH_ERR_CORRUPT, "lossless: bytes behind the last block");
  return PITH_OK;
}

static pith_status lossless_decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply,
                                   const pith_ctx *ctx) {
  (void)a, (void)ctx;
  pith_dtype type = PITH_F32;
  PITH_REQUIRE(apply == PITH_APPLY_SET || apply == PITH_APPLY_ADD, PITH_ERR_UNSUPPORTED,
               "lossless: values are only set or added");
  PITH_TRY(check_payload(in, dst.n, &type));
  const uint8_t *table = (const uint8_t *)in.data + PITH_LOSSLESS_HEAD, *blocks = table + WORD * blocks_of(dst.n);
  size_t at = 0;
  for (size_t first = 0; first < dst.n; first += BLOCK, table += WORD) {
    float raw[BLOCK], wide[BLOCK], sum[BLOCK];
    size_t m = pith__least(BLOCK, dst.n - first), end = get_u32(table);
    if (first + BLOCK < dst.n) {
      prefetch(blocks + end * WORD, (get_u32(table + WORD) - end) * WORD);
    }
    if (apply == PITH_APPLY_SET && type == dst.dtype) {
      uint8_t *to = (uint8_t *)dst.data + PITH_LOSSLESS_RAW(type, first);
      decode_values(type, blocks + at * WORD, m, to);
    } else {
      decode_values(type, blocks + at * WORD, m, (uint8_t *)raw);
      const float *values = pith__span_load((pith_cspan){raw, m, type}, 0, m, wide);
      pith__span_store(dst, first, m, values, apply == PITH_APPLY_ADD ? PITH_ADD : PITH_SET, sum);
    }
    at = end;
  }
  return PITH_OK;
}

static const pith_codec_traits lossless_traits = {.gpu = PITH_GPU_LOSSLESS};

const pith_codec_ops pith__codec_lossless = {
    .size = sizeof(pith_codec_ops),
    .name = "lossless",
    .family = "cast",
    .summary = "the values bit for bit; their exponents take few bits",
    .bits = "about 27; 11.5 of bf16",
    .detail = "for each 1024 values a window of exponents; for each value sign and mantissa, and a code of 1 to 5 bits",
    .use = "where nothing may be lost and the link is slow: weights, optimizer states, gradients that must stay exact",
    .wire_id = PITH_WIRE_LOSSLESS,
    .caps = PITH_CAP_CHUNKED | PITH_CAP_UNBIASED,
    .params = lossless_params,
    .block = lossless_block,
    .bound = lossless_bound,
    .scratch = no_scratch,
    .encode = lossless_encode,
    .decode = lossless_decode,
    .traits = &lossless_traits,
};
