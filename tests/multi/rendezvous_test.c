/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous: ranks as threads on loopback, late, missing, doubled or in disagreement, and strangers that
 * connect meanwhile: silent ones, noisy ones, and those that speak the protocol to do harm.
 */
#include "transport/rendezvous.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "ranks.h"
#include "test.h"
#include "transport/rendezvous_wire.h"
#include "transport/sockets.h"

enum { FEW_RANKS = 9, SOME_RANKS = 64, RANKS_MOST = 256, RECORD_SIZE = PITH_RECORD_MOST };

/* ---- Ranks as threads -------------------------------------------------------------------------------------------- */

typedef struct participant {
  pith_rendezvous r;
  size_t size;
  double delay; /* before it comes */
  uint8_t mine[RECORD_SIZE];
  pith_records all;
  uint64_t job;
  pith_status status;
  char error[768];
  double seconds;
  pthread_t thread;
} participant;

static participant participants[RANKS_MOST + 1];

static uint16_t free_port(const char *host) {
  pith_sockaddr at;
  uint16_t port = (uint16_t)ranks_free_port();
  CHECK(pith__sockaddr_parse(host, port, &at));
  int fd = pith__socket_listen(&at);
  if (fd < 0) {
    LACKS("ipv6", "cannot listen on %s: %s", host, strerror(errno));
  }
  pith__fd_close(fd);
  return port;
}

/* The ranks of a job that agree; tests then change what they want to be different. */
static void prepare(int ranks, const char *host, size_t size, double timeout) {
  uint16_t port = free_port(host);
  for (int i = 0; i <= RANKS_MOST; i++) {
    participant *me = &participants[i];
    pith__records_free(&me->all);
    memset(me, 0, sizeof *me);
    me->r = (pith_rendezvous){.rank = i, .ranks = ranks, .host = host, .port = port, .timeout = timeout};
    me->size = size;
    for (size_t k = 0; k < size; k++) {
      me->mine[k] = (uint8_t)test_random();
    }
  }
}

static void *exchange(void *argument) {
  participant *me = argument;
  usleep((useconds_t)(me->delay * 1e6));
  double start = pith__now();
  pith__records_free(&me->all);
  me->status = pith__rendezvous_exchange(&me->r, me->mine, me->size, &me->all, &me->job);
  me->seconds = pith__now() - start;
  snprintf(me->error, sizeof me->error, "%s", me->status == PITH_OK ? "" : pith_error());
  return NULL;
}

static void start(participant *me) { CHECK_EQ(pthread_create(&me->thread, NULL, exchange, me), 0); }

static void await(participant *me) { pthread_join(me->thread, NULL); }

/* The first `count` ranks exchange their records. */
static void exchange_all(int count) {
  for (int i = 0; i < count; i++) {
    start(&participants[i]);
  }
  for (int i = 0; i < count; i++) {
    await(&participants[i]);
  }
}

static void check_all_know_all(int ranks) {
  for (int i = 0; i < ranks; i++) {
    const participant *me = &participants[i];
    CHECK_MSG(me->status == PITH_OK, "rank %d: %s", i, me->error);
    CHECK_EQ(me->job, participants[0].job);
    for (int p = 0; p < ranks; p++) {
      CHECK_EQ(me->all.at[p + 1] - me->all.at[p], participants[p].size);
      CHECK_BYTES(me->all.bytes + me->all.at[p], participants[p].mine, participants[p].size);
    }
  }
}

static void check_says(const participant *me, pith_status status, const char *words) {
  CHECK_MSG(me->status == status, "rank %d: %s (%s)", me->r.rank, pith_status_string(me->status), me->error);
  CHECK_MSG(strstr(me->error, words), "rank %d says \"%s\", not \"%s\"", me->r.rank, me->error, words);
}

static int open_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (folder && readdir(folder)) {
    count++;
  }
  closedir(folder);
  return count;
}

/* ---- Exchanging -------------------------------------------------------------------------------------------------- */

static void check_numbers_of_ranks(const char *host) {
  int before = open_descriptors();
  for (int ranks = 1; ranks <= FEW_RANKS; ranks++) {
    prepare(ranks, host, test_below(RECORD_SIZE + 1), 20);
    exchange_all(ranks);
    check_all_know_all(ranks);
  }
  CHECK_EQ(open_descriptors(), before);
}

TEST(one_to_nine_ranks_connect_on_ipv4) { check_numbers_of_ranks("127.0.0.1"); }

TEST(one_to_nine_ranks_connect_on_ipv6) { check_numbers_of_ranks("::1"); }

TEST(ranks_connect_at_a_name) {
  prepare(3, "127.0.0.1", 40, 20);
  for (int i = 0; i < 3; i++) {
    participants[i].r.host = "localhost";
  }
  exchange_all(3);
  check_all_know_all(3);
}

TEST(ranks_connect_with_nothing_to_bring) {
  prepare(4, "127.0.0.1", 0, 20);
  exchange_all(4);
  check_all_know_all(4);
}

TEST(ranks_connect_again_and_again_at_one_port) {
  prepare(4, "127.0.0.1", 100, 20);
  for (int round = 0; round < 20; round++) {
    uint64_t before = participants[0].job;
    exchange_all(4);
    check_all_know_all(4);
    CHECK(participants[0].job != before);
  }
}

TEST(one_rank_needs_no_socket) {
  prepare(1, "127.0.0.1", 10, 20);
  participants[0].r.host = NULL;
  participants[0].r.port = 0;
  exchange_all(1);
  check_all_know_all(1);
}

TEST(rank_0_may_come_late) {
  prepare(3, "127.0.0.1", 64, 20);
  participants[0].delay = 0.7;
  exchange_all(3);
  check_all_know_all(3);
}

TEST(others_may_come_late) {
  prepare(3, "127.0.0.1", 64, 20);
  participants[2].delay = 0.7;
  exchange_all(3);
  check_all_know_all(3);
}

TEST(a_secret_that_all_have_lets_all_in) {
  prepare(4, "127.0.0.1", 300, 20);
  for (int i = 0; i < 4; i++) {
    participants[i].r.secret = "open, sesame";
  }
  exchange_all(4);
  check_all_know_all(4);
}

/* ---- What goes wrong among ranks --------------------------------------------------------------------------------- */

TEST(all_hear_which_ranks_are_missing) {
  prepare(6, "127.0.0.1", 64, 1);
  int there[] = {0, 1, 3, 4};
  for (int i = 0; i < 4; i++) {
    start(&participants[there[i]]);
  }
  for (int i = 0; i < 4; i++) {
    await(&participants[there[i]]);
    check_says(&participants[there[i]], PITH_ERR_TIMEOUT, "ranks 2 and 5 did not come");
    CHECK(participants[there[i]].seconds < 3);
  }
}

TEST(a_missing_rank_0_is_an_error_in_time) {
  prepare(2, "127.0.0.1", 64, 0.5);
  start(&participants[1]);
  await(&participants[1]);
  check_says(&participants[1], PITH_ERR_TIMEOUT, "did not find rank 0 at 127.0.0.1");
  CHECK(participants[1].seconds < 1.5);
}

TEST(all_hear_of_two_that_claim_one_rank) {
  prepare(4, "127.0.0.1", 64, 20);
  participants[2].r.rank = 1;
  exchange_all(3);
  for (int i = 0; i < 3; i++) {
    check_says(&participants[i], PITH_ERR_MISMATCH, "two processes say they are rank 1");
    CHECK(participants[i].seconds < 5);
  }
}

TEST(all_hear_of_another_number_of_ranks) {
  prepare(4, "127.0.0.1", 64, 20);
  participants[3].r.ranks = 8;
  participants[1].delay = 0.3; /* comes after the disagreement, and hears of it */
  exchange_all(4);
  for (int i = 0; i < 4; i++) {
    check_says(&participants[i], PITH_ERR_MISMATCH, "rank 3 expects 8 ranks, rank 0 has 4");
  }
}

TEST(each_rank_may_bring_another_size) {
  prepare(5, "127.0.0.1", RECORD_SIZE, 20);
  size_t sizes[] = {1, 0, RECORD_SIZE, 17, 3};
  for (int i = 0; i < 5; i++) {
    participants[i].size = sizes[i];
  }
  exchange_all(5);
  check_all_know_all(5);
}

TEST(a_rank_that_died_at_the_door_may_come_again) {
  prepare(3, "127.0.0.1", 64, 20);
  start(&participants[0]);
  participants[3] = participants[1];
  participants[3].r.timeout = 0.2; /* gives up first */
  start(&participants[3]);
  await(&participants[3]);
  CHECK_EQ(participants[3].status, PITH_ERR_TIMEOUT);
  start(&participants[1]);
  start(&participants[2]);
  for (int i = 0; i < 3; i++) {
    await(&participants[i]);
  }
  check_all_know_all(3);
}

TEST(who_has_another_secret_is_turned_away_and_the_others_connect) {
  prepare(3, "127.0.0.1", 64, 20);
  for (int i = 0; i < 3; i++) {
    participants[i].r.secret = "right";
  }
  participants[3] = participants[1];
  participants[3].r.secret = "wrong";
  participants[4] = participants[1];
  participants[4].r.secret = NULL;
  participants[1].delay = 0.5;
  exchange_all(5);
  check_all_know_all(3);
  check_says(&participants[3], PITH_ERR_MISMATCH, "does not have the secret");
  CHECK_EQ(participants[4].status, PITH_ERR_MISMATCH);
  CHECK(participants[3].seconds < 2);
}

TEST(the_missing_rank_is_explained_by_who_was_turned_away) {
  prepare(2, "127.0.0.1", 64, 1);
  participants[0].r.secret = "right";
  participants[1].r.secret = "wrong";
  exchange_all(2);
  check_says(&participants[0], PITH_ERR_TIMEOUT, "rank 1 did not come");
  check_says(&participants[0], PITH_ERR_TIMEOUT, "PITH_SECRET");
}

TEST(a_port_in_use_is_named) {
  prepare(2, "127.0.0.1", 64, 1);
  pith_sockaddr at;
  CHECK(pith__sockaddr_parse("127.0.0.1", participants[0].r.port, &at));
  int fd = pith__socket_listen(&at);
  CHECK(fd >= 0);
  exchange_all(2);
  char wanted[40];
  snprintf(wanted, sizeof wanted, "cannot listen on port %u", participants[0].r.port);
  check_says(&participants[0], PITH_ERR_SYSTEM, wanted);
  check_says(&participants[0], PITH_ERR_SYSTEM, "another job");
  check_says(&participants[1], PITH_ERR_TIMEOUT, "did not find rank 0");
  pith__fd_close(fd);
}

TEST(senseless_arguments_are_refused) {
  prepare(2, "127.0.0.1", 8, 1);
  participant *me = &participants[0];
  me->r.rank = 2;
  CHECK_STATUS(pith__rendezvous_exchange(&me->r, me->mine, 8, &me->all, &me->job), PITH_ERR_ARGUMENT);
  me->r.rank = 0;
  CHECK_STATUS(pith__rendezvous_exchange(&me->r, me->mine, PITH_RECORD_MOST + 1, &me->all, &me->job),
               PITH_ERR_ARGUMENT);
  me->r.host = NULL;
  CHECK_STATUS(pith__rendezvous_exchange(&me->r, me->mine, 8, &me->all, &me->job), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("MASTER_ADDR");
}

/* ---- Strangers --------------------------------------------------------------------------------------------------- */

/* A connection to rank 0, made as soon as it listens; blocking, for simplicity. */
static int connect_to_rank_0(void) {
  pith_sockaddr to;
  CHECK(pith__sockaddr_parse(participants[0].r.host, participants[0].r.port, &to));
  for (int i = 0; i < 1000; i++) {
    int fd = socket(to.any.sa_family, SOCK_STREAM, 0);
    if (connect(fd, &to.any, pith__sockaddr_size(&to)) == 0) {
      return fd;
    }
    close(fd);
    usleep(2000);
  }
  return -1;
}

static void say(int fd, const void *data, size_t size) {
  if (send(fd, data, size, MSG_NOSIGNAL) < 0) {
    return; /* it was dropped already: that is its right */
  }
}

static rendezvous_hello hello_of(int rank) {
  rendezvous_hello hello = {.head = pith__rendezvous_head(rank), .ranks = (uint32_t)participants[0].r.ranks};
  hello.size = participants[0].size;
  return hello;
}

/* While strangers do `harm`, the ranks of a job exchange their records; rank 1 comes only after all the harm is done.
 */
static void check_job_starts_despite(void (*harm)(void), const char *secret) {
  int before = open_descriptors();
  prepare(3, "127.0.0.1", 64, 20);
  for (int i = 0; i < 3; i++) {
    participants[i].r.secret = secret;
  }
  start(&participants[0]);
  start(&participants[2]);
  harm();
  start(&participants[1]);
  for (int i = 0; i < 3; i++) {
    await(&participants[i]);
  }
  check_all_know_all(3);
  CHECK(participants[1].seconds < 4);
  for (int fd = before; fd < 1000; fd++) {
    close(fd); /* the strangers' */
  }
}

static void connect_and_stay_silent(void) {
  for (int i = 0; i < 300; i++) {
    CHECK(connect_to_rank_0() >= 0);
  }
}

static void throw_garbage(void) {
  uint8_t garbage[4096];
  for (int i = 0; i < 200; i++) {
    for (size_t k = 0; k < sizeof garbage; k++) {
      garbage[k] = (uint8_t)test_random();
    }
    int fd = connect_to_rank_0();
    CHECK(fd >= 0);
    say(fd, garbage, test_below(sizeof garbage) + 1);
    if (i % 2) {
      close(fd);
    }
  }
}

static void break_off_hellos(void) {
  rendezvous_hello hello = hello_of(1);
  for (size_t cut = 0; cut <= sizeof hello; cut++) {
    int fd = connect_to_rank_0();
    CHECK(fd >= 0);
    say(fd, &hello, cut);
    if (cut % 3) {
      close(fd);
    }
  }
}

static void bring_false_gifts(void) {
  uint8_t message[sizeof(rendezvous_hello) + 64] = {0};
  rendezvous_hello hello = hello_of(1);
  memset(hello.digest, 7, sizeof hello.digest);
  memcpy(message, &hello, sizeof hello);
  for (int i = 0; i < 20; i++) {
    int fd = connect_to_rank_0();
    CHECK(fd >= 0);
    say(fd, message, sizeof message);
  }
}

static void claim_what_is_not(void) {
  for (int i = 0; i < 40; i++) {
    rendezvous_hello hello = hello_of((int)test_below(5));
    hello.size = i % 4 == 0 ? UINT64_MAX : hello.size;
    hello.ranks = i % 4 == 1 ? UINT32_MAX : hello.ranks;
    hello.head.order = i % 4 == 2 ? 0x04030201 : hello.head.order;
    memset(hello.head.version, i % 4 == 3 ? 0xff : '0', sizeof hello.head.version);
    int fd = connect_to_rank_0();
    CHECK(fd >= 0);
    say(fd, &hello, sizeof hello);
  }
}

TEST(silent_connections_keep_nobody_waiting) { check_job_starts_despite(connect_and_stay_silent, NULL); }

TEST(garbage_does_no_harm) { check_job_starts_despite(throw_garbage, NULL); }

TEST(hellos_that_break_off_do_no_harm) { check_job_starts_despite(break_off_hellos, NULL); }

TEST(gifts_that_are_not_what_was_promised_do_no_harm) { check_job_starts_despite(bring_false_gifts, NULL); }

TEST(with_a_secret_no_claim_does_harm) { check_job_starts_despite(claim_what_is_not, "secret"); }

/* Rank 0 of two ranks hears this hello and says that. */
static void check_hello_says(const rendezvous_hello *hello, const char *words) {
  start(&participants[0]);
  int fd = connect_to_rank_0();
  CHECK(fd >= 0);
  say(fd, hello, sizeof *hello);
  await(&participants[0]);
  check_says(&participants[0], PITH_ERR_MISMATCH, words);
  close(fd);
}

TEST(oversize_claims_are_named) {
  prepare(2, "127.0.0.1", 64, 20);
  rendezvous_hello hello = hello_of(1);
  hello.size = UINT64_MAX;
  check_hello_says(&hello, "rank 1 brings 18446744073709551615 bytes, more than 4096");
}

TEST(another_version_is_named) {
  prepare(2, "127.0.0.1", 64, 20);
  rendezvous_hello hello = hello_of(1);
  snprintf(hello.head.version, sizeof hello.head.version, "9.9.9");
  check_hello_says(&hello, "rank 1 runs Pith 9.9.9, rank 0 runs ");
}

TEST(another_byte_order_is_named) {
  prepare(2, "127.0.0.1", 64, 20);
  rendezvous_hello hello = hello_of(1);
  hello.head.order = __builtin_bswap32(RENDEZVOUS_ORDER);
  hello.head.rank = __builtin_bswap32(1);
  check_hello_says(&hello, "rank 1 has another byte order");
}

/* ---- A false rank 0 ---------------------------------------------------------------------------------------------- */

typedef struct impostor {
  int listener;
  rendezvous_reply reply;
  uint8_t body[136]; /* a table of two ranks that brought 64 bytes each has as many */
  char heard[sizeof(rendezvous_hello) + 64];
} impostor;

/* Greets, keeps what is said, and replies as told. */
static void *pose_as_rank_0(void *argument) {
  impostor *p = argument;
  struct pollfd ready = {p->listener, POLLIN, 0};
  poll(&ready, 1, 5000);
  int fd = pith__socket_accept(p->listener);
  rendezvous_greeting greeting = {.head = pith__rendezvous_head(0)};
  say(fd, &greeting, sizeof greeting);
  for (size_t got = 0; got < sizeof p->heard;) {
    ready = (struct pollfd){fd, POLLIN, 0};
    poll(&ready, 1, 5000);
    ssize_t more = pith__socket_read(fd, p->heard + got, sizeof p->heard - got);
    if (more < 0) {
      break;
    }
    got += (size_t)more;
  }
  say(fd, &p->reply, sizeof p->reply);
  say(fd, p->body, sizeof p->body);
  pith__fd_close(p->listener); /* whoever comes again is refused */
  pith__fd_close(fd);
  return NULL;
}

static void join_impostor(impostor *p, const char *secret) {
  pthread_t thread;
  pith_sockaddr at;
  prepare(2, "127.0.0.1", 64, 0.3);
  participants[1].r.secret = secret;
  CHECK(pith__sockaddr_parse("127.0.0.1", participants[1].r.port, &at));
  p->listener = pith__socket_listen(&at);
  CHECK(p->listener >= 0);
  CHECK_EQ(pthread_create(&thread, NULL, pose_as_rank_0, p), 0);
  start(&participants[1]);
  await(&participants[1]);
  pthread_join(thread, NULL);
}

TEST(a_false_rank_0_is_found_out_and_never_sees_the_secret) {
  const char *secret = "a secret that must not travel";
  impostor p = {.reply = {.head = pith__rendezvous_head(0), .size = 128}};
  join_impostor(&p, secret);
  check_says(&participants[1], PITH_ERR_MISMATCH, "does not have the secret");
  CHECK(memmem(p.heard, sizeof p.heard, secret, strlen(secret)) == NULL);
  CHECK(memmem(p.heard, sizeof p.heard, participants[1].mine, 64) != NULL);
}

TEST(replies_of_absurd_size_are_refused) {
  uint64_t most[] = {pith__table_most(2), RENDEZVOUS_TEXT};
  for (size_t i = 0; i < 6; i++) {
    uint64_t sizes[] = {most[i / 3] + 1, UINT64_MAX, UINT64_MAX / 2};
    impostor p = {.reply = {.head = pith__rendezvous_head(0), .status = i / 3 ? PITH_ERR_PEER : PITH_OK}};
    p.reply.size = sizes[i % 3];
    join_impostor(&p, NULL);
    check_says(&participants[1], PITH_ERR_TIMEOUT, "did not find rank 0");
  }
}

/* A reply with this table; whether the client believes it. */
static pith_status try_table(uint32_t first, uint32_t second, size_t size) {
  impostor p = {.reply = {.head = pith__rendezvous_head(0), .size = size}};
  memcpy(p.body, &first, sizeof first);
  memcpy(p.body + sizeof first, &second, sizeof second);
  pith__rendezvous_digest(p.body, size, p.reply.digest);
  join_impostor(&p, NULL);
  return participants[1].status;
}

TEST(tables_that_do_not_add_up_are_refused) {
  CHECK_EQ(try_table(64, 64, 136), PITH_OK);
  CHECK_EQ(try_table(128, 0, 136), PITH_OK);
  CHECK_EQ(try_table(64, 63, 136), PITH_ERR_TIMEOUT);
  CHECK_EQ(try_table(64, 65, 136), PITH_ERR_TIMEOUT);
  CHECK_EQ(try_table(UINT32_MAX, 129, 136), PITH_ERR_TIMEOUT);
  CHECK_EQ(try_table(PITH_RECORD_MOST + 1, 0, 136), PITH_ERR_TIMEOUT);
  CHECK_EQ(try_table(0, 0, 8), PITH_OK);
  CHECK_EQ(try_table(0, 0, 7), PITH_ERR_TIMEOUT);
  CHECK_EQ(try_table(0, 0, 0), PITH_ERR_TIMEOUT);
}

TEST(a_damaged_table_is_refused) {
  impostor p = {.reply = {.head = pith__rendezvous_head(0), .size = 136}};
  memset(p.body, 64, 1);
  memset(p.body + 4, 64, 1);
  pith__rendezvous_digest(p.body, sizeof p.body, p.reply.digest);
  p.body[100] = 1;
  join_impostor(&p, NULL);
  CHECK_EQ(participants[1].status, PITH_ERR_TIMEOUT);
}

/* ---- Many, slow and stalled -------------------------------------------------------------------------------------- */

/* Says hello as this rank, with the record of its rank; a small window, so that it is up to us how fast bytes come.
 */
static int come_as(int rank) {
  rendezvous_greeting greeting;
  rendezvous_hello hello = hello_of(rank);
  int small = 32 << 10, fd = connect_to_rank_0();
  CHECK(fd >= 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  CHECK_EQ(recv(fd, &greeting, sizeof greeting, MSG_WAITALL), sizeof greeting);
  hello.size = participants[rank].size;
  pith__rendezvous_digest(participants[rank].mine, hello.size, hello.digest);
  say(fd, &hello, sizeof hello);
  say(fd, participants[rank].mine, hello.size);
  return fd;
}

TEST(many_ranks_connect) {
  prepare(RANKS_MOST, "127.0.0.1", 60, 60);
  for (int i = 0; i < RANKS_MOST; i++) {
    participants[i].r.secret = "for all of them";
  }
  exchange_all(RANKS_MOST);
  check_all_know_all(RANKS_MOST);
}

TEST(only_bytes_that_are_used_travel) {
  enum { RANKS = 9, RECORD = 60 };
  uint8_t rest[8];
  prepare(RANKS, "127.0.0.1", RECORD, 20);
  for (int i = 0; i < RANKS - 1; i++) {
    start(&participants[i]);
  }
  int fd = come_as(RANKS - 1);
  rendezvous_reply reply;
  CHECK_EQ(recv(fd, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
  CHECK_EQ(reply.size, RANKS * (sizeof(uint32_t) + RECORD));
  uint8_t table[RANKS * (sizeof(uint32_t) + RECORD)];
  CHECK_EQ(recv(fd, table, sizeof table, MSG_WAITALL), sizeof table);
  CHECK_EQ(recv(fd, rest, sizeof rest, 0), 0); /* and no byte more */
  close(fd);
  for (int i = 0; i < RANKS - 1; i++) {
    await(&participants[i]);
    CHECK_OK(participants[i].status);
  }
}

/* Ranks whose table is larger than what the system keeps of it: the last of them is we, and takes it as `take` does. */
static void serve_last_rank(double timeout, void (*take)(int fd)) {
  prepare(SOME_RANKS, "127.0.0.1", RECORD_SIZE, timeout);
  for (int i = 0; i < SOME_RANKS - 1; i++) {
    start(&participants[i]);
  }
  int fd = come_as(SOME_RANKS - 1);
  take(fd);
  for (int i = 0; i < SOME_RANKS - 1; i++) {
    await(&participants[i]);
  }
  close(fd);
}

/* A piece every now and then, for several times the time-out. */
static void take_slowly(int fd) {
  uint8_t piece[12 << 10];
  double start = pith__now();
  for (ssize_t got = 1; got > 0;) {
    got = recv(fd, piece, sizeof piece, 0);
    usleep(pith__now() - start < 2.5 ? 150000 : 0);
  }
  CHECK_MSG(pith__now() - start > 2, "the table came in %g s, too fast for this test", pith__now() - start);
}

static void take_nothing(int fd) { (void)fd; }

TEST(a_slow_guest_is_served_as_long_as_it_moves) {
  serve_last_rank(1.5, take_slowly);
  CHECK_MSG(participants[0].status == PITH_OK, "%s", participants[0].error);
}

TEST(a_guest_that_takes_nothing_is_named_and_the_others_are_served) {
  serve_last_rank(1.5, take_nothing);
  check_says(&participants[0], PITH_ERR_TIMEOUT, "rank 63 came, but took nothing");
  for (int i = 1; i < SOME_RANKS - 1; i++) {
    CHECK_MSG(participants[i].status == PITH_OK, "rank %d: %s", i, participants[i].error);
  }
  CHECK(participants[0].all.at && participants[0].job == participants[1].job); /* rank 0 can tell them */
}

/* Clients in a process of their own, which has descriptors enough. */
static pid_t start_clients(int first, int last) {
  pid_t child = fork();
  if (child == 0) {
    for (int i = first; i <= last; i++) {
      come_as(i);
    }
    sleep(10);
    _exit(0);
  }
  return child;
}

TEST(descriptors_that_rank_0_lacks_are_named) {
  enum { CLIENTS = 60 };
  struct rlimit before, tight;
  prepare(RANKS_MOST, "127.0.0.1", 60, 20);
  start(&participants[0]);
  int fd = come_as(1); /* rank 0 has raised the limit by now */
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  CHECK_MSG(before.rlim_cur >= RANKS_MOST, "rank 0 may open %ld files only", (long)before.rlim_cur);
  tight = before;
  tight.rlim_cur = (rlim_t)open_descriptors() + CLIENTS / 3;
  pid_t child = start_clients(2, CLIENTS);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  await(&participants[0]);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(fd);
  check_says(&participants[0], PITH_ERR_SYSTEM, strerror(EMFILE));
  check_says(&participants[0], PITH_ERR_SYSTEM, "ulimit -n");
  CHECK(participants[0].seconds < 10);
}

TEST(the_limit_of_open_files_is_raised_where_it_is_needed) {
  struct rlimit before, low;
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  low = before;
  low.rlim_cur = 100;
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  pith__descriptors_reserve(1000);
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &low), 0);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  CHECK(low.rlim_cur >= (before.rlim_max < 1000 ? before.rlim_max : 1000) && low.rlim_cur <= before.rlim_max);
}

TEST(who_does_not_greet_is_passed_by) {
  prepare(2, "127.0.0.1", 64, 0.6);
  pith_sockaddr at;
  CHECK(pith__sockaddr_parse("127.0.0.1", participants[1].r.port, &at));
  int fd = pith__socket_listen(&at);
  CHECK(fd >= 0);
  start(&participants[1]);
  await(&participants[1]);
  check_says(&participants[1], PITH_ERR_TIMEOUT, "not rank 0 of a Pith job");
  pith__fd_close(fd);
}

/* ---- Interruption ------------------------------------------------------------------------------------------------ */

static int is_enough(void *questions) { return --*(int *)questions < 0; }

/* This rank is on the main thread, which alone is asked. */
static void check_interruption(int rank) {
  int questions = 3;
  participants[rank].r.interrupt = (pith_interrupt){is_enough, &questions};
  exchange(&participants[rank]);
  check_says(&participants[rank], PITH_ERR_INTERRUPTED, "was interrupted");
  CHECK(questions < 0);
  CHECK(participants[rank].seconds < 10);
}

TEST(a_guest_that_waits_can_be_interrupted) {
  int before = open_descriptors();
  prepare(3, "127.0.0.1", 64, 60);
  check_interruption(1); /* without rank 0 */
  prepare(3, "127.0.0.1", 64, 2);
  start(&participants[0]);
  check_interruption(1); /* with it */
  await(&participants[0]);
  CHECK_EQ(open_descriptors(), before);
}

TEST(when_rank_0_is_interrupted_the_others_hear_of_it) {
  prepare(3, "127.0.0.1", 64, 60);
  start(&participants[1]);
  check_interruption(0);
  await(&participants[1]);
  check_says(&participants[1], PITH_ERR_PEER, "rank 0 was interrupted");
}
