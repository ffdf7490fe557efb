/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The laws of device_laws.h for reducers on the fake device over comms of Pith's own: where a device's memory is, and
 * how ranks run a law. Included once.
 */
#ifndef PITH_TESTS_CUDA_FAKE_COMM_LAWS_H
#define PITH_TESTS_CUDA_FAKE_COMM_LAWS_H

#include "cuda/device_laws.h"
#include "ranks.h"

static pith_status law_open_reducer(const law_world *w, const char *rules, uint64_t seed,
                                    const pith_reducer_options *options, pith_reducer **reducer) {
  return pith_reducer_create_with(w->comm, rules, seed, options, reducer);
}

static int law_same(const law_world *w, uint64_t number) { return law_all_say(w->comm, number); }

static void copy_to(void *to, const void *from, size_t size) { memcpy(to, from, size); }

static const law_memory law_device = {malloc, free, copy_to, copy_to, law_same};

typedef void (*law_fn)(const law_world *);

typedef struct law_run {
  law_fn run;
} law_run;

static void run_law(pith_comm *comm, void *argument) {
  law_world world = {.comm = comm, .rank = pith_comm_rank(comm), .ranks = pith_comm_size(comm)};
  ((law_run *)argument)->run(&world);
}

#endif
