/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors from rank to rank of one host, for memory that only those who get it can map. Each rank listens at a Unix
 * socket, whose random name goes to the others over the comm, and sends every other rank its descriptor there. Nobody
 * waits for an answer, so that no order of arrival can deadlock two ranks.
 *
 * The comm has told who listens at a name: a descriptor is sent to that process alone, as the kernel knows it. A packet
 * is taken from a process of the same user that proves to have the comm's key.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "comm/comm.h"
#include "transport/link_key.h"
#include "transport/sockets.h"
#include "transport/unix_socket.h"

#define MAGIC 0x3130534544485450u /* "PTHDES01": the version is part of it */
#define ROLE "pith descriptor 1"
#define SECONDS 10.0      /* packets are sent at once: who has not got one by then will not */
#define PAUSE_SECONDS 0.1 /* for the one packet of a connection */

typedef struct listener_record {
  char name[PITH_UNIX_NAME];
  uint8_t is_there;
  int32_t process;
} listener_record;

typedef struct descriptor_packet {
  uint64_t magic;
  int32_t from, to;
  uint8_t proof[PITH_SHA256_SIZE]; /* of the above and of the listener's name, which is used once */
} descriptor_packet;

static void prove(const pith_comm *comm, const listener_record *listener, const descriptor_packet *packet,
                  uint8_t proof[PITH_SHA256_SIZE]) {
  pith__link_key_prove(&comm->key, ROLE, packet, offsetof(descriptor_packet, proof), listener->name, PITH_UNIX_NAME,
                       proof);
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static pith_status connect_to(int socket, const listener_record *to, int rank, double end) {
  struct ucred peer = {.pid = 0};
  socklen_t size = sizeof peer;
  unsigned user;
  while (pith__unix_connect(socket, to->name) != 0) {
    PITH_REQUIRE((errno == EAGAIN || errno == EINTR) && pith__now() < end, PITH_ERR_PEER,
                 "rank %d cannot be reached by a Unix socket: %s (is it in the same container?)", rank,
                 strerror(errno));
    poll(NULL, 0, 1);
  }
  PITH_REQUIRE(pith__unix_same_user(socket, &user), PITH_ERR_PEER, "rank %d runs as user %u, and we as user %u", rank,
               user, (unsigned)geteuid());
  PITH_REQUIRE(getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid == to->process, PITH_ERR_PEER,
               "who answers for rank %d is process %d, and not %d as rank %d says", rank, (int)peer.pid, to->process,
               rank);
  return PITH_OK;
}

static pith_status send_to(const pith_comm *comm, const listener_record *to, int rank, int mine, double end) {
  PITH_REQUIRE(to->is_there && pith__unix_is_name(to->name, PITH_UNIX_NAME), PITH_ERR_PEER,
               "rank %d cannot listen at a Unix socket", rank);
  int socket = pith__unix_open();
  PITH_REQUIRE(socket >= 0, PITH_ERR_SYSTEM, "no Unix socket: %s", strerror(errno));
  pith_status status = connect_to(socket, to, rank, end);
  if (status == PITH_OK) {
    descriptor_packet packet = {.magic = MAGIC, .from = comm->rank, .to = rank};
    prove(comm, to, &packet, packet.proof);
    status = pith__packet_send(socket, &packet, sizeof packet, mine)
                 ? PITH_OK
                 : pith_fail(PITH_ERR_PEER, "rank %d does not take a descriptor: %s", rank, strerror(errno));
  }
  pith__fd_close(socket); /* what was sent is delivered */
  return status;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* The packet of a connection, if it is of a rank that has sent none; others are dropped without a word. */
static void take_from(const pith_comm *comm, const listener_record *mine, int socket, double end, int *theirs) {
  descriptor_packet packet;
  uint8_t proof[PITH_SHA256_SIZE];
  unsigned user;
  int descriptor = -1;
  struct pollfd ready = {socket, POLLIN, 0};
  if (!pith__unix_same_user(socket, &user) || pith__poll_until(&ready, 1, end) <= 0 ||
      pith__packet_receive(socket, &packet, sizeof packet, &descriptor) != PITH_PACKET_VALID) {
    return;
  }
  prove(comm, mine, &packet, proof);
  int is_ours = pith__digest_equal(proof, packet.proof) && packet.magic == MAGIC && packet.to == comm->rank &&
                packet.from >= 0 && packet.from < comm->ranks && packet.from != comm->rank && theirs[packet.from] < 0;
  if (is_ours) {
    theirs[packet.from] = descriptor;
  } else {
    close(descriptor);
  }
}

static int missing_of(const pith_comm *comm, const int *theirs) {
  for (int p = 0; p < comm->ranks; p++) {
    if (p != comm->rank && theirs[p] < 0) {
      return p;
    }
  }
  return -1;
}

static pith_status take_all(const pith_comm *comm, const listener_record *mine, int listener, double end, int *theirs) {
  while (missing_of(comm, theirs) >= 0 && pith__now() < end) {
    struct pollfd ready = {listener, POLLIN, 0};
    if (pith__poll_until(&ready, 1, end) <= 0) {
      continue;
    }
    int socket = pith__fd_keep(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket >= 0) {
      double soon = pith__now() + PAUSE_SECONDS;
      take_from(comm, mine, socket, soon < end ? soon : end, theirs);
      pith__fd_close(socket);
    }
  }
  PITH_REQUIRE(missing_of(comm, theirs) < 0, PITH_ERR_TIMEOUT, "rank %d has sent no descriptor",
               missing_of(comm, theirs));
  return PITH_OK;
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

static pith_status swap(const pith_comm *comm, const listener_record *all, int listener, int mine, int *theirs) {
  double end = pith__now() + SECONDS;
  pith_status status = PITH_OK;
  for (int i = 1; i < comm->ranks; i++) { /* also to those behind one that cannot be reached */
    int p = (comm->rank + i) % comm->ranks;
    pith_status sent = send_to(comm, &all[p], p, mine, end);
    status = status == PITH_OK ? sent : status;
  }
  return status == PITH_OK ? take_all(comm, &all[comm->rank], listener, end, theirs) : status;
}

pith_status pith__comm_swap_descriptors(pith_comm *comm, int mine, int *theirs) {
  listener_record here = {.process = (int32_t)getpid()};
  int listener = -1;
  pith_call call = PITH_CALL_INIT;
  PITH_FREED listener_record *all = calloc((size_t)comm->ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for %d ranks", comm->ranks);
  here.is_there = pith__unix_listen(&listener, here.name) == PITH_OK;
  pith_status status = pith_all_gather(comm, (pith_cspan){&here, sizeof here, PITH_U8},
                                       (pith_span){all, sizeof here * (size_t)comm->ranks, PITH_U8}, NULL, &call, NULL);
  for (int p = 0; p < comm->ranks; p++) {
    theirs[p] = -1;
  }
  status = status == PITH_OK ? swap(comm, all, listener, mine, theirs) : status;
  pith__fd_close(listener);
  for (int p = 0; p < comm->ranks && status != PITH_OK; p++) {
    if (theirs[p] >= 0) {
      close(theirs[p]);
    }
  }
  return status;
}
