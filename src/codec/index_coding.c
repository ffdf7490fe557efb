/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Index codings: see index_coding.h.
 *
 * The size of a Rice coding is Σ (gap >> r) + count·(r + 1) bits. That sum follows, for every r at once, from how often
 * each bit of the gaps is set, so one cheap pass finds the best parameter exactly.
 */
#include "codec/index_coding.h"

#include <math.h>

#include "base/saturate.h"

static uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }

static size_t bitmap_bytes(size_t n) { return n / 8 + (n % 8 != 0); }

/* ---- Sizes ----------------------------------------------------------------------------------------------------- */

/* The gaps of `count` places sum up to n − count at most, so their quotients to that >> r. */
static size_t rice_bound(size_t n, size_t count) {
  size_t best = SIZE_MAX;
  for (unsigned r = 0; r <= PITH_RICE_MAX; r++) {
    size_t bits = pith__sat_add(pith__sat_mul(count, r + 1), (n - count) >> r);
    best = min_u64(best, bits == SIZE_MAX ? SIZE_MAX : bits / 8 + 1);
  }
  return best;
}

size_t pith__index_bound(size_t n, size_t count) {
  size_t smallest = min_u64(bitmap_bytes(n), rice_bound(n, count));
  return pith__sat_add(smallest, PITH_BITS_SLACK);
}

double pith__index_expected(size_t n, size_t count) {
  double k = (double)count, stay = 1 - k / (double)n, best = count == n ? 0 : ceil((double)n / 8);
  for (int r = 0; r < 32 && count < n; r++) {
    double power = pow(stay, ldexp(1, r)); /* of the gaps exceed 2^r */
    double bits = k * (r + 1 + power / (1 - power));
    best = fmin(best, ceil(bits / 8));
  }
  return fmin(best, sizeof(uint32_t) * k);
}

/* The eight bits of a byte, each in a byte of its own. */
static uint64_t spread_bits(uint64_t byte) {
  uint64_t picked = (byte * 0x0101010101010101u) & 0x8040201008040201u;
  return ((picked + 0x7f7f7f7f7f7f7f7fu) >> 7) & 0x0101010101010101u;
}

static void gaps_flush(pith_gaps *gaps) {
  for (int i = 0; i < 64; i++) {
    gaps->ones[i] += gaps->lanes[i / 8] >> (8 * (i % 8)) & 0xff;
  }
  memset(gaps->lanes, 0, sizeof gaps->lanes);
  gaps->pending = 0;
}

void pith__gaps_add(pith_gaps *gaps, uint64_t base, const uint32_t *place, size_t count) {
  gaps->count += count;
  for (size_t i = 0; i < count; i++) {
    uint64_t gap = base + place[i] - gaps->next;
    gaps->next = base + place[i] + 1;
    for (uint64_t *lane = gaps->lanes; gap; gap >>= 8) {
      *lane++ += spread_bits(gap & 0xff);
    }
    if (++gaps->pending == 255) {
      gaps_flush(gaps);
    }
  }
}

static pith_index_plan smaller(pith_index_plan a, pith_index_plan b) { return b.bytes < a.bytes ? b : a; }

static pith_index_plan choose_rice(const pith_gaps *gaps) {
  pith_index_plan best = {PITH_INDEX_RICE, 0, SIZE_MAX};
  uint64_t quotients = 0;
  for (unsigned r = 64; r-- > 0;) {
    quotients = 2 * quotients + gaps->ones[r];
    if (r <= PITH_RICE_MAX) {
      uint64_t bits = pith__sat_add(quotients, pith__sat_mul(gaps->count, r + 1));
      best = smaller(best, (pith_index_plan){PITH_INDEX_RICE, r, bits / 8 + (bits % 8 != 0)});
    }
  }
  return best;
}

pith_index_plan pith__index_choose(pith_gaps *gaps, size_t n) {
  gaps_flush(gaps);
  if (gaps->count == n) {
    return (pith_index_plan){PITH_INDEX_DENSE, 0, 0};
  }
  pith_index_plan best = smaller((pith_index_plan){PITH_INDEX_BITMAP, 0, bitmap_bytes(n)}, choose_rice(gaps));
  if (n - 1 <= UINT32_MAX) {
    best = smaller(best, (pith_index_plan){PITH_INDEX_RAW, 0, pith__sat_mul(gaps->count, sizeof(uint32_t))});
  }
  return best;
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

void pith__index_writer_init(pith_index_writer *w, pith_index_plan plan, uint8_t *out) {
  *w = (pith_index_writer){.plan = plan, .bits = {.at = out}, .out = out};
  if (plan.coding == PITH_INDEX_BITMAP) {
    memset(out, 0, plan.bytes);
  }
}

static void write_rice(pith_index_writer *w, uint64_t base, const uint32_t *place, size_t count) {
  pith_bit_writer bits = w->bits;
  uint64_t next = w->next;
  for (size_t i = 0; i < count; i++) {
    pith__rice_put(&bits, base + place[i] - next, w->plan.rice);
    next = base + place[i] + 1;
  }
  w->bits = bits;
  w->next = next;
}

static void write_bitmap(pith_index_writer *w, uint64_t base, const uint32_t *place, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint64_t at = base + place[i];
    w->out[at / 8] |= (uint8_t)(1u << (at % 8));
  }
}

static void write_raw(pith_index_writer *w, uint64_t base, const uint32_t *place, size_t count) {
  for (size_t i = 0; i < count; i++) {
    uint32_t at = (uint32_t)(base + place[i]);
    memcpy(w->out, &at, sizeof at);
    w->out += sizeof at;
  }
}

void pith__index_write(pith_index_writer *w, uint64_t base, const uint32_t *place, size_t count) {
  switch (w->plan.coding) {
    case PITH_INDEX_RAW:
      write_raw(w, base, place, count);
      break;
    case PITH_INDEX_RICE:
      write_rice(w, base, place, count);
      break;
    case PITH_INDEX_BITMAP:
      write_bitmap(w, base, place, count);
      break;
    case PITH_INDEX_DENSE:
      break;
  }
}

void pith__index_writer_finish(pith_index_writer *w) {
  if (w->plan.coding == PITH_INDEX_RICE) {
    pith__bits_end(&w->bits);
  }
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

static int limit_bitmap(pith_index_reader *r, size_t bytes) {
  if ((size_t)(r->end - r->at) < bytes) {
    return 0;
  }
  r->end = r->at + bytes;
  return 1;
}

int pith__index_reader_init(pith_index_reader *r, unsigned coding, unsigned rice, size_t n, const uint8_t *at,
                            const uint8_t *end) {
  *r = (pith_index_reader){(pith_index_coding)coding, rice, n, 0, at, end, 0, {at, end, 0, 0}};
  switch (coding) {
    case PITH_INDEX_RAW:
      return rice == 0;
    case PITH_INDEX_RICE:
      return rice <= PITH_RICE_MAX;
    case PITH_INDEX_BITMAP:
      return rice == 0 && limit_bitmap(r, bitmap_bytes(n));
    case PITH_INDEX_DENSE:
      return rice == 0;
    default:
      return 0;
  }
}

static int read_raw(pith_index_reader *r, uint64_t *place, size_t count) {
  if ((size_t)(r->end - r->at) / sizeof(uint32_t) < count) {
    return 0;
  }
  for (size_t i = 0; i < count; i++) {
    uint32_t at;
    memcpy(&at, r->at, sizeof at);
    r->at += sizeof at;
    if (at < r->next || at >= r->n) {
      return 0;
    }
    place[i] = at;
    r->next = (uint64_t)at + 1;
  }
  return 1;
}

static int read_rice(pith_index_reader *r, uint64_t *place, size_t count) {
  pith_bit_reader bits = r->bits;
  uint64_t next = r->next, gap;
  for (size_t i = 0; i < count; i++) {
    if (next >= r->n || !pith__rice_get(&bits, r->rice, r->n - 1 - next, &gap)) {
      return 0;
    }
    place[i] = next + gap;
    next = place[i] + 1;
  }
  r->bits = bits;
  r->next = next;
  return 1;
}

/* Loads up to 64 further bits of a bitmap; r->next counts the bits loaded. */
static int load_bitmap(pith_index_reader *r) {
  size_t left = (size_t)(r->end - r->at), bytes = left < 8 ? left : 8;
  if (bytes == 0) {
    return 0;
  }
  memcpy(&r->word, r->at, bytes);
  r->at += bytes;
  r->next += 64;
  return 1;
}

static int read_bitmap(pith_index_reader *r, uint64_t *place, size_t count) {
  for (size_t i = 0; i < count; i++) {
    while (r->word == 0) {
      if (!load_bitmap(r)) {
        return 0;
      }
    }
    place[i] = r->next - 64 + (unsigned)__builtin_ctzll(r->word);
    r->word &= r->word - 1;
  }
  return count == 0 || place[count - 1] < r->n;
}

int pith__index_read(pith_index_reader *r, uint64_t *place, size_t count) {
  switch (r->coding) {
    case PITH_INDEX_RAW:
      return read_raw(r, place, count);
    case PITH_INDEX_RICE:
      return read_rice(r, place, count);
    case PITH_INDEX_BITMAP:
      return read_bitmap(r, place, count);
    case PITH_INDEX_DENSE:
      break;
  }
  return 0;
}

static const uint8_t *bitmap_end(pith_index_reader *r) {
  while (r->word == 0 && load_bitmap(r)) {
  }
  return r->word ? NULL : r->end;
}

const uint8_t *pith__index_reader_end(pith_index_reader *r) {
  switch (r->coding) {
    case PITH_INDEX_RICE:
      return pith__bits_tail(&r->bits);
    case PITH_INDEX_BITMAP:
      return bitmap_end(r);
    default:
      return r->at;
  }
}
