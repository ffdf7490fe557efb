/* SPDX-License-Identifier: Apache-2.0 */
/* What every rank tells the others before they connect, and its bytes: docs/format.md, "Rendezvous". */
#ifndef PITH_TRANSPORT_ADDRESS_RECORD_H
#define PITH_TRANSPORT_ADDRESS_RECORD_H

#include "transport/transport.h"

enum { PITH_KIND_LOCAL, PITH_KIND_NETWORK, PITH_KINDS };

typedef struct pith_address_record {
  uint64_t host;                    /* ranks with the same number share memory, … */
  uint64_t user;                    /* … if they run as the same user */
  pith_address address[PITH_KINDS]; /* size 0: none */
} pith_address_record;

#define PITH_ADDRESS_RECORD_MOST (2 * sizeof(uint64_t) + PITH_KINDS * (sizeof(uint16_t) + PITH_ADDRESS_MAX))

/* This process's, without addresses. `host_id`: what to call its host; NULL: hosts are told apart by themselves. */
pith_address_record pith__address_record_here(const char *host_id);

/* Returns how many bytes it wrote. */
size_t pith__address_record_write(const pith_address_record *record, uint8_t bytes[PITH_ADDRESS_RECORD_MOST]);
/* The bytes may be anything: PITH_ERR_CORRUPT names the rank they came from. */
pith_status pith__address_record_read(const uint8_t *bytes, size_t size, int rank, pith_address_record *record);

#endif
