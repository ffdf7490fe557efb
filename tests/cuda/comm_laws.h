/* The laws of device_laws.h for an allreduce over a comm of Pith's own. */
#ifndef PITH_TESTS_CUDA_COMM_LAWS_H
#define PITH_TESTS_CUDA_COMM_LAWS_H

#include <pith/device.h>

typedef pith_device law_object;
#define LAW(function) pith_device_##function

#include "device_laws.h"

static pith_device_options law_options = PITH_DEVICE_OPTIONS_INIT;

static pith_status law_create(const law_world *w, const pith_layer *layers, size_t count, const char *rules,
                              uint64_t seed, law_object **object) {
  return pith_device_create(w->comm, layers, count, rules, seed, &law_options, object);
}

static size_t law_limit(void) { return law_options.group; }

static inline int law_same(const law_world *w, uint64_t number) { return law_all_say(w->comm, number); }

#endif
