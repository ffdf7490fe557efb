/*
 * Strangers between the ranks of a job. One sits on the way from rank 1 to rank 0's rendezvous, sees every byte of it,
 * and with that knowledge tries to become rank 1 before rank 1 does: over shared memory and over tcp, as another user
 * and as the same one, with messages it made up, with messages of older versions, and with messages it was sent.
 * Another one turns refusals into hellos. The comm itself is made by pith_comm_create on both ranks.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/address_record.h"
#include "ranks.h"
#include "test.h"
#include "transport/rendezvous_wire.h"
#include "transport/shm_link.h"
#include "transport/tcp.h"

#define NOBODY 65534
#define SECRET "the ranks know it"

/* ---- A job of two ranks, with somebody between them -------------------------------------------------------------- */

/* What a spy at the rendezvous knows of rank 0. */
typedef struct knowledge {
  uint64_t job;
  pith_address local, network;
} knowledge;

typedef int (*attack_fn)(const knowledge *k); /* whether rank 0 took us for rank 1, or told us more than it must */

static _Noreturn void be_rank(const char *transport, int rank, int port) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  float mine = rank ? 2 : 1, sum = 0;
  config.rank = rank, config.ranks = 2, config.port = port, config.host = "127.0.0.1";
  config.transport = transport, config.timeout = 10, config.secret = SECRET;
  CHECK_OK(pith_comm_create(&config, &comm));
  CHECK_STR(pith_comm_transport(comm, !rank), transport);
  CHECK_OK(
      pith_allreduce(comm, (pith_cspan){&mine, 1, PITH_F32}, (pith_span){&sum, 1, PITH_F32}, PITH_SUM, NULL, NULL));
  CHECK(sum == 3);
  pith_comm_destroy(comm);
  _exit(0);
}

static pid_t start_rank(const char *transport, int rank, int port) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    be_rank(transport, rank, port);
  }
  return child;
}

static int connect_to(int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  to.sin_port = htons((uint16_t)port);
  for (int i = 0; i < 1000; i++) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) {
      return fd;
    }
    close(fd);
    usleep(5000);
  }
  CHECK_MSG(0, "nobody listens on port %d", port);
  return -1;
}

static int listen_at(int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  at.sin_port = htons((uint16_t)port);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
  return fd;
}

static void read_whole(int fd, void *to, size_t size) { CHECK_EQ(recv(fd, to, size, MSG_WAITALL), size); }

static void write_whole(int fd, const void *from, size_t size) { CHECK_EQ(send(fd, from, size, MSG_NOSIGNAL), size); }

/* An attack is made by a process of its own, so that it can be of another user. */
static int attack_as(attack_fn attack, uid_t user, const knowledge *k) {
  int status;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (user != geteuid()) {
      CHECK(setgid(user) == 0 && setuid(user) == 0);
    }
    _exit(attack(k));
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
  return WEXITSTATUS(status);
}

/* A table of two ranks: two sizes, then the record of rank 0. */
static knowledge learn(const rendezvous_reply *reply, const uint8_t *table) {
  knowledge k = {.job = reply->job};
  pith_address_record record;
  uint32_t size;
  CHECK_EQ(reply->status, PITH_OK);
  memcpy(&size, table, sizeof size);
  CHECK(2 * sizeof size + size <= reply->size);
  CHECK_OK(pith__address_record_read(table + 2 * sizeof size, size, 0, &record));
  k.local = record.address[PITH_KIND_LOCAL];
  k.network = record.address[PITH_KIND_NETWORK];
  return k;
}

/* Rank 1 comes to rank 0's rendezvous through us. The attack is made when the addresses are known to us, and to rank 1
 * not yet. */
static int spy(int listener, int port, attack_fn attack, uid_t user) {
  uint8_t buffer[8192];
  rendezvous_greeting greeting;
  rendezvous_hello hello;
  rendezvous_reply reply;
  int guest = accept(listener, NULL, NULL), host = connect_to(port);
  read_whole(host, &greeting, sizeof greeting);
  write_whole(guest, &greeting, sizeof greeting);
  read_whole(guest, &hello, sizeof hello);
  CHECK(hello.size <= sizeof buffer);
  read_whole(guest, buffer, hello.size);
  write_whole(host, &hello, sizeof hello);
  write_whole(host, buffer, hello.size);
  read_whole(host, &reply, sizeof reply);
  CHECK(reply.size <= sizeof buffer);
  read_whole(host, buffer, reply.size);
  knowledge k = learn(&reply, buffer);
  int joined = attack_as(attack, user, &k);
  write_whole(guest, &reply, sizeof reply);
  write_whole(guest, buffer, reply.size);
  close(guest);
  close(host);
  return joined;
}

/* The attacker must get nothing, and the ranks must meet and agree. */
static void check_attack(const char *transport, attack_fn attack, uid_t user) {
  int port = ranks_free_port(), through = ranks_free_port(), listener = listen_at(through);
  if (user != geteuid() && geteuid() != 0) {
    LACKS("root", "only root can become another user");
  }
  pid_t child[2] = {start_rank(transport, 0, port), start_rank(transport, 1, through)};
  int joined = spy(listener, port, attack, user);
  close(listener);
  CHECK_MSG(!joined, "rank 0 let a stranger in");
  ranks_wait(child, 2, -1);
}

/* ---- Over shared memory ------------------------------------------------------------------------------------------ */

static int dial_shm(const knowledge *k) {
  struct sockaddr_un where = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  memcpy(where.sun_path + 1, k->local.data, k->local.size);
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + k->local.size);
  CHECK_EQ(connect(fd, (struct sockaddr *)&where, size), 0);
  return fd;
}

static void send_with(int fd, const void *data, size_t size, int descriptor) {
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } room = {0};
  struct iovec piece = {(void *)(uintptr_t)data, size};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = &room, message.msg_controllen = sizeof room;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)size || errno == EPIPE || errno == ECONNRESET);
}

/* What comes within a second: its size, 0 for the end. *has_memory: a descriptor came with it. */
static ssize_t hear_with(int fd, void *to, size_t size, int *has_memory) {
  char room[256];
  struct pollfd ready = {fd, POLLIN, 0};
  struct iovec piece = {to, size};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  *has_memory = 0;
  ssize_t got = poll(&ready, 1, 1000) > 0 ? recvmsg(fd, &message, 0) : 0;
  *has_memory = got > 0 && CMSG_FIRSTHDR(&message) != NULL;
  return got < 0 ? 0 : got;
}

static int make_segment(void) {
  int memory = memfd_create("stranger", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  CHECK(memory >= 0 && ftruncate(memory, 1 << 20) == 0);
  return memory;
}

/* As version 1 had it: one message, in which only the number of the job was to be known. */
static int join_shm_as_of_old(const knowledge *k) {
  struct {
    uint64_t magic, job;
    int32_t from, to, ranks;
    uint32_t inbox;
    pith_shm_shape shape;
  } hello = {0x31304d4853544950u, 0, 1, 0, 2, 0, {1, 4096, 1, 1}};
  uint8_t heard[256];
  int has_memory, memory = make_segment(), joined = 0;
  for (int i = 0; i < 2; i++) {
    int fd = dial_shm(k);
    hello.job = i ? k->job : 0;
    send_with(fd, &hello, sizeof hello, memory);
    joined |= hear_with(fd, heard, sizeof heard, &has_memory) > 0 && has_memory;
  }
  return joined;
}

static pith_shm_hello hello_as_rank_1(void) {
  pith_shm_hello hello = {.magic = PITH_SHM_HELLO_MAGIC, .from = 1, .to = 0, .ranks = 2};
  memset(hello.nonce, 7, sizeof hello.nonce);
  return hello;
}

/* The right words, and for a proof: zeros, the listener's own, or one by a key that follows from what can be seen. */
static int join_shm_without_the_key(const knowledge *k) {
  int has_memory, memory = make_segment(), joined = 0;
  for (int kind = 0; kind < 3; kind++) {
    struct {
      pith_shm_hello caller, listener;
    } said = {.caller = hello_as_rank_1()};
    pith_shm_answer answer;
    pith_shm_offer offer = {.shape = {1, 4096, 1, 1}}, theirs;
    int fd = dial_shm(k);
    send_with(fd, &said.caller, sizeof said.caller, -1);
    if (hear_with(fd, &answer, sizeof answer, &has_memory) != sizeof answer) {
      joined |= has_memory;
      continue; /* it was not even heard */
    }
    joined |= has_memory;
    said.listener = answer.hello;
    if (kind == 1) {
      memcpy(offer.proof, answer.proof, sizeof offer.proof);
    } else if (kind == 2) {
      pith_link_key seen;
      pith__link_key_make(NULL, k->job, &seen);
      pith__link_key_prove(&seen, PITH_SHM_ROLE_CALLER, &said, sizeof said, &offer, offsetof(pith_shm_offer, proof),
                           offer.proof);
    }
    send_with(fd, &offer, sizeof offer, memory);
    joined |= hear_with(fd, &theirs, sizeof theirs, &has_memory) > 0 || has_memory;
  }
  return joined;
}

/* What rank 0 has said to one connection is said to it on another. */
static int join_shm_with_its_own_words(const knowledge *k) {
  int has_memory, memory = make_segment(), first = dial_shm(k), second = dial_shm(k);
  pith_shm_hello hello = hello_as_rank_1();
  pith_shm_answer answer, other;
  pith_shm_offer offer = {.shape = {1, 4096, 1, 1}};
  send_with(first, &hello, sizeof hello, -1);
  if (hear_with(first, &answer, sizeof answer, &has_memory) != sizeof answer) {
    return has_memory;
  }
  memcpy(hello.nonce, answer.hello.nonce, sizeof hello.nonce);
  send_with(second, &hello, sizeof hello, -1);
  if (hear_with(second, &other, sizeof other, &has_memory) != sizeof other) {
    return has_memory;
  }
  memcpy(offer.proof, other.proof, sizeof offer.proof);
  send_with(first, &offer, sizeof offer, memory);
  return hear_with(first, &other, sizeof other, &has_memory) > 0 || has_memory;
}

TEST(another_user_does_not_join_over_shm_as_of_old) { check_attack("shm", join_shm_as_of_old, NOBODY); }
TEST(another_user_does_not_join_over_shm) { check_attack("shm", join_shm_without_the_key, NOBODY); }
TEST(the_same_user_does_not_join_over_shm_as_of_old) { check_attack("shm", join_shm_as_of_old, geteuid()); }
TEST(the_same_user_does_not_join_over_shm_without_the_key) { check_attack("shm", join_shm_without_the_key, geteuid()); }
TEST(the_same_user_does_not_join_over_shm_with_replayed_words) {
  check_attack("shm", join_shm_with_its_own_words, geteuid());
}

/* Ranks of one host and of different users find each other over the network, or say why they cannot. */
static _Noreturn void be_rank_of_a_user(const char *transport, int rank, int port) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  config.rank = rank, config.ranks = 2, config.port = port, config.host = "127.0.0.1";
  config.transport = transport, config.timeout = 10, config.secret = SECRET;
  CHECK(rank == 0 || (setgid(NOBODY) == 0 && setuid(NOBODY) == 0));
  if (strcmp(transport, "shm") == 0) {
    CHECK_STATUS(pith_comm_create(&config, &comm), PITH_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("users");
    _exit(0);
  }
  CHECK_OK(pith_comm_create(&config, &comm));
  CHECK_STR(pith_comm_transport(comm, !rank), "tcp");
  CHECK_OK(pith_barrier(comm, NULL));
  pith_comm_destroy(comm);
  _exit(0);
}

static void check_users(const char *transport) {
  pid_t child[2];
  int port = ranks_free_port();
  if (geteuid() != 0) {
    LACKS("root", "only root can become another user");
  }
  for (int r = 0; r < 2; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      be_rank_of_a_user(transport, r, port);
    }
  }
  ranks_wait(child, 2, -1);
}

TEST(ranks_of_different_users_meet_over_tcp) { check_users("auto"); }
TEST(ranks_of_different_users_do_not_share_memory) { check_users("shm"); }

/* ---- Over tcp ---------------------------------------------------------------------------------------------------- */

static int dial_tcp(const knowledge *k, uint64_t *token) {
  tcp_place place;
  CHECK_OK(pith__tcp_address_decode(&k->network, 0, &place));
  int fd = socket(place.at[0].any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(fd, &place.at[0].any, pith__sockaddr_size(&place.at[0])) == 0);
  *token = place.token;
  return fd;
}

static void throw(int fd, const void *bytes, size_t size) {
  CHECK(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size || errno == EPIPE || errno == ECONNRESET);
}

/* All of it, or as much as comes within a second before the end. */
static size_t hear(int fd, void *to, size_t size) {
  size_t done = 0;
  ssize_t got = 1;
  for (struct pollfd ready = {fd, POLLIN, 0}; done < size && got > 0 && poll(&ready, 1, 1000) > 0;) {
    got = recv(fd, (char *)to + done, size - done, 0);
    done += got > 0 ? (size_t)got : 0;
  }
  return done;
}

/* Whether a connection that said all it can say is still there: rank 0 closes those that are not of its job. */
static int stays_open(int fd) {
  char byte;
  struct pollfd ready = {fd, POLLIN, 0};
  return poll(&ready, 1, 1000) == 0 || recv(fd, &byte, 1, 0) > 0;
}

static int join_tcp_as_of_old(const knowledge *k) {
  struct {
    char magic[8];
    uint16_t version, order;
    uint32_t ranks, rank, index;
    uint64_t job, token;
  } hello = {"PITHLINK", 1, 0x0102, 2, 1, 0, 0, 0}, answer;
  int joined = 0;
  for (int i = 0; i < 2; i++) {
    int fd = dial_tcp(k, &hello.token);
    hello.job = i ? k->job : 0;
    throw(fd, &hello, sizeof hello);
    if (hear(fd, &answer, sizeof answer) == sizeof answer) {
      throw(fd, "!", 1);
      joined |= stays_open(fd);
    }
  }
  return joined;
}

static tcp_hello tcp_hello_as_rank_1(uint64_t token) {
  tcp_hello hello = {.version = TCP_HELLO_VERSION, .order = TCP_HELLO_ORDER, .ranks = 2, .rank = 1, .token = token};
  memcpy(hello.magic, TCP_HELLO_MAGIC, sizeof hello.magic);
  memset(hello.nonce, 7, sizeof hello.nonce);
  return hello;
}

static int join_tcp_without_the_key(const knowledge *k) {
  int joined = 0;
  for (int kind = 0; kind < 3; kind++) {
    uint8_t proof[PITH_SHA256_SIZE] = {0};
    uint64_t token;
    int fd = dial_tcp(k, &token);
    struct {
      tcp_hello caller, listener;
    } said = {.caller = tcp_hello_as_rank_1(token)};
    tcp_answer answer;
    throw(fd, &said.caller, sizeof said.caller);
    CHECK_EQ(hear(fd, &answer, sizeof answer), sizeof answer); /* rank 0 proves itself to whoever has its token */
    said.listener = answer.hello;
    if (kind == 1) {
      memcpy(proof, answer.proof, sizeof proof);
    } else if (kind == 2) {
      pith_link_key seen;
      pith__link_key_make(NULL, k->job, &seen);
      pith__link_key_prove(&seen, TCP_ROLE_CALLER, &said, sizeof said, NULL, 0, proof);
    }
    throw(fd, proof, sizeof proof);
    joined |= stays_open(fd);
  }
  return joined;
}

static int join_tcp_with_its_own_words(const knowledge *k) {
  uint64_t token;
  int first = dial_tcp(k, &token), second = dial_tcp(k, &token);
  tcp_hello hello = tcp_hello_as_rank_1(token);
  tcp_answer answer, other;
  throw(first, &hello, sizeof hello);
  CHECK_EQ(hear(first, &answer, sizeof answer), sizeof answer);
  memcpy(hello.nonce, answer.hello.nonce, sizeof hello.nonce);
  throw(second, &hello, sizeof hello);
  CHECK_EQ(hear(second, &other, sizeof other), sizeof other);
  throw(first, other.proof, sizeof other.proof);
  throw(second, answer.proof, sizeof answer.proof);
  return stays_open(first) || stays_open(second);
}

TEST(a_spy_does_not_join_over_tcp_as_of_old) { check_attack("tcp", join_tcp_as_of_old, NOBODY); }
TEST(a_spy_does_not_join_over_tcp_without_the_key) { check_attack("tcp", join_tcp_without_the_key, NOBODY); }
TEST(a_spy_does_not_join_over_tcp_with_replayed_words) { check_attack("tcp", join_tcp_with_its_own_words, NOBODY); }

/* ---- At the rendezvous ------------------------------------------------------------------------------------------- */

/* Rank 0 refuses another version, and seals the refusal with a random number of our choice: its own challenge to
 * another connection of ours. There we say what it said. */
static void replay_a_refusal(int port) {
  rendezvous_greeting challenge, greeting;
  rendezvous_reply reply;
  rendezvous_hello hello = {.head = pith__rendezvous_head(1), .ranks = 2}, forged = hello;
  int victim = connect_to(port), fd = connect_to(port);
  read_whole(victim, &challenge, sizeof challenge);
  memset(hello.head.version, '9', sizeof hello.head.version);
  memcpy(hello.nonce, challenge.nonce, sizeof hello.nonce);
  read_whole(fd, &greeting, sizeof greeting);
  write_whole(fd, &hello, sizeof hello);
  read_whole(fd, &reply, sizeof reply);
  CHECK_EQ(reply.status, PITH_ERR_MISMATCH);
  close(fd);
  memcpy(&forged, &reply, offsetof(rendezvous_reply, proof));
  memcpy(forged.proof, reply.proof, sizeof forged.proof);
  write_whole(victim, &forged, sizeof forged);
  usleep(200000);
  close(victim);
}

TEST(a_refusal_replayed_as_a_hello_does_not_end_the_rendezvous) {
  int port = ranks_free_port();
  pid_t child[2] = {start_rank("tcp", 0, port)};
  replay_a_refusal(port);
  child[1] = start_rank("tcp", 1, port);
  ranks_wait(child, 2, -1);
}
