/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The internals of a comm: links that frame messages over transports, operations that run schedules over links.
 *
 *   operations.c  public calls: check, write a schedule
 *   submit.c      making operations of their arguments
 *   drive.c       submit and wait: runs schedules and drives all links; threads
 *   link.c        messages of one peer: sends them; link_receive.c checks headers and matches receives
 *   sleep.c       what a driver does while nothing moves
 *   failure.c     failing, time-outs
 *   comm.c        create, split, abort, destroy
 *   join.c        where the ranks are, and the links that are there from the start
 *   door.c        links that are made later, and a look at them while nothing runs
 *   small.c       small allreduces of one host, without a schedule
 *   descriptors.c descriptors of memory, from rank to rank of one host
 *   trace.c       PITH_TRACE
 *
 * One mutex guards everything. A thread that waits for an operation drives (one at a time); a background thread drives
 * while there are requests that no thread waits for.
 */
#ifndef PITH_COMM_COMM_H
#define PITH_COMM_COMM_H

#include <pith/comm.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/thread_pool.h"
#include "collective/choose.h"
#include "comm/settings.h"
#include "transport/transport.h"
#include "transport/transport_choice.h"

/* ---- Messages: docs/format.md, "Messages" ------------------------------------------------------------------------ */

#define PITH_FRAME_MAGIC 0x4d485450u /* "PTHM" */
#define PITH_FRAME_VERSION 2
#define PITH_FRAME_EPOCH 0 /* groups do not change yet */

typedef enum pith_frame_kind {
  PITH_FRAME_DATA = 1,
  PITH_FRAME_ABORT = 2,
  PITH_FRAME_GOODBYE = 3,
  PITH_FRAME_WAITING = 4, /* alive, and in this operation: says who is not, and who is in another */
  PITH_FRAME_SPEC = 5,    /* the text of a spec whose fingerprint later headers have: for errors about disagreement */
} pith_frame_kind;

typedef enum pith_operation_kind {
  PITH_OP_ALLREDUCE = 1,
  PITH_OP_REDUCE,
  PITH_OP_REDUCE_SCATTER,
  PITH_OP_ALL_GATHER,
  PITH_OP_BROADCAST,
  PITH_OP_ALL_TO_ALL,
  PITH_OP_GATHER,
  PITH_OP_SCATTER,
  PITH_OP_BARRIER,
  PITH_OP_POINT, /* send and receive */
  PITH_OP_KINDS
} pith_operation_kind;

typedef struct pith_frame {
  uint32_t magic;
  uint16_t version, kind;
  uint16_t codec, operation;
  uint32_t flags; /* type, reduction, root: what all ranks must agree on beyond sizes */
  uint64_t sequence, layer, fingerprint, count, step, seed;
  uint64_t length; /* of the payload */
  uint32_t epoch;  /* which membership of the group */
  uint32_t tag;
  uint32_t payload_sum, zero; /* checksums: of the payload, where it crosses a network, else 0 … */
  uint64_t later[4];          /* 0 */
  uint64_t sum;               /* … and of all before it, always */
} pith_frame;

/* Whole lines of the cache: else the end of a payload and the next header would share one. */
_Static_assert(sizeof(pith_frame) == 128, "wire format");

/* ---- Operations -------------------------------------------------------------------------------------------------- */

typedef struct pith_operation {
  struct pith_operation *next;
  pith_comm *comm;
  pith_job job;
  pith_frame frame; /* what its messages say */
  uint32_t unfinished;
  uint64_t expected_bytes; /* of the messages that it receives, at most */
  void *scratch;           /* of the codec */
  size_t *counts;          /* copies of the caller's */
  pith_status status;
  pith_traffic traffic;
  double started_at;
  atomic_int done; /* set with the mutex held, read by pith_test() without it */
  int released;    /* no thread will wait for it */
} pith_operation;

struct pith_request {
  pith_operation operation;
};

/* ---- Links ------------------------------------------------------------------------------------------------------- */

/* A message to send. */
typedef struct pith_outgoing {
  struct pith_outgoing *next;
  pith_operation *operation; /* NULL: a notice (abort, goodbye), whose text is owned */
  uint32_t task;
  pith_frame frame;
  const uint8_t *payload;
  size_t done; /* bytes of header and payload that are gone */
} pith_outgoing;

/* A receive that waits for its message. */
typedef struct pith_posted {
  struct pith_posted *next;
  pith_operation *operation;
  uint32_t task;
} pith_posted;

/* A message that came before its receive. */
typedef struct pith_early {
  struct pith_early *next;
  pith_frame frame;
  uint8_t payload[];
} pith_early;

#define PITH_SPECS_MOST 64 /* texts of specs that a comm knows of its peers; others are shown by fingerprint */

/* The text of a spec that a peer uses. */
typedef struct pith_spec_text {
  uint64_t fingerprint;
  char *text;
} pith_spec_text;

typedef struct pith_link {
  pith_comm *comm;
  int peer;
  pith_transport *transport; /* which will reach it, or does; NULL for the own rank */
  int asked, linked;         /* we want it to be established; it is */
  int remote;                /* the peer is on another host, as far as we know */
  int checked;               /* payloads have a checksum: they may cross a network, and nothing else protects them */
  int met;                   /* something came from the peer */
  double ended;              /* when it ended although nothing had come; 0: it did not */
  int left;                  /* said goodbye, or is gone */
  int over;                  /* and its last byte was read */
  int broken;                /* takes nothing any more */
  double heard;              /* when it last said that it waits, too */
  uint64_t moved, seen;      /* counts every step of an operation's messages; what it was when last looked at */
  double unanswered;         /* since when its host has not answered; 0: it has */
  double since;              /* when, by the clock of check_time, we began to wait for the peer's next step */
  pith_outgoing *out, **out_end;
  pith_posted *posted, **posted_end;
  pith_early *early, **early_end;
  size_t early_bytes;
  pith_frame frame; /* arriving */
  size_t frame_done, payload_done;
  uint8_t *target;    /* where its payload goes */
  size_t stored_room; /* bytes of it that there is memory for, if it is stored */
  pith_posted *match;
  pith_early *stored;
  uint64_t told[PITH_SPECS_MOST]; /* fingerprints whose text the peer has from us */
  int told_count;
  void *spare_out, *spare_posted; /* one of each for the next message: short operations need no more */
} pith_link;

#define PITH_TRANSPORTS_MOST 2

/* Where to find the addresses for one kind of transport. */
typedef struct pith_directory_of {
  const pith_records *records;
  int kind;
} pith_directory_of;

struct pith_comm {
  unsigned made_in; /* which process: base/forked.h; in children the comm can only be destroyed */
  int rank, ranks;
  pith_link_key key;         /* of its links, for splits */
  pith_settings settings;    /* what it was made from, for splits too; its texts are copies */
  pith_interrupt interrupt;  /* pith_config.interrupted */
  double last_question;      /* when it was last asked */
  double last_look;          /* when we last looked which hosts answer */
  pith_thread_pool *threads; /* help to encode and decode; NULL: there are none */
  pith_layout *flat;         /* as if no ranks shared a host */
  pith_chooser chooser;
  pith_codec *inside;  /* the intra-host codec of hierarchical; NULL: uncompressed */
  pith_codec *entries; /* sparse and without loss */
  pith_transport *transport[PITH_TRANSPORTS_MOST];
  int transports;
  pith_records records;                    /* the addresses of all ranks */
  pith_directory_of directory[PITH_KINDS]; /* for the transports */
  uint8_t *kind;                           /* of every rank: by which kind of transport it is reached */
  pith_transport *by_kind[PITH_KINDS];
  pith_link **link;  /* of every rank; NULL: nothing was sent or received yet */
  pith_link **links; /* those that are not NULL, by rank */
  int link_count;
  pith_spec_text specs[PITH_SPECS_MOST]; /* what peers have told */
  int spec_count;
  uint64_t sequence; /* of the last collective */
  unsigned splits;
  pith_operation *running, **running_end;
  pith_pool pool;     /* memory of operations */
  pith_status failed; /* PITH_OK until something went wrong for good */
  char failure[768];
  double failed_at;
  int is_made;  /* the links of the start were */
  int is_watch; /* it is there to tell when ranks leave: that one does is no warning */
  int tracing;  /* PITH_TRACE */
  double busy;  /* seconds of work in which no link was read */
  uint32_t turns;
  double last_sign; /* when we last told the others that we wait */
  pthread_mutex_t mutex,
      gate; /* a thread that finds the mutex taken waits at the gate; the driver yields the mutex between two turns */
  pthread_cond_t changed;
  atomic_uint lock_requests,
      lock_grants;      /* of threads that found the mutex taken: how many requested it, and how many have had it */
  int driving, waiters; /* a thread drives; threads wait */
  pthread_t thread;
  int thread_started, closing;
  pthread_t door;              /* the thread of door.c */
  int door_started, door_wake; /* door_wake: an eventfd that ends its sleep */
  int closing_door;
  int asking;      /* links that were asked for and are not established */
  int watching;    /* the door's thread sleeps on the links, too: nothing runs */
  unsigned drives; /* how often a thread began to drive */
  int spin, yield; /* turns without progress before we sleep (0: not chosen yet), and between two that leave the core to
                      others */
  uint64_t moved_bytes;  /* in both directions */
  long nap;              /* nanoseconds that we last let bytes gather, where they trickle in; 0: they do not */
  long displaced;        /* how often the system had given the driver's core to another thread when it last looked */
  int is_networked;      /* some link leads to another host */
  int networked, modest; /* some ranks are elsewhere; sleeps during which we hardly spin, since the core is wanted */
  int wake;              /* an eventfd that ends the driver's sleep */
  pith_stats stats;
  pith_traffic traffic[PITH_OP_KINDS];
};

/* Whether a rank is on another host, as far as we know. */
static inline int pith__is_remote(const pith_comm *comm, int peer) {
  const pith_layout *hosts = comm->chooser.hosts;
  return comm->kind[peer] == PITH_KIND_NETWORK && hosts->host[peer] != hosts->host[comm->rank];
}

/* ---- comm.c ------------------------------------------------------------------------------------------------------ */

/* "allreduce" and so on. */
const char *pith__operation_name(unsigned kind);

/* sum += share of what is in traffic. */
void pith__traffic_add(pith_traffic *sum, const pith_traffic *traffic, double share);

/* ---- join.c ------------------------------------------------------------------------------------------------------ */

/* How the address records of all ranks are exchanged: at the rendezvous, or over the parent of a split. The records
 * must be freed. They may be there after an error, too: then other ranks have them and know of no error. */
typedef pith_status (*pith_exchange_fn)(void *how, const pith_address_record *mine, pith_records *all,
                                        pith_link_key *key);

/* Finds out where all ranks are, lays out their hosts, and links the comm with all peers of a small group, or else with
 * its neighbours. If that fails, the peers that are linked already are told why. */
pith_status pith__comm_join(pith_comm *comm, pith_exchange_fn exchange, void *how);

/* Whether two ranks are linked from the start in a group that is too large to link all. */
int pith__are_neighbours(int a, int b, int ranks);

/* What the transports have linked since this was last asked. */
void pith__comm_note_linked(pith_comm *comm);

/* ---- door.c ------------------------------------------------------------------------------------------------------ */

/* Starts the door's thread if links can still be made; ends it, without the mutex. */
pith_status pith__comm_open_door(pith_comm *comm);
void pith__comm_close_door(pith_comm *comm);

/* Wants the link to be established. */
void pith__link_ask(pith_link *link);

/* A thread begins to drive: the door, which watches the links, leaves them to it. */
void pith__comm_leave_watch(pith_comm *comm);

/* ---- small.c ----------------------------------------------------------------------------------------------------- */

/* Does an allreduce whose arguments were checked, if it is small enough and the caller asks for no more than its
 * result; else returns 0 and has done nothing. Ranks that go this way understand those that do not. */
int pith__small_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce_op reduce, const pith_call *call,
                          pith_status *status);

/* ---- descriptors.c ----------------------------------------------------------------------------------------------- */

/* All ranks are on one host: each hands a descriptor to all others, and gets theirs, by rank; -1 for its own. The
 * caller closes them all. An error is this rank's alone, and names the rank it is about; others may have what they
 * need. */
pith_status pith__comm_swap_descriptors(pith_comm *comm, int mine, int *theirs);

/* ---- trace.c ----------------------------------------------------------------------------------------------------- */

/* Opens the file at the first call of a process that has a name for one; whether there is one. */
int pith__trace_start(int rank);
/* A piece of work that began then and ends now; an operation that ends now. */
void pith__trace_work(const pith_operation *op, const pith_task *task, double start);
void pith__trace_operation(const pith_operation *op);

/* ---- frame.c ----------------------------------------------------------------------------------------------------- */

/* Writes both checksums; that of the payload only if it is `checked`. */
void pith__frame_seal(pith_frame *frame, const void *payload, int checked);
int pith__frame_is_intact(const pith_frame *frame);
/* Whether the payload is what it was, if its sender added a checksum. */
int pith__frame_payload_is_intact(const pith_frame *frame, const void *payload);

/* ---- mismatch.c -------------------------------------------------------------------------------------------------- */

/* Whether two messages are of the same operation with the same arguments. */
int pith__frame_agrees(const pith_frame *a, const pith_frame *b);
/* Fails the comm: the peer's message is not what the operation expects, and the error says in what they differ. Returns
 * 0. */
int pith__link_disagree(pith_link *link, const pith_frame *theirs, const pith_operation *op);
/* Keeps the text of a spec that a peer uses, for such errors. Any bytes may have come. */
void pith__spec_learn(pith_comm *comm, uint64_t fingerprint, const char *text);

/* ---- link.c, link_receive.c -------------------------------------------------------------------------------------- */

/* Bytes of early messages that a link stores. Beyond `pause` it reads on only while a receive from that peer is posted,
 * whose message comes after them; beyond `limit` (0: a quarter of the machine's memory) the comm fails. For tests to
 * change. */
typedef struct pith_early_bounds {
  size_t pause, limit;
} pith_early_bounds;
extern pith_early_bounds pith__early_bounds;

/* Makes the link with a peer; NULL: there was no memory, and the comm failed. */
pith_link *pith__link_make(pith_comm *comm, int peer);
/* The link with a peer, which is made if there is none yet; NULL as above. */
static inline pith_link *pith__link_have(pith_comm *comm, int peer) {
  pith_link *link = comm->link[peer];
  return link ? link : pith__link_make(comm, peer);
}
/* It is established. */
void pith__link_up(pith_link *link);
void pith__link_send(pith_link *link, pith_operation *op, uint32_t task);
void pith__link_receive(pith_link *link, pith_operation *op, uint32_t task);
/* From whichever rank sends first: the task's peer is PITH_ANY_RANK until then. */
void pith__link_receive_any(pith_comm *comm, pith_operation *op, uint32_t task);
/* Sends a message that need not outlive the call: what the transport does not take at once is sent from a copy. Its
 * header is sealed, but for a checksum of the payload. */
void pith__link_send_now(pith_link *link, const pith_frame *sealed, const void *payload);
void pith__link_notice(pith_link *link, pith_frame_kind kind, const char *text);
/* Tells the peer that we are alive and wait, in the oldest collective that is not done. */
void pith__link_sign(pith_link *link);
/* Moves what can be moved now; whether that was anything. */
int pith__link_progress(pith_link *link);
/* Whether a receive waits for this peer, and not for whichever comes first. */
int pith__link_awaits_it(const pith_link *link);
/* Whether an operation needs the peer. */
int pith__link_is_awaited(const pith_link *link);
/* Only sends, for notices in the end; whether there is more to send. */
int pith__link_flush(pith_link *link);
/* Forgets all operations, but for a message that has begun, and says why. */
void pith__link_fail(pith_link *link, const char *why);
/* Forgets everything. */
void pith__link_clear(pith_link *link);
/* Early messages of an operation that starts now must be of the same kind. */
void pith__link_check_early(pith_link *link, const pith_operation *op);

/* ---- submit.c ---------------------------------------------------------------------------------------------------- */

/* Not NULL, and not the copy of a forked child. */
pith_status pith__check_comm(const pith_comm *comm);
/* The same, and a rank of it. */
pith_status pith__check_rank(const pith_comm *comm, int rank, const char *what);
pith_status pith__check_span(const void *data, size_t n, pith_dtype dtype);
#define PITH_NOWHERE SIZE_MAX
/* Two tensors of an operation, of which one may lie in the other only at that place (in values), if they overlap. */
pith_status pith__check_overlap(pith_cspan inner, pith_cspan outer, size_t place);

/* A new operation with its tensors; nothing is known to the comm yet. */
pith_status pith__operation_make(pith_comm *comm, pith_operation_kind kind, pith_cspan src, pith_span dst,
                                 pith_reduce_op reduce, const pith_call *call, pith_operation **made);
/* The same for layers joined to one tensor, or (ROUNDS codecs) to one exchange: src and dst then have their values in
 * all, and the members live as long as the operation. */
pith_status pith__operation_make_joined(pith_comm *comm, pith_operation_kind kind, pith_cspan src, pith_span dst,
                                        pith_reduce_op reduce, const pith_call *call, const pith_member *members,
                                        size_t count, pith_operation **made);
void pith__operation_release(pith_operation *op);

/* Takes the operation over, whatever comes of it. `written` is the status of its schedule. */
pith_status pith__operation_submit(pith_operation *op, pith_status written, pith_request **request);

/* ---- operations.c ------------------------------------------------------------------------------------------------ */

/* Writes the schedule of an allreduce: `asked` names an algorithm, or is NULL. */
pith_status pith__schedule_allreduce(pith_operation *op, const char *asked);

/* pith_all_to_all() for values of a step, seed and layer, which all ranks must have in common; the call has no codec.
 */
pith_status pith__all_to_all_of(pith_comm *comm, pith_cspan src, const size_t *send, pith_span dst,
                                const size_t *receive, const pith_call *call, pith_request **request);

/* ---- drive.c ----------------------------------------------------------------------------------------------------- */

/* The mutex, for all but the driver, which holds it most of the time. */
void pith__comm_lock(pith_comm *comm);
/* Whether operations are in flight. */
int pith__comm_has_work(const pith_comm *comm);
/* Ends the driver's sleep, if there is one. */
void pith__comm_wake(pith_comm *comm);
/* Drives until the operation is done; if that is interrupted, the comm fails. Called with the mutex held. */
void pith__comm_drive(pith_comm *comm, const pith_operation *op);
/* A task of an operation is done: those that waited for it start. */
void pith__operation_task_done(pith_operation *op, uint32_t task);
/* pith_wait(), what the operation moved, and whom a receive was from; NULL: not wanted. */
pith_status pith__wait(pith_request *request, pith_traffic *traffic, int *source);
void pith__comm_stop_thread(pith_comm *comm);
/* Pushes out notices until there are none, or it is that late. */
void pith__comm_flush(pith_comm *comm, double end);

/* An operation enters the list of those that run. Early messages for it are compared with it. */
static inline void pith__running_add(pith_comm *comm, pith_operation *op) {
  *comm->running_end = op;
  comm->running_end = &op->next;
  for (int i = 0; i < comm->link_count && comm->failed == PITH_OK; i++) {
    pith__link_check_early(comm->links[i], op);
  }
}

/* It is done, and no thread needs it any more: it leaves the list, and its status is that of the call. */
pith_status pith__operation_conclude(pith_operation *op);

/* ---- sleep.c ----------------------------------------------------------------------------------------------------- */

/* A thread begins to drive. */
void pith__comm_begin_spin(pith_comm *comm);
/* How many turns without progress are worth it now. */
int pith__comm_spin_turns(const pith_comm *comm);
/* What wakes those who wait for a link, at most `most`; returns how many. There are never more than …_most says. */
int pith__comm_link_descriptors(pith_comm *comm, struct pollfd *fds, int most);
static inline int pith__comm_descriptors_most(const pith_comm *comm) {
  return comm->transports + 2 * comm->link_count; /* one of a transport's own, and two for each peer */
}
/* Sleeps until something happens, at most a while: the time-out is looked at then. */
void pith__comm_sleep(pith_comm *comm);
/* A turn moved so many bytes and computed nothing: waits a moment where more of them should gather. */
void pith__comm_let_gather(pith_comm *comm, uint64_t bytes);

/* ---- failure.c --------------------------------------------------------------------------------------------------- */

/* The comm is over: every operation ends with this, here and (by a notice) on the other ranks. Returns 0, for functions
 * that say whether there is a way on. */
int pith__comm_fail(pith_comm *comm, pith_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Fails if a peer has let us wait for too long, or its host is gone; tells the others now and then that we wait. */
void pith__comm_check_time(pith_comm *comm);

#endif
