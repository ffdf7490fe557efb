/*
 * The rendezvous: ranks as threads on loopback, late, missing, doubled or in disagreement, and strangers at the door
 * meanwhile: silent ones, noisy ones, and those who speak the protocol to do harm.
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

enum { FEW_RANKS = 9, SOME_RANKS = 64, RANKS_MOST = 256, GIFT_MOST = PITH_RECORD_MOST };

/* ---- Ranks as threads -------------------------------------------------------------------------------------------- */

typedef struct visitor {
  pith_rendezvous r;
  size_t size;
  double delay; /* before it comes */
  uint8_t mine[GIFT_MOST];
  pith_records all;
  uint64_t job;
  pith_status status;
  char error[768];
  double seconds;
  pthread_t thread;
} visitor;

static visitor visitors[RANKS_MOST + 1];

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

/* Visitors of a job that agree; tests then change what they want to be different. */
static void invite(int ranks, const char *host, size_t size, double timeout) {
  uint16_t port = free_port(host);
  for (int i = 0; i <= RANKS_MOST; i++) {
    visitor *v = &visitors[i];
    pith__records_free(&v->all);
    memset(v, 0, sizeof *v);
    v->r = (pith_rendezvous){.rank = i, .ranks = ranks, .host = host, .port = port, .timeout = timeout};
    v->size = size;
    for (size_t k = 0; k < size; k++) {
      v->mine[k] = (uint8_t)test_random();
    }
  }
}

static void *visit(void *argument) {
  visitor *v = argument;
  usleep((useconds_t)(v->delay * 1e6));
  double start = pith__now();
  pith__records_free(&v->all);
  v->status = pith__rendezvous_exchange(&v->r, v->mine, v->size, &v->all, &v->job);
  v->seconds = pith__now() - start;
  snprintf(v->error, sizeof v->error, "%s", v->status == PITH_OK ? "" : pith_error());
  return NULL;
}

static void send_off(visitor *v) { CHECK_EQ(pthread_create(&v->thread, NULL, visit, v), 0); }

static void await(visitor *v) { pthread_join(v->thread, NULL); }

/* The first `count` visitors meet. */
static void meet(int count) {
  for (int i = 0; i < count; i++) {
    send_off(&visitors[i]);
  }
  for (int i = 0; i < count; i++) {
    await(&visitors[i]);
  }
}

static void check_all_know_all(int ranks) {
  for (int i = 0; i < ranks; i++) {
    const visitor *v = &visitors[i];
    CHECK_MSG(v->status == PITH_OK, "rank %d: %s", i, v->error);
    CHECK_EQ(v->job, visitors[0].job);
    for (int p = 0; p < ranks; p++) {
      CHECK_EQ(v->all.at[p + 1] - v->all.at[p], visitors[p].size);
      CHECK_BYTES(v->all.bytes + v->all.at[p], visitors[p].mine, visitors[p].size);
    }
  }
}

static void check_says(const visitor *v, pith_status status, const char *words) {
  CHECK_MSG(v->status == status, "rank %d: %s (%s)", v->r.rank, pith_status_string(v->status), v->error);
  CHECK_MSG(strstr(v->error, words), "rank %d says \"%s\", not \"%s\"", v->r.rank, v->error, words);
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

/* ---- Meeting ----------------------------------------------------------------------------------------------------- */

static void check_numbers_of_ranks(const char *host) {
  int before = open_descriptors();
  for (int ranks = 1; ranks <= FEW_RANKS; ranks++) {
    invite(ranks, host, test_below(GIFT_MOST + 1), 20);
    meet(ranks);
    check_all_know_all(ranks);
  }
  CHECK_EQ(open_descriptors(), before);
}

TEST(one_to_nine_ranks_meet_on_ipv4) { check_numbers_of_ranks("127.0.0.1"); }

TEST(one_to_nine_ranks_meet_on_ipv6) { check_numbers_of_ranks("::1"); }

TEST(ranks_meet_at_a_name) {
  invite(3, "127.0.0.1", 40, 20);
  for (int i = 0; i < 3; i++) {
    visitors[i].r.host = "localhost";
  }
  meet(3);
  check_all_know_all(3);
}

TEST(ranks_meet_with_nothing_to_bring) {
  invite(4, "127.0.0.1", 0, 20);
  meet(4);
  check_all_know_all(4);
}

TEST(ranks_meet_again_and_again_at_one_port) {
  invite(4, "127.0.0.1", 100, 20);
  for (int round = 0; round < 20; round++) {
    uint64_t before = visitors[0].job;
    meet(4);
    check_all_know_all(4);
    CHECK(visitors[0].job != before);
  }
}

TEST(one_rank_needs_no_socket) {
  invite(1, "127.0.0.1", 10, 20);
  visitors[0].r.host = NULL;
  visitors[0].r.port = 0;
  meet(1);
  check_all_know_all(1);
}

TEST(rank_0_may_come_late) {
  invite(3, "127.0.0.1", 64, 20);
  visitors[0].delay = 0.7;
  meet(3);
  check_all_know_all(3);
}

TEST(others_may_come_late) {
  invite(3, "127.0.0.1", 64, 20);
  visitors[2].delay = 0.7;
  meet(3);
  check_all_know_all(3);
}

TEST(a_secret_that_all_have_lets_all_in) {
  invite(4, "127.0.0.1", 300, 20);
  for (int i = 0; i < 4; i++) {
    visitors[i].r.secret = "open, sesame";
  }
  meet(4);
  check_all_know_all(4);
}

/* ---- What goes wrong among ranks --------------------------------------------------------------------------------- */

TEST(all_hear_which_ranks_are_missing) {
  invite(6, "127.0.0.1", 64, 1);
  int there[] = {0, 1, 3, 4};
  for (int i = 0; i < 4; i++) {
    send_off(&visitors[there[i]]);
  }
  for (int i = 0; i < 4; i++) {
    await(&visitors[there[i]]);
    check_says(&visitors[there[i]], PITH_ERR_TIMEOUT, "ranks 2 and 5 did not come");
    CHECK(visitors[there[i]].seconds < 3);
  }
}

TEST(a_missing_rank_0_is_an_error_in_time) {
  invite(2, "127.0.0.1", 64, 0.5);
  send_off(&visitors[1]);
  await(&visitors[1]);
  check_says(&visitors[1], PITH_ERR_TIMEOUT, "did not find rank 0 at 127.0.0.1");
  CHECK(visitors[1].seconds < 1.5);
}

TEST(all_hear_of_two_that_claim_one_rank) {
  invite(4, "127.0.0.1", 64, 20);
  visitors[2].r.rank = 1;
  meet(3);
  for (int i = 0; i < 3; i++) {
    check_says(&visitors[i], PITH_ERR_MISMATCH, "two processes say they are rank 1");
    CHECK(visitors[i].seconds < 5);
  }
}

TEST(all_hear_of_another_number_of_ranks) {
  invite(4, "127.0.0.1", 64, 20);
  visitors[3].r.ranks = 8;
  visitors[1].delay = 0.3; /* comes after the disagreement, and hears of it */
  meet(4);
  for (int i = 0; i < 4; i++) {
    check_says(&visitors[i], PITH_ERR_MISMATCH, "rank 3 expects 8 ranks, rank 0 has 4");
  }
}

TEST(each_rank_may_bring_another_size) {
  invite(5, "127.0.0.1", GIFT_MOST, 20);
  size_t sizes[] = {1, 0, GIFT_MOST, 17, 3};
  for (int i = 0; i < 5; i++) {
    visitors[i].size = sizes[i];
  }
  meet(5);
  check_all_know_all(5);
}

TEST(a_rank_that_died_at_the_door_may_come_again) {
  invite(3, "127.0.0.1", 64, 20);
  send_off(&visitors[0]);
  visitors[3] = visitors[1];
  visitors[3].r.timeout = 0.2; /* gives up first */
  send_off(&visitors[3]);
  await(&visitors[3]);
  CHECK_EQ(visitors[3].status, PITH_ERR_TIMEOUT);
  send_off(&visitors[1]);
  send_off(&visitors[2]);
  for (int i = 0; i < 3; i++) {
    await(&visitors[i]);
  }
  check_all_know_all(3);
}

TEST(who_has_another_secret_is_turned_away_and_the_others_meet) {
  invite(3, "127.0.0.1", 64, 20);
  for (int i = 0; i < 3; i++) {
    visitors[i].r.secret = "right";
  }
  visitors[3] = visitors[1];
  visitors[3].r.secret = "wrong";
  visitors[4] = visitors[1];
  visitors[4].r.secret = NULL;
  visitors[1].delay = 0.5;
  meet(5);
  check_all_know_all(3);
  check_says(&visitors[3], PITH_ERR_MISMATCH, "does not have the secret");
  CHECK_EQ(visitors[4].status, PITH_ERR_MISMATCH);
  CHECK(visitors[3].seconds < 2);
}

TEST(the_missing_rank_is_explained_by_who_was_turned_away) {
  invite(2, "127.0.0.1", 64, 1);
  visitors[0].r.secret = "right";
  visitors[1].r.secret = "wrong";
  meet(2);
  check_says(&visitors[0], PITH_ERR_TIMEOUT, "rank 1 did not come");
  check_says(&visitors[0], PITH_ERR_TIMEOUT, "PITH_SECRET");
}

TEST(a_port_in_use_is_named) {
  invite(2, "127.0.0.1", 64, 1);
  pith_sockaddr at;
  CHECK(pith__sockaddr_parse("127.0.0.1", visitors[0].r.port, &at));
  int fd = pith__socket_listen(&at);
  CHECK(fd >= 0);
  meet(2);
  char wanted[40];
  snprintf(wanted, sizeof wanted, "cannot listen on port %u", visitors[0].r.port);
  check_says(&visitors[0], PITH_ERR_SYSTEM, wanted);
  check_says(&visitors[0], PITH_ERR_SYSTEM, "another job");
  check_says(&visitors[1], PITH_ERR_TIMEOUT, "did not find rank 0");
  pith__fd_close(fd);
}

TEST(senseless_arguments_are_refused) {
  invite(2, "127.0.0.1", 8, 1);
  visitor *v = &visitors[0];
  v->r.rank = 2;
  CHECK_STATUS(pith__rendezvous_exchange(&v->r, v->mine, 8, &v->all, &v->job), PITH_ERR_ARGUMENT);
  v->r.rank = 0;
  CHECK_STATUS(pith__rendezvous_exchange(&v->r, v->mine, PITH_RECORD_MOST + 1, &v->all, &v->job), PITH_ERR_ARGUMENT);
  v->r.host = NULL;
  CHECK_STATUS(pith__rendezvous_exchange(&v->r, v->mine, 8, &v->all, &v->job), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("MASTER_ADDR");
}

/* ---- Strangers --------------------------------------------------------------------------------------------------- */

/* A connection to rank 0, made as soon as it listens; blocking, for simplicity. */
static int knock(void) {
  pith_sockaddr to;
  CHECK(pith__sockaddr_parse(visitors[0].r.host, visitors[0].r.port, &to));
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
  rendezvous_hello hello = {.head = pith__rendezvous_head(rank), .ranks = (uint32_t)visitors[0].r.ranks};
  hello.size = visitors[0].size;
  return hello;
}

/* While strangers do `harm`, the ranks of a job meet; rank 1 comes only after all the harm is done. */
static void check_job_meets_despite(void (*harm)(void), const char *secret) {
  int before = open_descriptors();
  invite(3, "127.0.0.1", 64, 20);
  for (int i = 0; i < 3; i++) {
    visitors[i].r.secret = secret;
  }
  send_off(&visitors[0]);
  send_off(&visitors[2]);
  harm();
  send_off(&visitors[1]);
  for (int i = 0; i < 3; i++) {
    await(&visitors[i]);
  }
  check_all_know_all(3);
  CHECK(visitors[1].seconds < 4);
  for (int fd = before; fd < 1000; fd++) {
    close(fd); /* the strangers' */
  }
}

static void knock_and_stay_silent(void) {
  for (int i = 0; i < 300; i++) {
    CHECK(knock() >= 0);
  }
}

static void throw_garbage(void) {
  uint8_t garbage[4096];
  for (int i = 0; i < 200; i++) {
    for (size_t k = 0; k < sizeof garbage; k++) {
      garbage[k] = (uint8_t)test_random();
    }
    int fd = knock();
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
    int fd = knock();
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
    int fd = knock();
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
    int fd = knock();
    CHECK(fd >= 0);
    say(fd, &hello, sizeof hello);
  }
}

TEST(silent_connections_keep_nobody_waiting) { check_job_meets_despite(knock_and_stay_silent, NULL); }

TEST(garbage_does_no_harm) { check_job_meets_despite(throw_garbage, NULL); }

TEST(hellos_that_break_off_do_no_harm) { check_job_meets_despite(break_off_hellos, NULL); }

TEST(gifts_that_are_not_what_was_promised_do_no_harm) { check_job_meets_despite(bring_false_gifts, NULL); }

TEST(with_a_secret_no_claim_does_harm) { check_job_meets_despite(claim_what_is_not, "secret"); }

/* Rank 0 of two ranks hears this hello and says that. */
static void check_hello_says(const rendezvous_hello *hello, const char *words) {
  send_off(&visitors[0]);
  int fd = knock();
  CHECK(fd >= 0);
  say(fd, hello, sizeof *hello);
  await(&visitors[0]);
  check_says(&visitors[0], PITH_ERR_MISMATCH, words);
  close(fd);
}

TEST(oversize_claims_are_named) {
  invite(2, "127.0.0.1", 64, 20);
  rendezvous_hello hello = hello_of(1);
  hello.size = UINT64_MAX;
  check_hello_says(&hello, "rank 1 brings 18446744073709551615 bytes, more than 4096");
}

TEST(another_version_is_named) {
  invite(2, "127.0.0.1", 64, 20);
  rendezvous_hello hello = hello_of(1);
  snprintf(hello.head.version, sizeof hello.head.version, "9.9.9");
  check_hello_says(&hello, "rank 1 runs Pith 9.9.9, rank 0 runs ");
}

TEST(another_byte_order_is_named) {
  invite(2, "127.0.0.1", 64, 20);
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

static void visit_impostor(impostor *p, const char *secret) {
  pthread_t thread;
  pith_sockaddr at;
  invite(2, "127.0.0.1", 64, 0.3);
  visitors[1].r.secret = secret;
  CHECK(pith__sockaddr_parse("127.0.0.1", visitors[1].r.port, &at));
  p->listener = pith__socket_listen(&at);
  CHECK(p->listener >= 0);
  CHECK_EQ(pthread_create(&thread, NULL, pose_as_rank_0, p), 0);
  send_off(&visitors[1]);
  await(&visitors[1]);
  pthread_join(thread, NULL);
}

TEST(a_false_rank_0_is_found_out_and_never_sees_the_secret) {
  const char *secret = "a secret that must not travel";
  impostor p = {.reply = {.head = pith__rendezvous_head(0), .size = 128}};
  visit_impostor(&p, secret);
  check_says(&visitors[1], PITH_ERR_MISMATCH, "does not have the secret");
  CHECK(memmem(p.heard, sizeof p.heard, secret, strlen(secret)) == NULL);
  CHECK(memmem(p.heard, sizeof p.heard, visitors[1].mine, 64) != NULL);
}

TEST(replies_of_absurd_size_are_refused) {
  uint64_t most[] = {pith__table_most(2), RENDEZVOUS_TEXT};
  for (size_t i = 0; i < 6; i++) {
    uint64_t sizes[] = {most[i / 3] + 1, UINT64_MAX, UINT64_MAX / 2};
    impostor p = {.reply = {.head = pith__rendezvous_head(0), .status = i / 3 ? PITH_ERR_PEER : PITH_OK}};
    p.reply.size = sizes[i % 3];
    visit_impostor(&p, NULL);
    check_says(&visitors[1], PITH_ERR_TIMEOUT, "did not find rank 0");
  }
}

/* A reply with this table; whether the guest believes it. */
static pith_status try_table(uint32_t first, uint32_t second, size_t size) {
  impostor p = {.reply = {.head = pith__rendezvous_head(0), .size = size}};
  memcpy(p.body, &first, sizeof first);
  memcpy(p.body + sizeof first, &second, sizeof second);
  pith__rendezvous_digest(p.body, size, p.reply.digest);
  visit_impostor(&p, NULL);
  return visitors[1].status;
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
  visit_impostor(&p, NULL);
  CHECK_EQ(visitors[1].status, PITH_ERR_TIMEOUT);
}

/* ---- Many, slow and stalled -------------------------------------------------------------------------------------- */

/* Says hello as this rank, with the bytes of its visitor; a small window, so that it is up to us how fast bytes come.
 */
static int come_as(int rank) {
  rendezvous_greeting greeting;
  rendezvous_hello hello = hello_of(rank);
  int small = 32 << 10, fd = knock();
  CHECK(fd >= 0);
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  CHECK_EQ(recv(fd, &greeting, sizeof greeting, MSG_WAITALL), sizeof greeting);
  hello.size = visitors[rank].size;
  pith__rendezvous_digest(visitors[rank].mine, hello.size, hello.digest);
  say(fd, &hello, sizeof hello);
  say(fd, visitors[rank].mine, hello.size);
  return fd;
}

TEST(many_ranks_meet) {
  invite(RANKS_MOST, "127.0.0.1", 60, 60);
  for (int i = 0; i < RANKS_MOST; i++) {
    visitors[i].r.secret = "for all of them";
  }
  meet(RANKS_MOST);
  check_all_know_all(RANKS_MOST);
}

TEST(only_bytes_that_are_used_travel) {
  enum { RANKS = 9, RECORD = 60 };
  uint8_t rest[8];
  invite(RANKS, "127.0.0.1", RECORD, 20);
  for (int i = 0; i < RANKS - 1; i++) {
    send_off(&visitors[i]);
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
    await(&visitors[i]);
    CHECK_OK(visitors[i].status);
  }
}

/* Ranks whose table is larger than what the system keeps of it: the last of them is we, and takes it as `take` does. */
static void serve_last_rank(double timeout, void (*take)(int fd)) {
  invite(SOME_RANKS, "127.0.0.1", GIFT_MOST, timeout);
  for (int i = 0; i < SOME_RANKS - 1; i++) {
    send_off(&visitors[i]);
  }
  int fd = come_as(SOME_RANKS - 1);
  take(fd);
  for (int i = 0; i < SOME_RANKS - 1; i++) {
    await(&visitors[i]);
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
  CHECK_MSG(visitors[0].status == PITH_OK, "%s", visitors[0].error);
}

TEST(a_guest_that_takes_nothing_is_named_and_the_others_are_served) {
  serve_last_rank(1.5, take_nothing);
  check_says(&visitors[0], PITH_ERR_TIMEOUT, "rank 63 came, but took nothing");
  for (int i = 1; i < SOME_RANKS - 1; i++) {
    CHECK_MSG(visitors[i].status == PITH_OK, "rank %d: %s", i, visitors[i].error);
  }
}

/* Guests in a process of their own, which has descriptors enough. */
static pid_t send_guests(int first, int last) {
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
  enum { GUESTS = 60 };
  struct rlimit before, tight;
  invite(RANKS_MOST, "127.0.0.1", 60, 20);
  send_off(&visitors[0]);
  int fd = come_as(1); /* rank 0 has raised the limit by now */
  CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  CHECK_MSG(before.rlim_cur >= RANKS_MOST, "rank 0 may open %ld files only", (long)before.rlim_cur);
  tight = before;
  tight.rlim_cur = (rlim_t)open_descriptors() + GUESTS / 3;
  pid_t child = send_guests(2, GUESTS);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  await(&visitors[0]);
  CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(fd);
  check_says(&visitors[0], PITH_ERR_SYSTEM, strerror(EMFILE));
  check_says(&visitors[0], PITH_ERR_SYSTEM, "ulimit -n");
  CHECK(visitors[0].seconds < 10);
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
  invite(2, "127.0.0.1", 64, 0.6);
  pith_sockaddr at;
  CHECK(pith__sockaddr_parse("127.0.0.1", visitors[1].r.port, &at));
  int fd = pith__socket_listen(&at);
  CHECK(fd >= 0);
  send_off(&visitors[1]);
  await(&visitors[1]);
  check_says(&visitors[1], PITH_ERR_TIMEOUT, "not rank 0 of a Pith job");
  pith__fd_close(fd);
}

/* ---- Interruption ------------------------------------------------------------------------------------------------ */

static int is_enough(void *questions) { return --*(int *)questions < 0; }

/* This rank is on the main thread, which alone is asked. */
static void check_interruption(int rank) {
  int questions = 3;
  visitors[rank].r.interrupt = (pith_interrupt){is_enough, &questions};
  visit(&visitors[rank]);
  check_says(&visitors[rank], PITH_ERR_INTERRUPTED, "was interrupted");
  CHECK(questions < 0);
  CHECK(visitors[rank].seconds < 10);
}

TEST(a_guest_that_waits_can_be_interrupted) {
  int before = open_descriptors();
  invite(3, "127.0.0.1", 64, 60);
  check_interruption(1); /* without rank 0 */
  invite(3, "127.0.0.1", 64, 2);
  send_off(&visitors[0]);
  check_interruption(1); /* with it */
  await(&visitors[0]);
  CHECK_EQ(open_descriptors(), before);
}

TEST(when_rank_0_is_interrupted_the_others_hear_of_it) {
  invite(3, "127.0.0.1", 64, 60);
  send_off(&visitors[1]);
  check_interruption(0);
  await(&visitors[1]);
  check_says(&visitors[1], PITH_ERR_PEER, "rank 0 was interrupted");
}
