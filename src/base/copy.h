/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy of many bytes that is fast wherever they lie.
 *
 * For long copies the C library uses one string instruction, which some processors run at a fifth of the speed when
 * source and destination lie nearly a multiple of 4 KiB apart, as values behind a header and values without one often
 * do. Shorter ones, one after the other, do not suffer from that.
 */
#ifndef PITH_BASE_COPY_H
#define PITH_BASE_COPY_H

#include <stdint.h>
#include <string.h>

#define PITH_COPY_PIECE ((size_t)1984) /* below every threshold of the C library; whole cache lines */

static inline void pith__copy(void *to, const void *from, size_t n) {
  uint8_t *out = to;
  const uint8_t *in = from;
  for (; n > PITH_COPY_PIECE; n -= PITH_COPY_PIECE) {
    memcpy(out, in, PITH_COPY_PIECE);
    out += PITH_COPY_PIECE;
    in += PITH_COPY_PIECE;
  }
  __asm__("" : "+r"(n)); /* a compiler that knows its bound writes a string instruction, which starts slowly */
  memcpy(out, in, n);
}

#endif
