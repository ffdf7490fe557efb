/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm: ranks as processes. Beside the laws of all transports: what peers and strangers can do wrong in shared memory
 * and at the socket, and how much memory there is.
 */
#include "transport/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "directory.h"
#include "ranks.h"
#include "transport_laws.h"

static const transport_world processes = {&pith__transport_shm, 1};
static const transport_world threads = {&pith__transport_shm, 0};

TEST(it_can_run_here) { CHECK_OK(pith__transport_shm.probe()); }

/* ---- The laws ---------------------------------------------------------------------------------------------------- */

TEST(bytes_arrive_in_order) { law_bytes_arrive_in_order(&processes, 300000); }
TEST(bytes_arrive_in_order_among_threads) { law_bytes_arrive_in_order(&threads, 100000); }

TEST(bytes_arrive_in_order_through_few_tiny_cells) {
  pith__shm_tuning = (pith_shm_tuning){.cells = 1, .cell_size = 7};
  law_bytes_arrive_in_order(&processes, 3000);
}

TEST(no_wakeup_is_lost) { law_no_wakeup_is_lost(&processes, 3000); }

TEST(one_silent_reader_blocks_no_other) {
  pith__shm_tuning = (pith_shm_tuning){.cells = 4, .cell_size = 100};
  law_one_silent_reader_blocks_no_other(&processes);
}

TEST(last_bytes_of_a_closed_peer_arrive) { law_last_bytes_of_a_closed_peer_arrive(&processes); }
TEST(last_bytes_of_a_killed_peer_arrive) { law_last_bytes_of_a_killed_peer_arrive(&processes); }
TEST(a_spinning_rank_notices_a_killed_peer) { law_a_spinning_rank_notices_a_killed_peer(&processes); }
TEST(a_stopped_peer_only_waits) { law_a_stopped_peer_only_waits(&processes); }
TEST(groups_do_not_mix) { law_groups_do_not_mix(&processes); }
TEST(one_rank_alone_works) { law_one_rank_alone_works(&processes); }
TEST(a_missing_rank_is_named) { law_a_missing_rank_is_named(&processes); }
TEST(another_job_is_not_met) { law_another_job_is_not_met(&processes); }
TEST(nothing_leaks) { law_nothing_leaks(&processes); }

/* ---- Ranks that die while links are made ------------------------------------------------------------------------- */

typedef struct hall {
  atomic_int listening, judged;
  pith_address address[4];
} hall;

/* Rank 2 wants no link but that with rank 0, and ends. Rank 3 cannot reach it and gives up. Rank 1 has no link with
 * rank 2 and a broken one with rank 3: it must not wait for its whole time, nor blame rank 3. */
static _Noreturn void be_in_hall(hall *h, int rank) {
  pith_transport_config config = {.rank = rank, .ranks = 4, .timeout = 30};
  uint8_t wanted[4] = {1, 1, 1, 1};
  pith_link_key key = {.job = 7};
  pith_transport *transport;
  wanted[rank] = 0;
  if (rank == 2) {
    wanted[1] = wanted[3] = 0;
  }
  CHECK_OK(pith__transport_shm.listen(&config, &transport, &h->address[rank]));
  for (atomic_fetch_add(&h->listening, 1); atomic_load(&h->listening) < 4;) {
    usleep(1000);
  }
  double start = pith__now();
  pith_directory directory = directory_of(h->address);
  pith_status status = pith__transport_shm.connect(transport, &directory, wanted, &key);
  if (rank == 1 || rank == 3) {
    CHECK_EQ(status, rank == 1 ? PITH_ERR_TIMEOUT : PITH_ERR_PEER);
    CHECK_ERROR_SAYS("rank 2");
    CHECK_MSG(pith__now() - start < 5, "rank %d waited for %.1f s", rank, pith__now() - start);
    uint8_t is_linked[4] = {0};
    for (int peer; (peer = pith__transport_shm.next_linked(transport)) >= 0;) {
      is_linked[peer] = 1;
    }
    CHECK(is_linked[0] && !is_linked[2]);
    atomic_fetch_add(&h->judged, 1);
  } else {
    CHECK_OK(status);
  }
  for (int i = 0; rank == 0 && i < 10000 && atomic_load(&h->judged) < 2; i++) {
    usleep(1000);
  }
  pith__transport_shm.close(transport);
  _exit(0);
}

TEST(a_rank_that_dies_while_links_are_made_is_named_soon) {
  pid_t child[4];
  hall *h = mmap(NULL, sizeof *h, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(h != MAP_FAILED);
  for (int r = 0; r < 4; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      be_in_hall(h, r);
    }
  }
  ranks_wait(child, 4, -1);
  munmap(h, sizeof *h);
}

/* ---- Laps -------------------------------------------------------------------------------------------------------- */

/* Laps are 16 bits: with two slots they start again after 131072 cells. */
static void pass_many_cells(world_rank *me) {
  for (uint32_t i = 0; i < 140000; i++) {
    uint32_t number = i;
    if (me->rank == 0) {
      world_send(me, 1, &number, sizeof number);
    } else {
      world_receive(me, 0, &number, sizeof number);
      if (number != i) {
        CHECK_EQ(number, i);
      }
    }
  }
  world_barrier(me);
}

TEST(laps_start_again) {
  pith__shm_tuning = (pith_shm_tuning){.cells = 2, .cell_size = 4};
  world_run(&processes, 2, 0, pass_many_cells, NULL);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

TEST(a_segment_grows_at_most_linearly) {
  for (uint32_t peers = 1; peers < 1000; peers++) {
    pith_shm_shape shape = pith__shm_shape(peers, PITH_SHM_POOL);
    CHECK(shape.cells >= 2 * peers); /* one kept for each */
    CHECK(peers == 1 || shape.slots <= shape.cells / 2);
    CHECK(pith__shm_segment_size(&shape) <= (4u << 20) + (size_t)peers * (8192 + 1024) + 8192);
  }
}

TEST(a_segment_cannot_shrink) {
  pith_shm_shape shape = pith__shm_shape(2, PITH_SHM_POOL);
  pith_shm_segment segment;
  int fd;
  CHECK_OK(pith__shm_segment_create(&shape, &segment, &fd));
  CHECK(ftruncate(fd, 0) != 0);
  pith__shm_segment_unmap(&segment);
  close(fd);
}

/* What a peer sends as its segment must be sealed, as large as it says, and of a shape that can be. */
TEST(a_segment_that_lies_is_not_mapped) {
  pith_shm_shape shape = pith__shm_shape(2, PITH_SHM_POOL), wrong;
  pith_shm_segment segment, other;
  int fd, loose = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK_OK(pith__shm_segment_create(&shape, &segment, &fd));
  CHECK(ftruncate(loose, (off_t)pith__shm_segment_size(&shape)) == 0);
  CHECK_STATUS(pith__shm_segment_map(loose, &shape, 3, &other), PITH_ERR_PEER);
  CHECK_ERROR_SAYS("rank 3");
  uint32_t *fields[] = {&wrong.cells, &wrong.cell_size, &wrong.inboxes, &wrong.slots};
  const uint32_t values[] = {0, 4097, 0x80000000u, UINT32_MAX}; /* a lie within the padding of a page harms nobody */
  for (int i = 0; i < 16; i++) {
    wrong = shape;
    *fields[i / 4] = values[i % 4];
    CHECK_STATUS(pith__shm_segment_map(fd, &wrong, 3, &other), PITH_ERR_PEER);
  }
  pith__shm_segment_unmap(&segment);
  close(fd);
  close(loose);
}

/* ---- Nonsense in shared memory ----------------------------------------------------------------------------------- */

/* Rank 0 plays a broken rank 1: it writes into the inbox of its own segment that is rank 1's. */
static void read_nonsense(world_rank *me) {
  uint64_t word = *(const uint64_t *)me->argument;
  if (me->rank == 0) {
    char bytes[64];
    size_t size = 0;
    pith_shm_inbox *inbox = pith__shm_inbox_of(pith__shm_own_segment(me->transport), 0);
    atomic_store(&inbox->slot[0], word);
    for (int i = 0; i < 2; i++) {
      CHECK_STATUS(me->world->ops->receive(me->transport, 1, bytes, sizeof bytes, &size), PITH_ERR_PEER);
      CHECK_ERROR_SAYS("rank 1");
    }
    me->world->ops->sleep(me->transport, 1);
    me->world->ops->sleep(me->transport, 0);
  }
  world_barrier(me);
}

TEST(nonsense_in_a_slot_is_an_error) {
  pith_shm_shape shape = pith__shm_shape(1, PITH_SHM_POOL);
  const uint64_t words[] = {
      pith__shm_slot(1, shape.cells, 1), pith__shm_slot(1, 0, shape.cell_size + 1),
      pith__shm_slot(1, 0, 0),           pith__shm_slot(1, 65535, UINT32_MAX),
      pith__shm_slot(2, 0, 1),           UINT64_MAX,
      pith__shm_slot(65535, 0, 1),
  };
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    world_run(&processes, 2, 0, read_nonsense, &words[i]);
  }
  for (int i = 0; i < 30; i++) {
    uint64_t word = test_random() | (uint64_t)2 << 48; /* of a lap that cannot be */
    world_run(&processes, 2, 0, read_nonsense, &word);
  }
}

/* Rank 1 claims to have emptied more cells than it ever got. */
static void count_nonsense(world_rank *me) {
  if (me->rank == 1) {
    atomic_store(&pith__shm_inbox_of(pith__shm_own_segment(me->transport), 0)->emptied, 1000000);
  }
  world_barrier(me);
  if (me->rank == 0) {
    char byte = 0;
    size_t taken;
    pith_status status = PITH_OK;
    for (int i = 0; i < 1000 && status == PITH_OK; i++) {
      status = me->world->ops->send(me->transport, 1, &(struct iovec){&byte, 1}, 1, &taken);
    }
    CHECK_EQ(status, PITH_ERR_PEER);
    CHECK_ERROR_SAYS("rank 1");
  }
  world_barrier(me);
}

TEST(nonsense_in_a_count_is_an_error) { world_run(&processes, 2, 0, count_nonsense, NULL); }

/* A rank writes junk all over its own segment while the other works with it: any status will do, a crash will not. */
static void work_beside_a_vandal(world_rank *me) {
  const pith_shm_segment *segment = pith__shm_own_segment(me->transport);
  size_t size = pith__shm_cells_offset(&segment->shape);
  char bytes[5000] = {0};
  for (int i = 0; i < 20000; i++) {
    size_t moved;
    if (me->rank == 1) {
      segment->base[world_below(me, size)] = (uint8_t)world_below(me, 256);
    }
    (void)me->world->ops->send(me->transport, !me->rank, &(struct iovec){bytes, world_below(me, sizeof bytes)}, 1,
                               &moved);
    (void)me->world->ops->receive(me->transport, !me->rank, bytes, world_below(me, sizeof bytes), &moved);
    me->world->ops->sleep(me->transport, i % 3 == 0);
  }
  CHECK(me->transport != NULL);
  world_barrier(me);
}

TEST(a_vandal_crashes_nobody) {
  for (int i = 0; i < 5; i++) {
    world_run(&processes, 2, 0, work_beside_a_vandal, NULL);
  }
}

/* ---- Strangers and children -------------------------------------------------------------------------------------- */

static int call_as_stranger(const pith_address *address) {
  struct sockaddr_un where = {.sun_family = AF_UNIX};
  memcpy(where.sun_path + 1, address->data, address->size);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  CHECK(fd >= 0);
  CHECK_EQ(
      connect(fd, (struct sockaddr *)&where, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + address->size)),
      0);
  return fd;
}

/* Before rank 1 comes, rank 0 has visitors that are silent, that leave, and that talk nonsense. */
static void connect_among_strangers(world_rank *me) {
  int strangers[90];
  world_listen(me, 10);
  world_barrier(me);
  for (int i = 0; me->rank == 1 && i < 90; i++) {
    char noise[300];
    memset(noise, i, sizeof noise);
    strangers[i] = call_as_stranger(world_address(me, 0));
    if (i % 3 == 0) {
      CHECK(send(strangers[i], noise, world_below(me, sizeof noise), MSG_NOSIGNAL) >= 0);
    }
    if (i % 5 == 0) {
      close(strangers[i]);
      strangers[i] = -1;
    }
  }
  CHECK_OK(world_connect(me, (const uint8_t[]){me->rank != 0, me->rank != 1}));
  int word = 7;
  world_send(me, !me->rank, &word, sizeof word);
  world_receive(me, !me->rank, &word, sizeof word);
  CHECK_EQ(word, 7);
  world_barrier(me);
  for (int i = 0; me->rank == 1 && i < 90; i++) {
    char byte;
    CHECK(strangers[i] < 0 || recv(strangers[i], &byte, 1, 0) <= 0); /* nobody told them anything */
    close(strangers[i]);
  }
}

TEST(strangers_are_ignored) { world_run_unconnected(&processes, 2, 0, connect_among_strangers, NULL); }

/* As loaders of data do: a child of the killed rank lives on, with copies of its sockets. */
static void die_with_a_child(world_rank *me) {
  if (me->rank == 1) {
    if (fork() == 0) {
      sleep(30);
      _exit(0);
    }
    raise(SIGKILL);
  }
  pith_status status = PITH_OK;
  while (status == PITH_OK) {
    char byte;
    size_t got;
    status = me->world->ops->receive(me->transport, 1, &byte, 1, &got);
    if (status == PITH_OK) {
      world_wait(me, 2);
    }
  }
  CHECK_EQ(status, PITH_ERR_PEER);
}

TEST(a_killed_rank_is_noticed_though_its_child_lives) { world_run(&processes, 2, 1u << 1, die_with_a_child, NULL); }
