/* The laws of device_laws.h for an allreduce over NCCL, and those of its own. */
#ifndef PITH_TESTS_CUDA_NCCL_LAWS_H
#define PITH_TESTS_CUDA_NCCL_LAWS_H

#include <pith/nccl.h>

typedef pith_nccl law_object;
#define LAW(function) pith_nccl_##function

#include "device_laws.h"

static pith_status law_create(const law_world *w, const pith_layer *layers, size_t count, const char *rules,
                              uint64_t seed, law_object **object) {
  return pith_nccl_create(w->comm, layers, count, rules, seed, object);
}

static size_t law_limit(void) { return 0; }

/* Nobody waits for sizes: payloads that may be large are refused. */
static void law_rooms(const law_world *w) {
  law_refuses(w, "*=threshold:0.1", PITH_ERR_UNSUPPORTED, "vary in size");
  law_refuses(w, "*=topk:0.9", PITH_ERR_UNSUPPORTED, "vary in size");
}

#endif
