/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers between the ranks of a job. One sits on the way from rank 1 to rank 0's rendezvous, sees every byte of it,
 * and with that knowledge tries to become rank 1 before rank 1 does: over shared memory and over tcp, as another user
 * and as the same one, with messages it made up, with messages of older versions, and with messages it was sent.
 * Another one turns refusals into hellos. The comm itself is made by pith_comm_create on both ranks.
 */
#include "stranger.h"

/* ---- Over shared memory ------------------------------------------------------------------------------------------ */

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

/* The right words, and for a proof: zeros, the listener's own, one by a key that follows from what can be seen, one by
 * the key of another job of the same secret, and one by the right key. */
enum { PROOF_ZEROS, PROOF_ECHO, PROOF_SEEN, PROOF_OTHER_JOB, PROOF_RIGHT };

static pith_link_key key_of(int kind, const knowledge *k) {
  pith_link_key key;
  pith__link_key_make(kind == PROOF_SEEN ? NULL : SECRET, kind == PROOF_OTHER_JOB ? k->job + 1 : k->job, &key);
  return key;
}

static int join_shm(const knowledge *k, int first, int last) {
  int has_memory, memory = make_segment(), joined = 0;
  for (int kind = first; kind <= last; kind++) {
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
    if (kind == PROOF_ECHO) {
      memcpy(offer.proof, answer.proof, sizeof offer.proof);
    } else if (kind > PROOF_ECHO) {
      pith_link_key key = key_of(kind, k);
      pith__link_key_prove(&key, PITH_SHM_ROLE_CALLER, &said, sizeof said, &offer, offsetof(pith_shm_offer, proof),
                           offer.proof);
    }
    send_with(fd, &offer, sizeof offer, memory);
    joined |= hear_with(fd, &theirs, sizeof theirs, &has_memory) > 0 || has_memory;
  }
  return joined;
}

static int join_shm_without_the_key(const knowledge *k) { return join_shm(k, PROOF_ZEROS, PROOF_OTHER_JOB); }
static int join_shm_with_the_key(const knowledge *k) { return join_shm(k, PROOF_RIGHT, PROOF_RIGHT); }

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

/* Memory is for one user, whatever others know. */
TEST(another_user_who_has_the_secret_does_not_join_over_shm) { check_attack("shm", join_shm_with_the_key, NOBODY); }

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

TEST(ranks_of_different_users_connect_over_tcp) { check_users("auto"); }
TEST(ranks_of_different_users_do_not_share_memory) { check_users("shm"); }

/* ---- Over tcp ---------------------------------------------------------------------------------------------------- */

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

static int join_tcp(const knowledge *k, int first, int last) {
  int joined = 0;
  for (int kind = first; kind <= last; kind++) {
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
    if (kind == PROOF_ECHO) {
      memcpy(proof, answer.proof, sizeof proof);
    } else if (kind > PROOF_ECHO) {
      pith_link_key key = key_of(kind, k);
      pith__link_key_prove(&key, TCP_ROLE_CALLER, &said, sizeof said, NULL, 0, proof);
    }
    throw(fd, proof, sizeof proof);
    joined |= stays_open(fd);
  }
  return joined;
}

static int join_tcp_without_the_key(const knowledge *k) { return join_tcp(k, PROOF_ZEROS, PROOF_OTHER_JOB); }
static int join_tcp_with_the_key(const knowledge *k) { return join_tcp(k, PROOF_RIGHT, PROOF_RIGHT); }

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

/* That the others stay outside is for lack of the key, and not for a mistake in what they say. */
TEST(who_has_the_secret_is_no_stranger) {
  CHECK_MSG(attack_job("shm", join_shm_with_the_key, geteuid()), "the right key did not open shm");
  CHECK_MSG(attack_job("tcp", join_tcp_with_the_key, geteuid()), "the right key did not open tcp");
}

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
