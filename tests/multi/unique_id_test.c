/* SPDX-License-Identifier: Apache-2.0 */
/* Unique ids: comms whose ranks were told where rank 0 is by other means. */
#include <pith/comm.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "test.h"
#include "transport/unique_id.h"

enum { RANKS = 3 };

typedef struct rank_thread {
  pith_config config;
  pith_status status;
  char error[512];
  float sum;
  pthread_t thread;
} rank_thread;

static void *be_rank(void *argument) {
  rank_thread *r = argument;
  pith_comm *comm = NULL;
  float one = 1;
  r->status = pith_comm_create(&r->config, &comm);
  if (r->status == PITH_OK) {
    r->status =
        pith_allreduce(comm, (pith_cspan){&one, 1, PITH_F32}, (pith_span){&r->sum, 1, PITH_F32}, PITH_SUM, NULL, NULL);
  }
  snprintf(r->error, sizeof r->error, "%s", r->status == PITH_OK ? "" : pith_error());
  pith_comm_destroy(comm);
  return NULL;
}

static void run_ranks(rank_thread *ranks, const pith_unique_id *id) {
  for (int i = 0; i < RANKS; i++) {
    ranks[i].config = (pith_config){.size = sizeof(pith_config),
                                    .rank = i,
                                    .ranks = RANKS,
                                    .timeout = 20,
                                    .id = id,
                                    .transport = "tcp",
                                    .secret = ranks[i].config.secret};
    CHECK_EQ(pthread_create(&ranks[i].thread, NULL, be_rank, &ranks[i]), 0);
  }
  for (int i = 0; i < RANKS; i++) {
    pthread_join(ranks[i].thread, NULL);
  }
}

TEST(an_id_is_all_that_ranks_must_know) {
  pith_unique_id id;
  rank_thread ranks[RANKS] = {0};
  setenv("MASTER_ADDR", "no.such.host.invalid", 1); /* neither this nor a port is used */
  CHECK_OK(pith_unique_id_create(NULL, &id));
  run_ranks(ranks, &id);
  for (int i = 0; i < RANKS; i++) {
    CHECK_MSG(ranks[i].status == PITH_OK, "rank %d: %s", i, ranks[i].error);
    CHECK(ranks[i].sum == RANKS);
  }
}

TEST(an_id_is_for_one_comm) {
  pith_unique_id id;
  pith_comm *comm;
  rank_thread ranks[RANKS] = {0};
  CHECK_OK(pith_unique_id_create(NULL, &id));
  run_ranks(ranks, &id);
  CHECK_MSG(ranks[0].status == PITH_OK, "%s", ranks[0].error);
  pith_config again = {.size = sizeof again, .rank = 0, .ranks = 2, .timeout = 5, .id = &id};
  CHECK_EQ(pith_comm_create(&again, &comm), PITH_ERR_STATE);
  CHECK(strstr(pith_error(), "an id is for one comm"));
}

TEST(many_ids_wait_at_a_time) {
  pith_unique_id id[4];
  for (int i = 0; i < 4; i++) {
    CHECK_OK(pith_unique_id_create(NULL, &id[i]));
  }
  for (int i = 3; i >= 0; i--) {
    rank_thread ranks[RANKS] = {0};
    run_ranks(ranks, &id[i]);
    CHECK_MSG(ranks[1].status == PITH_OK && ranks[1].sum == RANKS, "id %d: %s", i, ranks[1].error);
  }
}

TEST(ids_that_nobody_uses_do_not_pile_up) {
  pith_unique_id first, id;
  CHECK_OK(pith_unique_id_create(NULL, &first));
  for (int i = 0; i < 64; i++) {
    CHECK_OK(pith_unique_id_create(NULL, &id));
  }
  CHECK_EQ(pith__unique_id_listener(&first), -1);
  CHECK(pith__unique_id_listener(&id) > 0);
}

TEST(an_id_has_a_secret_unless_the_job_has_one) {
  pith_unique_id id;
  pith_id_content content;
  CHECK_OK(pith_unique_id_create(NULL, &id));
  CHECK_OK(pith__unique_id_read(&id, &content));
  CHECK_EQ(strlen(content.secret), PITH_ID_SECRET - 1);
  pith_config with = PITH_CONFIG_INIT;
  with.secret = "the job's";
  CHECK_OK(pith_unique_id_create(&with, &id));
  CHECK_OK(pith__unique_id_read(&id, &content));
  CHECK_EQ(content.secret[0], 0);
}

TEST(who_does_not_have_the_secret_of_an_id_stays_outside) {
  pith_unique_id id;
  pith_id_content content;
  pith_comm *comm;
  CHECK_OK(pith_unique_id_create(NULL, &id));
  CHECK_OK(pith__unique_id_read(&id, &content));
  rank_thread first = {.config = {.size = sizeof(pith_config), .rank = 0, .ranks = 2, .timeout = 3, .id = &id}};
  CHECK_EQ(pthread_create(&first.thread, NULL, be_rank, &first), 0);
  pith_config stranger = {.size = sizeof stranger,
                          .rank = 1,
                          .ranks = 2,
                          .timeout = 3,
                          .host = content.hosts,
                          .port = content.port,
                          .secret = "a guess"};
  CHECK(pith_comm_create(&stranger, &comm) != PITH_OK);
  pthread_join(first.thread, NULL);
  CHECK_EQ(first.status, PITH_ERR_TIMEOUT);
  CHECK_MSG(strstr(first.error, "was rejected"), "%s", first.error);
}

TEST(bytes_that_are_no_id_are_refused) {
  pith_unique_id id;
  pith_comm *comm;
  CHECK_OK(pith_unique_id_create(NULL, &id));
  pith_config config = {.size = sizeof config, .rank = 1, .ranks = 2, .timeout = 5, .id = &id};
  for (size_t i = 0; i < sizeof id.bytes; i++) {
    id.bytes[i] ^= 1;
    CHECK_EQ(pith_comm_create(&config, &comm), PITH_ERR_CORRUPT);
    id.bytes[i] ^= 1;
  }
}

TEST(configs_of_earlier_releases_are_accepted) {
  const size_t sizes[] = {offsetof(pith_config, id), offsetof(pith_config, tls)};
  pith_comm *comm;
  pith_config config = {.rank = 0, .ranks = 1};
  for (int i = 0; i < 2; i++) { /* what is not part of that config must not be looked at */
    config.size = sizes[i];
    config.id = i ? NULL : (const pith_unique_id *)(uintptr_t)1;
    config.tls = "no such mode";
    CHECK_OK(pith_comm_create(&config, &comm));
    pith_comm_destroy(comm);
  }
  config.size = 12;
  CHECK_EQ(pith_comm_create(&config, &comm), PITH_ERR_ARGUMENT);
}
