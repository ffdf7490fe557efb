/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucx: the streams of bytes as active messages of UCX, so that ranks use whatever network UCX knows (InfiniBand, RoCE,
 * shared memory, TCP) without mpirun.
 *
 * A transport has a UCX worker of its own, whose address is the transport's. A stream travels in numbered pieces, each
 * an active message; the receiver keeps them where UCX put them until the comm takes them. UCX has no limit for what
 * has come and was not asked for, so a sender may be WINDOW pieces ahead, no more: the receiver says from time to time
 * how many it has taken. Every message carries the token of the listener it is meant for; others are dropped.
 *
 * UCX moves bytes only while a thread calls it. Once the comm has given us its bytes it may not call again for long,
 * so a progress thread calls UCX while sends are in flight. One mutex for each transport guards its worker.
 *
 * UCX tells that a peer died where the network notices. Shared memory does not, so a peer on this machine is watched by
 * a descriptor of its process.
 */
#ifndef PITH_MODULES_UCX_H
#define PITH_MODULES_UCX_H

#include <pthread.h>
#include <sched.h>
#include <ucp/api/ucp.h>

#include "transport/module.h"

/* Pieces, and how many a sender may be ahead. With its head a near one just fits into a message of shared memory; over
 * networks UCX is faster with longer ones. A receiver takes either. */
#define PIECE ((size_t)64 << 10)
#define PIECE_NEAR ((size_t)8 << 10)
#define WINDOW 16u
#define WINDOW_NEAR 64u
#define MESSAGE_ID 7u /* of our active messages */

extern const pith_transport_host *pith__ucx_host;
#define pith_fail pith__ucx_host->fail

/* ---- What travels ------------------------------------------------------------------------------------------------ */

typedef enum ucx_kind { KIND_HELLO = 1, KIND_HEARD, KIND_READY, KIND_DATA, KIND_ROOM, KIND_END } ucx_kind;

typedef struct ucx_head {
  uint64_t token; /* the receiver's, and the job: it proves that the sender means this very listener */
  uint32_t rank;  /* of the sender */
  uint32_t kind;
  uint32_t number; /* DATA: of this piece; END: of pieces in all */
  uint32_t taken;  /* pieces of the receiver that the sender has taken */
} ucx_head;

/* A process of a machine: numbers of processes mean something within one space of them only, and are used again. */
typedef struct ucx_process {
  uint64_t machine, space, started;
  uint64_t pid;
} ucx_process;

/* ---- Links ------------------------------------------------------------------------------------------------------- */

typedef struct ucx_piece {
  uint8_t *data; /* UCX's, until it is released; NULL: not here */
  size_t size, at;
} ucx_piece;

typedef struct ucx_peer {
  int rank;
  ucp_ep_h ep;
  uint64_t token;                                   /* of its listener, and the job */
  uint8_t linked, near;                             /* the handshake is complete; over shared memory */
  uint8_t came[KIND_END + 1], said_ready, answered; /* which kinds of messages; what we said to them */
  uint8_t starving, ended, lied;
  uint8_t told; /* the sleeper knows that it is gone */
  int process;  /* a pidfd if it is on this machine, else -1 */
  ucs_status_t error;
  uint32_t sent, room;        /* pieces, ever: sent, and taken by the peer */
  uint32_t taken, said, last; /* pieces, ever: taken here, as we told the peer, and in all once it has ended */
  ucx_piece in[WINDOW_NEAR];
} ucx_peer;

/* A message of ours; UCX needs it until it is sent. */
typedef struct ucx_out {
  struct ucx_transport *transport;
  ucx_peer *peer;
  struct ucx_out *next, *next_of_all;
  ucx_head head;
  uint8_t bytes[PIECE];
} ucx_out;

typedef struct ucx_transport {
  pith_transport base;
  int rank, ranks, closing, asleep;
  double timeout, looked; /* looked: when, whether the processes live */
  uint64_t token, job;
  pid_t owner; /* the process that made this */
  ucp_context_h context;
  ucp_worker_h worker;
  int fd;
  ucx_out *idle, *all;
  int in_flight;  /* messages that UCX has not sent yet */
  unsigned calls; /* of the comm */
  int resting;    /* the progress thread sleeps until it is woken */
  pthread_mutex_t mutex;
  pthread_cond_t flying;
  pthread_t progress_thread;
  pith_directory directory;
  uint8_t *wanted;  /* of every rank: PITH_LINK_… */
  uint8_t *greeted; /* of every rank: it said hello, and we have said nothing to it yet */
  int later;        /* peers that may be linked later */
  ucx_peer **peers; /* those in `peer`, in the order in which they were made */
  int peer_count;
  int *linked;
  int linked_count, told;
  ucx_peer *peer[]; /* of every rank; NULL: nothing of a link is there */
} ucx_transport;

static inline ucx_transport *ucx_of(pith_transport *transport) { return (ucx_transport *)(void *)transport; }

static inline void lock(ucx_transport *t) { pthread_mutex_lock(&t->mutex); }

static inline void unlock(ucx_transport *t) { pthread_mutex_unlock(&t->mutex); }

static inline void breathe(ucx_transport *t) {
  unlock(t);
  sched_yield();
  lock(t);
}

/* Lets UCX work until nothing moves; not for ever, should a peer never pause. */
static inline void progress(ucx_transport *t) {
  for (int turns = 0; turns < 256 && ucp_worker_progress(t->worker); turns++) {
  }
}

static inline int is_dead(const ucx_peer *peer) { return peer->error != UCS_OK || peer->lied; }

static inline uint32_t checksum(const void *bytes, size_t size, uint32_t sum) {
  for (size_t i = 0; i < size; i++) {
    sum = (sum ^ ((const uint8_t *)bytes)[i]) * 16777619u;
  }
  return sum;
}

/* ---- ucx_process.c ----------------------------------------------------------------------------------------------- */

ucx_process pith__ucx_this_process(void);

/* A descriptor that tells when the process ends; -1 if it is not of this machine, or is ourselves. */
int pith__ucx_watch(const ucx_process *process);

/* ---- ucx_stream.c: with the mutex held --------------------------------------------------------------------------- */

pith_status pith__ucx_gone(const ucx_peer *peer, int rank);
void pith__ucx_look_after(ucx_transport *t, int at_once); /* whether the processes of peers live; else now and then */
void pith__ucx_say(ucx_transport *t, ucx_peer *peer, ucx_kind kind);
void pith__ucx_drop(ucx_transport *t); /* what came and was not taken, as far as it is in order */
ucs_status_t pith__ucx_on_message(void *transport, const void *header, size_t header_size, void *data, size_t size,
                                  const ucp_am_recv_param_t *param);

/* ---- ucx_stream.c: operations of the transport, and the progress thread ------------------------------------------ */

pith_status pith__ucx_send(pith_transport *transport, int rank, const struct iovec *pieces, int count, size_t *taken);
pith_status pith__ucx_receive(pith_transport *transport, int rank, void *buffer, size_t size, size_t *got);
int pith__ucx_descriptors(pith_transport *transport, const uint8_t *sending, struct pollfd *fds, int most);
int pith__ucx_sleep(pith_transport *transport, int asleep);
void *pith__ucx_run_progress(void *transport);

#endif
