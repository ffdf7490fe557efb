/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers who have recorded a job of the same secret, byte by byte, and say it again in another job, whole, in pieces
 * and in other orders; and strangers who only hold connections. None of them joins, none is told anything but that it
 * does not belong there, and none keeps the ranks from connecting.
 */
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "base/clock.h"
#include "stranger.h"

enum { BODY_MOST = 8192, HELD = 200 };

/* ---- The rendezvous ---------------------------------------------------------------------------------------------- */

/* All that was said between rank 0 and rank 1. */
typedef struct recording {
  rendezvous_greeting greeting;
  rendezvous_hello hello;
  uint8_t record[BODY_MOST]; /* hello.size bytes */
  rendezvous_reply reply;
  uint8_t table[BODY_MOST]; /* reply.size bytes */
} recording;

typedef struct piece {
  const void *data;
  size_t size;
} piece;

static void hear_hello(int client, recording *r) {
  read_whole(client, &r->hello, sizeof r->hello);
  CHECK(r->hello.size <= sizeof r->record);
  read_whole(client, r->record, r->hello.size);
}

static void pass_hello(int server, const recording *r) {
  write_whole(server, &r->hello, sizeof r->hello);
  write_whole(server, r->record, r->hello.size);
}

/* What rank 0 says to a hello. */
static void hear_reply(int server, recording *r) {
  read_whole(server, &r->reply, sizeof r->reply);
  CHECK(r->reply.size <= sizeof r->table);
  read_whole(server, r->table, r->reply.size);
}

static void pass_reply(int client, const recording *r) {
  write_whole(client, &r->reply, sizeof r->reply);
  write_whole(client, r->table, r->reply.size);
}

/* Runs a job whose rank 1 comes to the rendezvous through us. `replays`: its hello is also said to rank 0 on another
 * connection, before it is passed on. */
static void record(recording *r, int replays) {
  int port = ranks_free_port(), through = ranks_free_port(), listener = listen_at(through);
  pid_t child[2] = {start_rank("tcp", 0, port), start_rank("tcp", 1, through)};
  int client = accept(listener, NULL, NULL), server = connect_to(port);
  read_whole(server, &r->greeting, sizeof r->greeting);
  write_whole(client, &r->greeting, sizeof r->greeting);
  hear_hello(client, r);
  if (replays) {
    recording other = *r;
    int second = connect_to(port);
    read_whole(second, &other.greeting, sizeof other.greeting);
    pass_hello(second, r);
    hear_reply(second, &other);
    CHECK_MSG(other.reply.status != PITH_OK, "a replayed hello got the table of all ranks");
    close(second);
  }
  pass_hello(server, r);
  hear_reply(server, r);
  CHECK_EQ(r->reply.status, PITH_OK);
  pass_reply(client, r);
  close(client);
  close(server);
  close(listener);
  ranks_wait(child, 2, -1);
}

TEST(a_hello_said_twice_counts_once) {
  recording r;
  record(&r, 1);
}

/* Says some pieces to rank 0, cut where `step` says. What it answers, if anything, must be a refusal. */
static void say(int port, const piece *pieces, size_t count, size_t step) {
  struct {
    rendezvous_greeting greeting;
    rendezvous_reply reply;
    uint8_t rest[BODY_MOST];
  } heard;
  int fd = connect_to(port);
  for (size_t i = 0; i < count; i++) {
    for (size_t at = 0; at < pieces[i].size; at += step) {
      size_t rest = pieces[i].size - at;
      throw(fd, (const uint8_t *)pieces[i].data + at, rest < step ? rest : step);
    }
  }
  shutdown(fd, SHUT_WR); /* more does not come: rank 0 need not wait for it */
  size_t got = hear(fd, &heard, sizeof heard);
  CHECK(got <= sizeof heard.greeting + sizeof heard.reply + RENDEZVOUS_TEXT);
  if (got >= sizeof heard.greeting + sizeof heard.reply) {
    CHECK(heard.reply.status != PITH_OK);
    CHECK(heard.reply.size <= RENDEZVOUS_TEXT);
  }
  close(fd);
}

static void replay_all(const recording *r, int port) {
  const piece all[] = {{&r->greeting, sizeof r->greeting},
                       {&r->hello, sizeof r->hello},
                       {r->record, r->hello.size},
                       {&r->reply, sizeof r->reply},
                       {r->table, r->reply.size}};
  enum { PIECES = sizeof all / sizeof *all };
  say(port, all + 1, 2, SIZE_MAX / 2); /* as it was said */
  say(port, all + 1, 2, 1);
  say(port, all + 3, 2, SIZE_MAX / 2); /* as the other side said it */
  for (int i = 0; i < 30; i++) {
    piece some[2 * PIECES];
    size_t count = 1 + test_below(2 * PIECES);
    for (size_t p = 0; p < count; p++) {
      some[p] = all[test_below(PIECES)];
    }
    say(port, some, count, 1 + test_below(200));
  }
}

/* As another user, where we can become one. */
static void replay_as_nobody(const recording *r, int port) {
  int status;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    CHECK(geteuid() != 0 || (setgid(NOBODY) == 0 && setuid(NOBODY) == 0));
    replay_all(r, port);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a replay was answered");
}

TEST(a_recorded_rendezvous_opens_no_other_job_of_the_same_secret) {
  recording r;
  record(&r, 0);
  int port = ranks_free_port();
  pid_t child[2] = {start_rank("tcp", 0, port)};
  replay_as_nobody(&r, port);
  child[1] = start_rank("tcp", 1, port);
  ranks_wait(child, 2, -1);
}

/* Who stands at rank 0's address and says what rank 0 said once is not believed. */
TEST(a_recorded_rank_0_is_not_believed) {
  recording r, other;
  record(&r, 0);
  int port = ranks_free_port(), listener = listen_at(port), status;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    pith_config config = PITH_CONFIG_INIT;
    pith_comm *comm;
    config.rank = 1, config.ranks = 2, config.port = port, config.host = "127.0.0.1";
    config.transport = "tcp", config.timeout = 5, config.secret = SECRET;
    CHECK_STATUS(pith_comm_create(&config, &comm), PITH_ERR_MISMATCH);
    CHECK_ERROR_SAYS("does not have the secret");
    _exit(0);
  }
  int client = accept(listener, NULL, NULL);
  write_whole(client, &r.greeting, sizeof r.greeting);
  hear_hello(client, &other);
  pass_reply(client, &r);
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  close(client);
  close(listener);
}

/* ---- Links over tcp ---------------------------------------------------------------------------------------------- */

enum { STREAM_MOST = 65536, STREAMS_MOST = 16 };

/* One direction of a connection. */
typedef struct stream {
  uint16_t from, to; /* ports */
  size_t size;
  uint8_t bytes[STREAM_MOST];
} stream;

static stream streams[STREAMS_MOST];
static stream *said_by_caller, *said_by_listener;

static int open_wire(void) {
  int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP)), large = 8 << 20;
  if (fd < 0) {
    LACKS("root", "only root can record packets: %s", strerror(errno));
  }
  setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof large);
  return fd;
}

static stream *stream_of(uint16_t from, uint16_t to) {
  for (stream *s = streams; s < streams + STREAMS_MOST; s++) {
    if (s->to == 0 || (s->from == from && s->to == to)) {
      s->from = from, s->to = to;
      return s;
    }
  }
  return NULL;
}

/* Loopback delivers in order and loses nothing; each packet is seen as it leaves and as it arrives. */
static void take_packet(const uint8_t *packet, size_t size) {
  struct iphdr ip;
  struct tcphdr tcp;
  memcpy(&ip, packet, sizeof ip);
  size_t head = (size_t)ip.ihl * 4;
  if (ip.protocol != IPPROTO_TCP || size < head + sizeof tcp) {
    return;
  }
  memcpy(&tcp, packet + head, sizeof tcp);
  head += (size_t)tcp.doff * 4;
  size_t whole = ntohs(ip.tot_len);
  stream *s = whole > head && whole <= size ? stream_of(tcp.source, tcp.dest) : NULL;
  if (s && s->size + whole - head <= STREAM_MOST) {
    memcpy(s->bytes + s->size, packet + head, whole - head);
    s->size += whole - head;
  }
}

static void read_wire(int wire) {
  static uint8_t packet[1 << 17];
  struct sockaddr_ll from;
  socklen_t length = sizeof from;
  for (ssize_t got; (got = recvfrom(wire, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &length)) > 0;
       length = sizeof from) {
    if (from.sll_pkttype != PACKET_OUTGOING) {
      take_packet(packet, (size_t)got);
    }
  }
}

/* A network namespace of this test's own, so that nobody else's packets are recorded. */
static void leave_network(void) {
  if (unshare(CLONE_NEWNET) != 0) {
    LACKS("root", "only root can have a network of its own: %s", strerror(errno));
  }
  struct ifreq loopback = {.ifr_name = "lo"};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0 && ioctl(fd, SIOCGIFFLAGS, &loopback) == 0);
  loopback.ifr_flags = (short)(loopback.ifr_flags | IFF_UP);
  CHECK(ioctl(fd, SIOCSIFFLAGS, &loopback) == 0);
  close(fd);
}

/* Both directions of the link of a job, from the first hello on. */
static void record_link(void) {
  leave_network();
  int wire = open_wire(), port = ranks_free_port();
  pid_t child[2] = {start_rank("tcp", 0, port), start_rank("tcp", 1, port)};
  ranks_wait(child, 2, -1);
  read_wire(wire);
  close(wire);
  for (stream *s = streams; s < streams + STREAMS_MOST && s->to; s++) {
    tcp_hello hello;
    memcpy(&hello, s->bytes, sizeof hello);
    if (s->size > sizeof(tcp_answer) && memcmp(hello.magic, TCP_HELLO_MAGIC, sizeof hello.magic) == 0) {
      *(hello.rank == 1 ? &said_by_caller : &said_by_listener) = s;
    }
  }
  CHECK_MSG(said_by_caller && said_by_listener, "the link was not recorded");
}

/* Whether rank 0 keeps the connection, having had all bytes it can wait for. */
static int is_kept(int fd) {
  uint8_t zeros[1024] = {0};
  throw(fd, zeros, sizeof zeros);
  uint8_t heard[sizeof(tcp_answer)];
  hear(fd, heard, sizeof heard);
  return stays_open(fd);
}

/* The recorded bytes as they are; with the token of the job that is attacked; the proof alone, before the hello, and
 * after a hello of today; the listener's side; all in other pieces. */
static int replay_link(const knowledge *k) {
  int joined = 0;
  for (int variant = 0; variant < 6; variant++) {
    uint64_t token;
    int fd = dial_tcp(k, &token);
    static uint8_t bytes[STREAM_MOST];
    const stream *s = variant == 4 ? said_by_listener : said_by_caller;
    size_t size = s->size;
    tcp_hello hello;
    memcpy(bytes, s->bytes, size);
    memcpy(&hello, bytes, sizeof hello);
    if (variant > 0) {
      hello.token = token;
      memcpy(bytes, &hello, sizeof hello);
    }
    if (variant == 2) {
      memmove(bytes, bytes + sizeof hello, size - sizeof hello);
      memcpy(bytes + size - sizeof hello, &hello, sizeof hello);
    }
    if (variant == 3) {
      memset(hello.nonce, 9, sizeof hello.nonce);
      memcpy(bytes, &hello, sizeof hello);
    }
    size_t step = variant == 5 ? 1 : size;
    for (size_t at = 0; at < size && at < 400; at += step) {
      throw(fd, bytes + at, step);
    }
    joined |= is_kept(fd);
    close(fd);
  }
  return joined;
}

TEST(a_recorded_link_opens_no_other_job_of_the_same_secret) {
  record_link();
  check_attack("tcp", replay_link, NOBODY);
}

/* ---- Connections that are only held ------------------------------------------------------------------------------ */

typedef int (*open_fn)(const knowledge *k, int number); /* opens a connection, and says something or nothing */

/* A process of its own opens connections, and goes on holding them. `floods`: then it goes on opening new ones. */
static void occupy(const knowledge *k, open_fn open_one, int floods) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child > 0) {
    usleep(300000);
    return;
  }
  int held[HELD], count = 0;
  for (double end = pith__now() + 2; pith__now() < end;) {
    if (count >= HELD && !floods) {
      usleep(10000);
      continue;
    }
    if (count >= HELD) {
      close(held[count % HELD]);
    }
    int fd = open_one(k, count);
    if (fd < 0) { /* rank 0 has its links and listens no more */
      usleep(1000);
    } else {
      held[count++ % HELD] = fd;
    }
  }
  _exit(0);
}

static int port_of_rank_0; /* of its rendezvous */

static int open_rendezvous(const knowledge *k, int number) {
  (void)k;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  rendezvous_hello hello = {.head = pith__rendezvous_head(1), .ranks = 2};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  to.sin_port = htons((uint16_t)port_of_rank_0);
  if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
    close(fd);
    return -1;
  }
  throw(fd, &hello, number % 2 ? 0 : sizeof hello / 2);
  return fd;
}

static void check_rendezvous_under(int floods) {
  int status;
  port_of_rank_0 = ranks_free_port();
  pid_t child[2] = {start_rank("tcp", 0, port_of_rank_0)}, holder = fork();
  CHECK(holder >= 0);
  if (holder == 0) {
    CHECK(geteuid() != 0 || (setgid(NOBODY) == 0 && setuid(NOBODY) == 0));
    close(connect_to(port_of_rank_0));
    occupy(NULL, open_rendezvous, floods);
    _exit(0);
  }
  CHECK(waitpid(holder, &status, 0) == holder && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  child[1] = start_rank("tcp", 1, port_of_rank_0);
  ranks_wait(child, 2, -1);
}

TEST(connections_that_are_held_do_not_keep_ranks_from_the_rendezvous) { check_rendezvous_under(0); }
TEST(a_flood_of_connections_does_not_keep_ranks_from_the_rendezvous) { check_rendezvous_under(1); }

/* Some say nothing, some half a hello, some a whole one and no proof. */
static int open_tcp(const knowledge *k, int number) {
  tcp_place place;
  CHECK_OK(pith__tcp_address_decode(&k->network, 0, &place));
  tcp_hello hello = {.version = TCP_HELLO_VERSION, .order = TCP_HELLO_ORDER, .ranks = 2, .rank = 1};
  memcpy(hello.magic, TCP_HELLO_MAGIC, sizeof hello.magic);
  hello.token = place.token;
  int fd = socket(place.at[0].any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, &place.at[0].any, pith__sockaddr_size(&place.at[0])) != 0) {
    close(fd);
    return -1;
  }
  throw(fd, &hello, (size_t)(number % 3) * sizeof hello / 2);
  return fd;
}

static int open_shm(const knowledge *k, int number) {
  struct sockaddr_un where = {.sun_family = AF_UNIX};
  pith_shm_hello hello = {.magic = PITH_SHM_HELLO_MAGIC, .from = 1, .to = 0, .ranks = 2};
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + k->local.size);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  memcpy(where.sun_path + 1, k->local.data, k->local.size);
  if (connect(fd, (struct sockaddr *)&where, size) != 0) {
    close(fd);
    return -1;
  }
  if (number % 2) {
    send_with(fd, &hello, sizeof hello, -1);
  }
  return fd;
}

static int hold_tcp(const knowledge *k) { return occupy(k, open_tcp, 0), 0; }
static int hold_shm(const knowledge *k) { return occupy(k, open_shm, 0), 0; }
static int flood_tcp(const knowledge *k) { return occupy(k, open_tcp, 1), 0; }
static int flood_shm(const knowledge *k) { return occupy(k, open_shm, 1), 0; }

TEST(connections_that_are_held_do_not_keep_links_from_tcp) { check_attack("tcp", hold_tcp, NOBODY); }
TEST(a_flood_of_connections_does_not_keep_links_from_tcp) { check_attack("tcp", flood_tcp, NOBODY); }
TEST(connections_of_another_user_do_not_keep_links_from_shm) {
  check_attack("shm", hold_shm, NOBODY);
  check_attack("shm", flood_shm, NOBODY);
}
TEST(connections_of_the_same_user_that_are_held_do_not_keep_links_from_shm) {
  check_attack("shm", hold_shm, geteuid());
}
TEST(a_flood_of_connections_of_the_same_user_does_not_keep_links_from_shm) {
  check_attack("shm", flood_shm, geteuid());
}
