/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every slot of every kernel table against the scalar one: same bytes out, nothing written beyond them.
 *
 * A driver calls one slot on the inputs of a trial and returns how many bytes of `out` it may have written. Slots are
 * counted by their place in the table: a slot that no driver compared, on any ISA that is here, fails the test.
 */
#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "kernel/formats.h"
#include "kernel/kernel.h"
#include "test.h"

#define MOST 4200 /* values of a trial */
#define GUARD 64  /* bytes behind what may be written */
#define OUT_BYTES (MOST * 8 + GUARD)
#define SLOT_COUNT (sizeof(pith_kernels) / sizeof(void (*)(void)))

typedef struct trial {
  size_t n;
  const float *x, *y;     /* finite */
  const float *any;       /* with NaN, Inf, zeros of both signs, subnormals */
  const uint16_t *halves; /* any bits */
  const uint8_t *bytes;   /* any */
  const uint8_t *trits;   /* below 243 */
  float scale;
  uint32_t index;
  pith_key key;
  pith_mode mode;
} trial;

typedef size_t (*driver_fn)(const pith_kernels *k, int bits, const trial *t, void *out);

/* ---- Drivers ----------------------------------------------------------------------------------------------------- */

#define DRIVER(name) static size_t drive_##name(const pith_kernels *k, int bits, const trial *t, void *out)
#define UNUSED (void)bits

DRIVER(f16_to_f32) { return UNUSED, k->f16_to_f32(t->halves, out, t->n), 4 * t->n; }
DRIVER(bf16_to_f32) { return UNUSED, k->bf16_to_f32(t->halves, out, t->n), 4 * t->n; }
DRIVER(f32_to_f16) { return UNUSED, k->f32_to_f16(t->any, out, t->n), 2 * t->n; }
DRIVER(f32_to_bf16) { return UNUSED, k->f32_to_bf16(t->any, out, t->n), 2 * t->n; }
DRIVER(f32_to_bf16_random) { return UNUSED, k->f32_to_bf16_random(t->any, out, t->n, t->key, t->index), 2 * t->n; }
DRIVER(blend) { return UNUSED, k->blend(t->any, t->x, 0.75f, t->scale, out, t->n), 4 * t->n; }
DRIVER(residual) { return UNUSED, k->residual(t->any, t->y, out, t->n), 4 * t->n; }
DRIVER(add) { return UNUSED, k->add(t->any, out, t->n), 4 * t->n; }
DRIVER(scale) { return UNUSED, k->scale(t->scale, out, t->n), 4 * t->n; }

DRIVER(vote) {
  UNUSED;
  memcpy(out, t->any, 4 * t->n);
  k->vote(out, t->n);
  return 4 * t->n;
}

/* Two of the four outputs at a time are in `out`, and parts are left out by the bits of the index. */
DRIVER(update) {
  UNUSED;
  float first[MOST], second[MOST], *one = out, *two = one + t->n;
  memcpy(first, t->y, 4 * t->n);
  memcpy(second, t->any, 4 * t->n);
  pith_update_task u = {.gradient = t->index & 1 ? t->any : NULL,
                        .variance = t->index & 2 ? t->x : NULL,
                        .keep = 0.9f,
                        .take = t->scale,
                        .decay = 0.999f,
                        .rate = 1e-3f,
                        .root = 1.25f,
                        .epsilon = t->index & 64 ? 0 : 1e-8f,
                        .pass = 0.75f,
                        .fold = 0.9f};
  u.before = t->index & 4 ? t->x : NULL;
  u.moment = t->index & 8 ? one : first;
  u.parameter = t->index & 8 ? two : second;
  u.start = t->index & 8 ? NULL : one;
  u.residual = t->index & 8 ? second : two;
  u.moment = t->index & 16 ? u.moment : NULL;
  u.parameter = t->index & 32 || u.start ? u.parameter : NULL;
  k->update(&u, t->n);
  return 8 * t->n;
}

DRIVER(absmax) {
  UNUSED;
  uint32_t most = k->absmax(t->any, t->n);
  memcpy(out, &most, 4);
  return 4;
}

DRIVER(range) {
  UNUSED;
  float found[3];
  found[2] = pith__float_of(k->range(t->x, t->n, found, found + 1));
  memcpy(out, found, sizeof found);
  return sizeof found;
}

DRIVER(moments) { return UNUSED, k->moments(t->x, t->n, out), sizeof(pith_moments); }

DRIVER(halves) {
  UNUSED;
  pith_halves halves;
  k->halves(t->x, t->n, &halves);
  float found[3] = {halves.sum_negative, halves.sum_other, (float)halves.negatives};
  memcpy(out, found, sizeof found);
  return sizeof found;
}

static size_t packed(size_t n, int bits) { return (n * (size_t)bits + 7) / 8; }

/* Wide enough that some levels are cut off at both ends. */
static pith_quantizer quantizer(int bits) {
  float top = (float)((1 << bits) - 1);
  return (pith_quantizer){.lo = -2.0f, .inverse = top / 4.0f, .zero = bits > 1, .top = (1 << bits) - 1};
}

DRIVER(quantize) {
  pith_quantizer q = quantizer(bits);
  return k->quantize[bits](t->x, t->n, &q, out), packed(t->n, bits);
}
DRIVER(quantize_random) {
  pith_quantizer q = quantizer(bits);
  return k->quantize_random[bits](t->x, t->n, &q, t->key, t->index, out), packed(t->n, bits);
}
DRIVER(dequantize) {
  pith_dequantizer q = {.base = -t->scale, .unit = t->scale / 7.0f, .zero = bits};
  return k->dequantize[bits](t->bytes, t->n, &q, t->mode, out), 4 * t->n;
}

DRIVER(classify) {
  float cuts[16];
  for (int i = 0; i < 16; i++) {
    cuts[i] = (float)(i - (1 << (bits - 1))) * 0.4f;
  }
  return k->classify[bits](t->x, t->n, t->scale, cuts, out), packed(t->n, bits);
}
DRIVER(lookup) { return k->lookup[bits](t->bytes, t->n, t->y, t->mode, out), 4 * t->n; }

DRIVER(power_pack) {
  return k->power_pack[bits](t->x, t->n, t->scale, t->mode == PITH_ADD, t->key, t->index, out), packed(t->n, bits);
}
DRIVER(power_unpack) { return k->power_unpack[bits](t->bytes, t->n, t->scale, t->mode, out), 4 * t->n; }

DRIVER(sign_pack) { return UNUSED, k->sign_pack(t->any, t->n, out), packed(t->n, 1); }
DRIVER(sign_unpack) { return UNUSED, k->sign_unpack(t->bytes, t->n, t->scale, -0.5f, t->mode, out), 4 * t->n; }
DRIVER(vote_pack) {
  UNUSED;
  float x[MOST + 64] = {0}; /* a group of zeros, at least, where there are so many values */
  size_t room = PITH_VOTE_ZEROS_SIZE(t->n), zeros = t->n < 64 ? 0 : 64;
  memcpy(x + zeros, t->any, (t->n - zeros) * sizeof *x);
  memset(out, 0, room);
  uint32_t most = k->vote_pack(x, t->n, (int)t->index & 1, out, (uint8_t *)out + room);
  memcpy((uint8_t *)out + room + packed(t->n, 1), &most, sizeof most);
  return room + packed(t->n, 1) + sizeof most;
}
DRIVER(vote_unpack) { return UNUSED, k->vote_unpack(t->trits, t->bytes, t->n, t->scale, t->mode, out), 4 * t->n; }
DRIVER(tern_pack) { return UNUSED, k->tern_pack(t->x, t->n, 1.5f, 1 / 1.5f, t->key, t->index, out), (t->n + 4) / 5; }
DRIVER(tern_unpack) { return UNUSED, k->tern_unpack(t->trits, t->n, t->scale, t->mode, out), 4 * t->n; }
DRIVER(byte_max) { return UNUSED, *(uint8_t *)out = k->byte_max(t->trits, t->n), (size_t)1; }
DRIVER(natural_pack) { return UNUSED, k->natural_pack(t->x, t->n, 129, t->key, t->index, out), t->n; }
DRIVER(natural_unpack) {
  return UNUSED, k->natural_unpack(t->bytes, t->n, (int32_t)(t->index % 254) + 1, t->mode, out), 4 * t->n;
}
DRIVER(tree8_pack) { return UNUSED, k->tree8_pack(t->x, t->n, 0.125f, out), t->n; }
DRIVER(tree8_unpack) { return UNUSED, k->tree8_unpack(t->bytes, t->n, t->scale, t->mode, out), 4 * t->n; }

static int bits_of_type(int type) { return type < PITH_MINI_E2M3 ? 8 : type < PITH_MINI_E2M1 ? 6 : 4; }

DRIVER(fp8_pack) { return k->fp8_pack[bits](t->x, t->n, t->scale, out), t->n; }
DRIVER(fp8_unpack) { return k->fp8_unpack[bits](t->bytes, t->n, t->scale, t->mode, out), 4 * t->n; }

static size_t planes_of(int type, size_t n) { return PITH_LOSSLESS_PLANES(type, n); }

DRIVER(float_split) { /* bits: the type */
  size_t size = planes_of(bits, t->n);
  k->float_split[bits](bits ? (const void *)t->halves : t->any, t->n, out, (uint8_t *)out + size);
  return size + t->n;
}
DRIVER(float_join) {
  uint8_t planes[4 * MOST];
  memcpy(planes, t->bytes, t->n);
  memcpy(planes + t->n, t->trits, t->n);
  memcpy(planes + 2 * t->n, t->bytes, t->n);
  return k->float_join[bits](planes, t->trits, t->n, out), (bits ? 2 : 4) * t->n;
}
DRIVER(window_pack) {
  uint8_t escapes[MOST + 16];
  size_t size = packed(t->n, bits), count = k->window_pack[bits](t->trits, t->n, (int)t->index & 0xff, out, escapes);
  memcpy((uint8_t *)out + size, escapes, count);
  return size + count;
}
DRIVER(window_unpack) { /* with too few escapes, as often as not */
  uint8_t escapes[MOST + 16] = {0};
  size_t count = t->n / 3;
  memcpy(escapes, t->trits, count);
  return k->window_unpack[bits](t->bytes, t->n, (int)t->index & 0xff, escapes, count, out), t->n;
}

DRIVER(mx_pack) { /* bits: the type */
  size_t rows = (t->n + PITH_MX_ROW - 1) / PITH_MX_ROW;
  k->mx_pack[bits](t->any, t->n, out, (uint8_t *)out + rows);
  return rows + packed(t->n, bits_of_type(bits));
}
DRIVER(mx_unpack) { return k->mx_unpack[bits](t->trits, t->bytes, t->n, t->mode, out), 4 * t->n; }
DRIVER(nv_pack) {
  UNUSED;
  size_t rows = (t->n + PITH_NV_ROW - 1) / PITH_NV_ROW;
  float scale = pith__float_of(k->absmax(t->x, t->n)) / PITH_NV_LARGEST;
  k->nv_pack(t->x, t->n, scale, scale > 0 ? 1.0f / (6.0f * scale) : 0.0f, out, (uint8_t *)out + rows);
  return rows + packed(t->n, 4);
}
DRIVER(nv_unpack) { return UNUSED, k->nv_unpack(t->trits, t->bytes, t->n, t->scale, t->mode, out), 4 * t->n; }

DRIVER(pack) {
  uint8_t below[MOST];
  for (size_t i = 0; i < t->n; i++) {
    below[i] = t->bytes[i] >> (8 - bits);
  }
  return k->pack[bits](below, t->n, out), packed(t->n, bits);
}

DRIVER(bounded_pack) {
  UNUSED;
  uint8_t *words = (uint8_t *)out + packed(t->n, 2);
  float bound = 0.01f * t->scale;
  size_t used = k->bounded_pack(t->any, t->n, bound, 2 * bound, out, words);
  memset(words + used, 0, 4 * t->n - used);
  return packed(t->n, 2) + 4 * t->n;
}
DRIVER(bounded_unpack) {
  UNUSED;
  const uint8_t *words = (const uint8_t *)t->any;
  return k->bounded_unpack(t->bytes, words, words + 4 * t->n, t->n, t->scale, t->mode, out), 4 * t->n;
}

DRIVER(order_count) {
  UNUSED;
  static uint64_t count[PITH_ORDER_BINS];
  uint64_t sum = 0;
  memset(count, 0, sizeof count);
  k->order_count(t->any, t->n, count);
  for (size_t i = 0; i < PITH_ORDER_BINS; i++) {
    sum = sum * 0x9e3779b97f4a7c15u + count[i];
  }
  memcpy(out, &sum, sizeof sum);
  return sizeof sum;
}
DRIVER(order_number) {
  UNUSED;
  static uint8_t bucket[PITH_ORDER_BINS];
  for (size_t i = 0; i < PITH_ORDER_BINS; i++) {
    bucket[i] = (uint8_t)(i * 40503u >> 8);
  }
  double sum[256] = {0};
  k->order_number(t->x, t->n, bucket, sum, out);
  memcpy((uint8_t *)out + t->n, sum, sizeof sum);
  return t->n + sizeof sum;
}

/* Rotations take powers of two: the largest that fits. */
static size_t power_within(size_t n) {
  size_t power = 1;
  while (2 * power <= n) {
    power *= 2;
  }
  return n ? power : 0;
}
static size_t drive_rotation(void (*rotate)(float *, size_t, pith_key, uint32_t), const trial *t, void *out) {
  size_t n = power_within(t->n);
  memcpy(out, t->x, 4 * n);
  if (n) {
    rotate(out, n, t->key, t->index / MOST * 4096);
  }
  return 4 * n;
}
DRIVER(rotate) { return UNUSED, drive_rotation(k->rotate, t, out); }
DRIVER(unrotate) { return UNUSED, drive_rotation(k->unrotate, t, out); }

DRIVER(count) {
  UNUSED;
  uint32_t count = (uint32_t)k->count(t->any, t->n, (pith_side)(t->index % 3), pith__bits_of(t->scale));
  memcpy(out, &count, 4);
  return 4;
}
DRIVER(collect) {
  UNUSED;
  uint32_t *place = out;
  float *value = (float *)out + t->n;
  size_t count = k->collect(t->any, t->n, (pith_side)(t->index % 3), pith__bits_of(t->scale), place, value);
  memset(place + count, 0, 4 * (t->n - count));
  memset(value + count, 0, 4 * (t->n - count));
  return 8 * t->n;
}
DRIVER(histogram) {
  UNUSED;
  memset(out, 0, 4 * 1024);
  k->histogram(t->any, t->n, (pith_side)(t->index % 3), 21, 1023, t->index % 2 ? 32 : 31, 0, out);
  return 4 * 1024;
}

#define RANK 5
/* q has RANK columns of n / RANK values. */
DRIVER(dots) {
  UNUSED;
  memset(out, 0, 4 * RANK);
  k->dots(t->x, t->n / RANK, t->y, t->n / RANK, RANK, out);
  return 4 * RANK;
}
DRIVER(outer) {
  UNUSED;
  float p[PITH_OUTER_ROWS * RANK] = {1, -0.5f, t->scale, 0, 3, 2, 0.25f, -t->scale, 1, 7};
  size_t rows = t->index % 2 ? PITH_OUTER_ROWS : 1 + (size_t)t->index % PITH_OUTER_ROWS, n = t->n / RANK,
         columns = n / PITH_OUTER_ROWS;
  const float *m[PITH_OUTER_ROWS];
  for (size_t j = 0; j < PITH_OUTER_ROWS; j++) {
    m[j] = t->x + j * columns;
  }
  memcpy(out, t->y, 4 * (columns * RANK));
  k->outer(m, rows, columns, p, RANK, out, columns);
  return 4 * (columns * RANK);
}
DRIVER(combine) {
  UNUSED;
  float p[RANK] = {1, -0.5f, t->scale, 0, 3};
  return k->combine(p, RANK, t->y, t->n / RANK, out, t->n / RANK), 4 * (t->n / RANK);
}

/* ---- All slots --------------------------------------------------------------------------------------------------- */

typedef enum output { BYTES, FLOATS } output;

typedef struct slot {
  const char *name;
  size_t place; /* in units of function pointers */
  driver_fn drive;
  output output;
  int bits;
} slot;

#define PLACE(member) (offsetof(pith_kernels, member) / sizeof(void (*)(void)))
#define ONE(member, output) {#member, PLACE(member), drive_##member, output, 0}
#define WIDTH(member, output, bits) {#member, PLACE(member) + (bits), drive_##member, output, bits}
#define WIDTHS4(member, output) \
  WIDTH(member, output, 1), WIDTH(member, output, 2), WIDTH(member, output, 3), WIDTH(member, output, 4)
#define WIDTHS7(member, output)                                                                           \
  WIDTH(member, output, 2), WIDTH(member, output, 3), WIDTH(member, output, 4), WIDTH(member, output, 5), \
      WIDTH(member, output, 6), WIDTH(member, output, 7), WIDTH(member, output, 8)
#define WIDTHS8(member, output) WIDTH(member, output, 1), WIDTHS7(member, output)

#define WIDTHS5(member, output) WIDTHS4(member, output), WIDTH(member, output, 5)
#define TYPES(member, output) WIDTH(member, output, 0), WIDTHS4(member, output)

static const slot slots[] = {
    ONE(f16_to_f32, FLOATS),
    ONE(bf16_to_f32, FLOATS),
    ONE(f32_to_f16, BYTES),
    ONE(f32_to_bf16, BYTES),
    ONE(f32_to_bf16_random, BYTES),
    ONE(blend, FLOATS),
    ONE(residual, FLOATS),
    ONE(add, FLOATS),
    ONE(scale, FLOATS),
    ONE(vote, FLOATS),
    ONE(update, FLOATS),
    ONE(absmax, BYTES),
    ONE(range, FLOATS),
    ONE(moments, FLOATS),
    ONE(halves, FLOATS),
    WIDTHS8(quantize, BYTES),
    WIDTHS8(quantize_random, BYTES),
    WIDTHS8(dequantize, FLOATS),
    WIDTHS4(classify, BYTES),
    WIDTHS4(lookup, FLOATS),
    WIDTHS7(power_pack, BYTES),
    WIDTHS7(power_unpack, FLOATS),
    ONE(sign_pack, BYTES),
    ONE(sign_unpack, FLOATS),
    ONE(vote_pack, BYTES),
    ONE(vote_unpack, FLOATS),
    ONE(tern_pack, BYTES),
    ONE(tern_unpack, FLOATS),
    ONE(byte_max, BYTES),
    ONE(natural_pack, BYTES),
    ONE(natural_unpack, FLOATS),
    ONE(tree8_pack, BYTES),
    ONE(tree8_unpack, FLOATS),
    WIDTH(fp8_pack, BYTES, 0),
    WIDTH(fp8_pack, BYTES, 1),
    WIDTH(fp8_unpack, FLOATS, 0),
    WIDTH(fp8_unpack, FLOATS, 1),
    WIDTH(float_split, BYTES, 0),
    WIDTH(float_split, BYTES, 1),
    WIDTH(float_split, BYTES, 2),
    WIDTH(float_join, BYTES, 0),
    WIDTH(float_join, BYTES, 1),
    WIDTH(float_join, BYTES, 2),
    WIDTHS5(window_pack, BYTES),
    WIDTHS5(window_unpack, BYTES),
    TYPES(mx_pack, BYTES),
    TYPES(mx_unpack, FLOATS),
    ONE(nv_pack, BYTES),
    ONE(nv_unpack, FLOATS),
    WIDTHS8(pack, BYTES),
    ONE(bounded_pack, BYTES),
    ONE(bounded_unpack, FLOATS),
    ONE(order_count, BYTES),
    ONE(order_number, BYTES),
    ONE(rotate, FLOATS),
    ONE(unrotate, FLOATS),
    ONE(count, BYTES),
    ONE(collect, FLOATS),
    ONE(histogram, BYTES),
    ONE(dots, FLOATS),
    ONE(outer, FLOATS),
    ONE(combine, FLOATS),
};
#define SLOTS (sizeof slots / sizeof *slots)

static int is_filled(const pith_kernels *k, size_t place) {
  void (*const *functions)(void) = (void (*const *)(void))k;
  return functions[place] != NULL;
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

static float draw_any(void) {
  static const uint32_t special[] = {0,           0x80000000u, 1,           0x807fffffu, 0x7f800000u, 0xff800000u,
                                     0x7fc00000u, 0x7f800001u, 0x7f7fffffu, 0x00800000u, 0x477ff000u, 0x33000000u};
  return test_below(4) ? test_normal() : pith__float_of(special[test_below(sizeof special / sizeof *special)]);
}

static float draw_finite(void) {
  switch (test_below(12)) {
    case 0:
      return 0.0f;
    case 1:
      return -0.0f;
    case 2:
      return test_normal() * 1e-39f; /* subnormal */
    case 3:
      return (float)((int)test_below(9) - 4) * 0.5f; /* ties */
    default:
      return test_normal();
  }
}

/* Buffers of a trial; every pointer is off its natural alignment where the type allows. */
typedef struct inputs {
  float x[MOST + 1], y[MOST + 1], any[MOST + 1];
  uint16_t halves[MOST + 1];
  uint8_t bytes[MOST + 1], trits[MOST + 1];
} inputs;

static void draw_inputs(inputs *in) {
  for (size_t i = 0; i <= MOST; i++) {
    in->x[i] = draw_finite();
    in->y[i] = draw_finite();
    in->any[i] = draw_any();
    in->halves[i] = (uint16_t)test_random();
    in->bytes[i] = (uint8_t)test_random();
    in->trits[i] = (uint8_t)test_below(243);
  }
}

static trial draw_trial(const inputs *in, size_t n) {
  size_t shift = test_below(2);
  return (trial){.n = n,
                 .x = in->x + shift,
                 .y = in->y + shift,
                 .any = in->any + shift,
                 .halves = in->halves + shift,
                 .bytes = in->bytes + shift,
                 .trits = in->trits + shift,
                 .scale = 0.25f + (float)test_uniform(),
                 .index = (uint32_t)test_random(),
                 .key = {(uint32_t)test_random(), (uint32_t)test_random()},
                 .mode = (pith_mode)test_below(2)};
}

/* ---- Comparison -------------------------------------------------------------------------------------------------- */

/* The same bits; which NaN a sum of NaNs is, C leaves open. */
static int same_floats(const uint8_t *a, const uint8_t *b, size_t size) {
  for (size_t i = 0; i + 4 <= size; i += 4) {
    float x, y;
    memcpy(&x, a + i, 4);
    memcpy(&y, b + i, 4);
    if (memcmp(a + i, b + i, 4) != 0 && !(isnan(x) && isnan(y))) {
      return 0;
    }
  }
  return 1;
}

/* Starts from values that adding to makes sense for. */
static void fill(uint8_t *out, const inputs *in) {
  memset(out, 0x5a, OUT_BYTES);
  memcpy(out, in->y, sizeof in->y);
}

static void compare(const slot *s, const pith_kernels *k, pith_isa isa, const inputs *in, const trial *t, uint8_t *out,
                    uint8_t *wanted) {
  uint8_t before[OUT_BYTES];
  fill(wanted, in);
  fill(out, in);
  memcpy(before, out, sizeof before);
  size_t size = s->drive(&pith__kernels_scalar, s->bits, t, wanted);
  s->drive(k, s->bits, t, out);
  int same = s->output == FLOATS ? same_floats(out, wanted, size) : memcmp(out, wanted, size) == 0;
  CHECK_MSG(same, "%s (bits %d) on %s differs from scalar, n = %zu", s->name, s->bits, pith_isa_name(isa), t->n);
  CHECK_MSG(memcmp(out + size, before + size, OUT_BYTES - size) == 0,
            "%s (bits %d) on %s writes beyond its %zu bytes, n = %zu", s->name, s->bits, pith_isa_name(isa), size,
            t->n);
  CHECK_MSG(memcmp(wanted + size, before + size, OUT_BYTES - size) == 0, "%s (bits %d) scalar writes beyond its end",
            s->name, s->bits);
}

static size_t length_of(size_t trial_number) {
  static const size_t more[] = {255,  256,  257,  511,  512,  513,  1000, 1023,
                                1024, 1279, 1280, 2047, 2048, 4095, 4096, 4099};
  return trial_number <= 130 ? trial_number : more[(trial_number - 131) % (sizeof more / sizeof *more)];
}

#define TRIALS (131 + 16)

static void compare_isa(pith_isa isa) {
  const pith_kernels *k = pith__kernels_of(isa);
  if (!k) {
    LACKS(pith_isa_name(isa), "%s kernels are not built in, or not in this CPU", pith_isa_name(isa));
  }
  inputs *in = malloc(sizeof *in);
  uint8_t *out = malloc(OUT_BYTES), *wanted = malloc(OUT_BYTES);
  size_t compared[SLOT_COUNT] = {0};
  for (size_t number = 0; number < TRIALS; number++) {
    draw_inputs(in);
    for (size_t i = 0; i < SLOTS; i++) {
      trial t = draw_trial(in, length_of(number));
      compare(&slots[i], k, isa, in, &t, out, wanted);
      compared[slots[i].place]++;
    }
  }
  for (size_t place = 0; place < SLOT_COUNT; place++) {
    CHECK_MSG(!is_filled(k, place) || compared[place] >= TRIALS, "slot %zu of the table was not compared on %s", place,
              pith_isa_name(isa));
  }
  free(in);
  free(out);
  free(wanted);
}

TEST(avx2_gives_the_bytes_of_scalar_in_every_slot) { compare_isa(PITH_ISA_AVX2); }

TEST(avx512_gives_the_bytes_of_scalar_in_every_slot) { compare_isa(PITH_ISA_AVX512); }

/* The comparison itself, on any machine: scalar with scalar fills every slot, so none is missing from the list
 * above. */
TEST(every_slot_of_the_table_has_a_driver) { compare_isa(PITH_ISA_SCALAR); }

/* ---- Scalar against plain definitions ---------------------------------------------------------------------------- */

TEST(a_rotation_and_its_inverse_give_the_values_back) {
  for (size_t n = 1; n <= 4096; n *= 2) {
    float x[4096], y[4096];
    double before = 0, after = 0;
    for (size_t i = 0; i < n; i++) {
      x[i] = y[i] = test_normal();
      before += (double)x[i] * x[i];
    }
    pith__kernels_scalar.rotate(y, n, (pith_key){7, 9}, 0);
    for (size_t i = 0; i < n; i++) {
      after += (double)y[i] * y[i];
    }
    CHECK_NEAR(after / before, 1.0, 1e-5);
    pith__kernels_scalar.unrotate(y, n, (pith_key){7, 9}, 0);
    for (size_t i = 0; i < n; i++) {
      CHECK_NEAR(y[i], x[i], 1e-5);
    }
  }
}

TEST(levels_are_packed_lowest_bit_first) {
  float x[16];
  uint8_t out[16];
  for (int bits = 1; bits <= 8; bits++) {
    pith_quantizer q = {.inverse = 1.0f, .top = (1 << bits) - 1};
    for (int i = 0; i < 16; i++) {
      x[i] = (float)(i * 37 % (1 << bits));
    }
    pith__kernels_scalar.quantize[bits](x, 16, &q, out);
    for (int i = 0; i < 16 * bits; i++) {
      CHECK_EQ(out[i / 8] >> (i % 8) & 1, (int)x[i / bits] >> (i % bits) & 1);
    }
  }
}

TEST(kernels_draw_the_random_numbers_of_the_base) {
  float x[100];
  uint8_t out[100];
  pith_key key = {0x12345678, 0x9abcdef0};
  for (int i = 0; i < 100; i++) {
    x[i] = (float)test_uniform();
  }
  pith_quantizer q = {.inverse = 1.0f, .top = 1};
  pith__kernels_scalar.quantize_random[8](x, 100, &q, key, 1000, out);
  for (uint32_t i = 0; i < 100; i++) {
    CHECK_EQ(out[i], pith__rng_unit(key, 1000 + i) < x[i]);
  }
}

TEST(a_vote_is_the_sign_and_a_tie_is_none) {
  float x[5] = {0, 5, -0.0f, 3, -2};
  pith__kernels_scalar.vote(x, 5);
  CHECK(x[0] == 0 && x[1] == 1 && x[2] == 0 && x[3] == 1 && x[4] == -1);
}

TEST(groups_of_zeros_abstain_and_other_zeros_vote_in_turn) {
  float x[100] = {0}, got[100];
  uint8_t zeros[4] = {0}, out[13];
  x[3] = -2, x[70] = 1; /* groups 0 and 2; 1 and the short last one are zeros */
  for (int odd = 0; odd <= 1; odd++) {
    memset(zeros, 0, sizeof zeros);
    pith__kernels_scalar.vote_pack(x, 100, odd, zeros, out);
    CHECK_EQ(zeros[0], 2 | 8);
    pith__kernels_scalar.vote_unpack(zeros, out, 100, 1.0f, PITH_SET, got);
    for (int i = 0; i < 100; i++) {
      float in_turn = (i + odd) % 2 ? -1.0f : 1.0f, wanted = i / 32 == 1 || i / 32 == 3 ? 0.0f : in_turn;
      CHECK(got[i] == (i == 3 ? -1.0f : i == 70 ? 1.0f : wanted));
    }
  }
}
