/* SPDX-License-Identifier: Apache-2.0 */
/* Links over shm without a transport around them: three ranks, all linked from the start. */
#ifndef PITH_TESTS_FUZZ_SHM_LINKS_H
#define PITH_TESTS_FUZZ_SHM_LINKS_H

#include "directory.h"
#include "transport/shm_link.h"

enum { SHM_LINKS_RANKS = 3 };

typedef struct shm_links {
  pith_shm_link link[SHM_LINKS_RANKS];
  uint8_t wanted[SHM_LINKS_RANKS];
  int established;
} shm_links;

static inline pith_shm_link *shm_links_have(void *owner, int rank) { return &((shm_links *)owner)->link[rank]; }

static inline pith_shm_link *shm_links_find(const void *owner, int rank) {
  return (pith_shm_link *)(uintptr_t)&((const shm_links *)owner)->link[rank];
}

static inline void shm_links_note(void *owner, pith_shm_link *link) {
  (void)link;
  ((shm_links *)owner)->established++;
}

static inline pith_shm_setup shm_links_begin(shm_links *links, const pith_transport_config *config,
                                             const pith_link_key *key, const pith_address *address, int listener,
                                             int memory, double end) {
  pith_shm_shape shape = pith__shm_shape(SHM_LINKS_RANKS - 1, PITH_SHM_POOL);
  links->established = 0;
  for (int r = 0, inbox = 0; r < SHM_LINKS_RANKS; r++) {
    links->link[r] = (pith_shm_link){.rank = r, .socket = -1, .process = -1, .memory = -1};
    links->wanted[r] = r == config->rank ? PITH_LINK_NEVER : PITH_LINK_NOW;
    links->link[r].own.memory = memory;
    links->link[r].own.shape = shape;
    links->link[r].own.inbox = (uint32_t)(r == config->rank ? 0 : inbox++);
  }
  return (pith_shm_setup){.config = config,
                          .key = key,
                          .directory = directory_of(address),
                          .wanted = links->wanted,
                          .listener = listener,
                          .have = shm_links_have,
                          .find = shm_links_find,
                          .established = shm_links_note,
                          .owner = links,
                          .end = end};
}

#endif
