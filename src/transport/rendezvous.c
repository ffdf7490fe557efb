/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous: what both sides share. Rank 0 is the server (rendezvous_server.c), every other rank a client
 * (rendezvous_client.c).
 */
#include "transport/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/rendezvous_wire.h"
#include "transport/sockets.h"

/* ---- Proofs ------------------------------------------------------------------------------------------------------ */

rendezvous_head pith__rendezvous_head(int rank) {
  rendezvous_head head = {.order = RENDEZVOUS_ORDER, .rank = (uint32_t)rank};
  memcpy(head.magic, RENDEZVOUS_MAGIC, sizeof head.magic);
  snprintf(head.version, sizeof head.version, "%s", pith_version());
  return head;
}

int pith__rendezvous_has_secret(const pith_rendezvous *r) { return r->secret && *r->secret; }

pith_status pith__rendezvous_interrupted(const pith_rendezvous *r) {
  return pith_fail(PITH_ERR_INTERRUPTED, "rank %d was interrupted while it waited for the other ranks", r->rank);
}

void pith__rendezvous_prove(const pith_rendezvous *r, const char *role, const uint8_t *challenge, const void *said,
                            size_t size, uint8_t proof[PITH_SHA256_SIZE]) {
  memset(proof, 0, PITH_SHA256_SIZE);
  if (!pith__rendezvous_has_secret(r)) {
    return;
  }
  pith_hmac mac;
  pith__hmac_init(&mac, r->secret, strlen(r->secret));
  pith__hmac_add(&mac, role, strlen(role) + 1);
  pith__hmac_add(&mac, challenge, RENDEZVOUS_NONCE);
  pith__hmac_add(&mac, said, size);
  pith__hmac_finish(&mac, proof);
}

void pith__rendezvous_digest(const void *bytes, size_t size, uint8_t digest[PITH_SHA256_SIZE]) {
  pith_sha256 hash;
  pith__sha256_init(&hash);
  pith__sha256_add(&hash, bytes, size);
  pith__sha256_finish(&hash, digest);
}

/* ---- The table: the size of each record, then the records -------------------------------------------------------- */

size_t pith__table_most(int ranks) { return (size_t)ranks * (sizeof(uint32_t) + PITH_RECORD_MOST); }

/* Where records begin and end, if their sizes are possible and add up to what is there. */
static pith_status read_sizes(const uint8_t *table, size_t size, int ranks, uint32_t *at) {
  size_t head = (size_t)ranks * sizeof(uint32_t);
  at[0] = 0;
  for (int p = 0; p < ranks; p++) {
    uint32_t record;
    memcpy(&record, table + (size_t)p * sizeof record, sizeof record);
    PITH_REQUIRE(record <= PITH_RECORD_MOST, PITH_ERR_CORRUPT,
                 "the table says that rank %d brought %u bytes, more than %d", p, record, PITH_RECORD_MOST);
    at[p + 1] = at[p] + record;
  }
  PITH_REQUIRE(at[ranks] == size - head, PITH_ERR_CORRUPT, "the table has %zu bytes of records and speaks of %u",
               size - head, at[ranks]);
  return PITH_OK;
}

pith_status pith__table_read(const uint8_t *table, size_t size, int ranks, pith_records *records) {
  size_t head = (size_t)ranks * sizeof(uint32_t);
  PITH_REQUIRE(size >= head && size <= pith__table_most(ranks), PITH_ERR_CORRUPT, "no table of %d ranks has %zu bytes",
               ranks, size);
  pith_records made = {.at = malloc(((size_t)ranks + 1) * sizeof *made.at), .bytes = malloc(size - head + 1)};
  pith_status status = made.at && made.bytes
                           ? read_sizes(table, size, ranks, made.at)
                           : pith_fail(PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", ranks);
  if (status != PITH_OK) {
    pith__records_free(&made);
    return status;
  }
  memcpy(made.bytes, table + head, size - head);
  *records = made;
  return PITH_OK;
}

void pith__records_free(pith_records *records) {
  free(records->at);
  free(records->bytes);
  *records = (pith_records){NULL, NULL};
}

/* ---- The exchange ------------------------------------------------------------------------------------------------ */

static pith_status check_arguments(const pith_rendezvous *r, const void *mine, size_t size) {
  PITH_REQUIRE(r->ranks >= 1 && r->rank >= 0 && r->rank < r->ranks, PITH_ERR_ARGUMENT, "no rank %d among %d ranks",
               r->rank, r->ranks);
  PITH_REQUIRE(r->ranks <= RENDEZVOUS_RANKS_MOST, PITH_ERR_ARGUMENT, "%d ranks are too many for a rendezvous",
               r->ranks);
  PITH_REQUIRE(size <= PITH_RECORD_MOST, PITH_ERR_ARGUMENT, "%zu bytes are too many for a rendezvous, which takes %d",
               size, PITH_RECORD_MOST);
  PITH_REQUIRE(size == 0 || mine, PITH_ERR_ARGUMENT, "no bytes to exchange");
  PITH_REQUIRE(r->ranks == 1 || (r->host && *r->host && r->port), PITH_ERR_ARGUMENT,
               "%d ranks need a host and a port for the rendezvous (MASTER_ADDR, MASTER_PORT)", r->ranks);
  return PITH_OK;
}

static pith_status exchange_alone(const void *mine, size_t size, pith_records *all, uint64_t *job) {
  uint8_t table[sizeof(uint32_t) + PITH_RECORD_MOST];
  uint32_t record = (uint32_t)size;
  PITH_TRY(pith__random_bytes(job, sizeof *job));
  memcpy(table, &record, sizeof record);
  if (size) {
    memcpy(table + sizeof record, mine, size);
  }
  return pith__table_read(table, sizeof record + size, 1, all);
}

pith_status pith__rendezvous_exchange(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                      uint64_t *job) {
  PITH_TRY(check_arguments(r, mine, size));
  if (r->ranks == 1) {
    return exchange_alone(mine, size, all, job);
  }
  return r->rank == 0 ? pith__rendezvous_serve(r, mine, size, all, job)
                      : pith__rendezvous_join(r, mine, size, all, job);
}
