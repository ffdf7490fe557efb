/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz targets. Each is a file with LLVMFuzzerTestOneInput: linked with libFuzzer it explores (make fuzz), linked with
 * replay.c it runs a corpus and mutations of it (make test). A target that finds something aborts.
 */
#ifndef PITH_TESTS_FUZZ_H
#define PITH_TESTS_FUZZ_H

#include <pith/pith.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_REQUIRE(condition)                                                          \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, pith_error()); \
      abort();                                                                           \
    }                                                                                    \
  } while (0)

/* Takes fields off the front of an input; zeros once it is used up. */
typedef struct fuzz_input {
  const uint8_t *data;
  size_t size;
} fuzz_input;

static inline uint64_t fuzz_take(fuzz_input *in, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes && in->size; i++, in->data++, in->size--) {
    value |= (uint64_t)*in->data << (8 * i);
  }
  return value;
}

/* The head of an input for decoders: which spec, how many values, of what type, where they go. */
typedef struct fuzz_case {
  pith_codec *codec;
  size_t n;
  pith_dtype dtype;
  pith_mode mode;
  pith_ctx ctx;
} fuzz_case;

/* Codecs are made once and kept. The four bytes of the head are: spec, low and high byte of n, type and mode. */
fuzz_case fuzz_take_case(fuzz_input *in, const char *const *specs, size_t count);

/* Decodes the input as a payload into memory of exactly the right size: a refusal must leave it as it was. */
void fuzz_decode(fuzz_input *in, const char *const *specs, size_t count);

/* Takes the input as values: whatever they are, encoding gives a payload within its bound, the same twice, that
 * decodes. */
void fuzz_round_trip(fuzz_input *in, const char *const *specs, size_t count);

#define FUZZ_COUNT(array) (sizeof(array) / sizeof *(array))

#endif
