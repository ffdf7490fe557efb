/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs of the targets that hear a rendezvous or a handshake: make_handshakes.c. */
#ifndef PITH_TESTS_FUZZ_MAKE_HANDSHAKES_H
#define PITH_TESTS_FUZZ_MAKE_HANDSHAKES_H

#include <pith/comm.h>

#include "fuzz/fuzz.h"

void fuzz_make_handshakes(void);

/* make_corpus.c: writes an input, of two pieces. */
void fuzz_write_input(const char *target, const void *head, size_t head_size, const void *body, size_t body_size);

#endif
