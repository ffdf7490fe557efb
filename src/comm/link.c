/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link: the messages to and from one peer, over whatever transport reaches it. Here is what drives it, what ends it,
 * and how it sends: a queue of messages, each a header of 128 bytes and a payload, of which the transport takes the
 * first as it has room. link_receive.c receives.
 */
#include "comm/link.h"

#include <string.h>

#include "base/copy.h"

/* ---- Its life ---------------------------------------------------------------------------------------------------- */

pith_link *pith__link_make(pith_comm *comm, int peer) {
  pith_link *link = calloc(1, sizeof *link);
  if (!link) {
    pith__comm_fail(comm, PITH_ERR_MEMORY, "rank %d: no memory for a link with rank %d", comm->rank, peer);
    return NULL;
  }
  *link = (pith_link){.comm = comm, .peer = peer, .moved = 1}; /* a wait begins now */
  link->transport = peer == comm->rank ? NULL : comm->by_kind[comm->kind[peer]];
  link->remote = pith__is_remote(comm, peer);
  link->out_end = &link->out;
  link->posted_end = &link->posted;
  link->early_end = &link->early;
  int at = comm->link_count++;
  while (at > 0 && comm->links[at - 1]->peer > peer) {
    comm->links[at] = comm->links[at - 1];
    at--;
  }
  comm->links[at] = link;
  comm->link[peer] = link;
  return link;
}

/* Payloads have a checksum unless bytes stay on this host for sure. That both call their host the same is not enough:
 * machines that were cloned do, too. Ranks that are connected by a loopback address cannot be on two hosts, unless a
 * tunnel joins them: hence both. A transport that does not tell finds damage itself, and so does TLS. */
void pith__link_up(pith_link *link) {
  const pith_comm *comm = link->comm;
  const pith_transport_ops *ops = link->transport->ops;
  int stays_here = !link->remote && (!ops->is_loopback || ops->is_loopback(link->transport, link->peer));
  link->checked = comm->kind[link->peer] == PITH_KIND_NETWORK && comm->settings.tls.mode == PITH_TLS_OFF && !stays_here;
  link->linked = 1;
  link->comm->asking -= link->asked;
  for (pith_outgoing *m = link->checked ? link->out : NULL; m; m = m->next) { /* sealed before that was known */
    pith__frame_seal(&m->frame, m->payload, 1);
  }
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

#define PIECES_MOST 32 /* of messages that are sent at once: a system call costs as much as some kilobytes */

static void enqueue(pith_link *link, pith_outgoing *message) {
  message->next = NULL;
  *link->out_end = message;
  link->out_end = &message->next;
}

static pith_outgoing *queue_notice(pith_link *link, pith_frame_kind kind, const char *text) {
  size_t length = strnlen(text, PITH_NOTICE_MOST);
  pith_outgoing *message =
      link->transport && !link->left && (link->linked || kind == PITH_FRAME_SPEC) ? malloc(sizeof *message) : NULL;
  char *copy = message ? malloc(length + 1) : NULL;
  if (!copy) {
    free(message);
    return NULL; /* the link is closed soon, and the peer will notice that */
  }
  memcpy(copy, text, length);
  *message = (pith_outgoing){.payload = (uint8_t *)copy};
  message->frame =
      (pith_frame){.magic = PITH_FRAME_MAGIC, .version = PITH_FRAME_VERSION, .kind = (uint16_t)kind, .length = length};
  pith__frame_seal(&message->frame, copy, link->checked);
  enqueue(link, message);
  return message;
}

/* Another header for a notice that waits to be sent. */
static void set_frame(const pith_link *link, pith_outgoing *notice, const pith_frame *frame, pith_frame_kind kind) {
  uint64_t length = notice->frame.length;
  notice->frame = *frame;
  notice->frame.kind = (uint16_t)kind;
  notice->frame.length = length;
  pith__frame_seal(&notice->frame, notice->payload, link->checked);
}

void pith__link_notice(pith_link *link, pith_frame_kind kind, const char *text) { queue_notice(link, kind, text); }

/* Before the first message with a spec, sends its text, so that the peer can name it if it expected another. */
static void send_spec(pith_link *link, const pith_operation *op) {
  uint64_t fingerprint = op->frame.fingerprint;
  int at = 0;
  while (at < link->told_count && link->told[at] != fingerprint) {
    at++;
  }
  if (!fingerprint || !op->job.codec || at < link->told_count || at == PITH_SPECS_MOST) {
    return;
  }
  pith_outgoing *notice = queue_notice(link, PITH_FRAME_SPEC, op->job.codec->spec);
  if (notice) {
    set_frame(link, notice, &op->frame, PITH_FRAME_SPEC);
    link->told[link->told_count++] = fingerprint;
  }
}

void pith__link_send(pith_link *link, pith_operation *op, uint32_t number) {
  const pith_task *task = &op->job.schedule.task[number];
  if (link->comm->failed != PITH_OK) {
    return; /* nothing may point at an operation any more */
  }
  send_spec(link, op);
  pith_outgoing *message = pith__spare_take(&link->spare_out, sizeof(pith_outgoing));
  if (!message) {
    pith__comm_fail(link->comm, PITH_ERR_MEMORY, "rank %d: no memory to send a message", link->comm->rank);
    return;
  }
  pith__link_begin_wait(link);
  *message = (pith_outgoing){.operation = op, .task = number, .frame = op->frame, .payload = task->piece->data};
  message->frame.tag = task->tag;
  message->frame.length = task->piece->size;
  pith__frame_seal(&message->frame, message->payload, link->checked);
  enqueue(link, message);
  if (!link->linked) {
    pith__link_ask(link);
  }
}

void pith__link_sign(pith_link *link) {
  const pith_operation *op = link->comm->running;
  while (op && (op->done || op->frame.operation == PITH_OP_POINT)) {
    op = op->next;
  }
  if (!link->linked || link->left || link->out) {
    return; /* a peer that takes nothing needs no more messages */
  }
  if (op) {
    send_spec(link, op);
  }
  pith_outgoing *notice = queue_notice(link, PITH_FRAME_WAITING, "");
  if (op && notice) {
    set_frame(link, notice, &op->frame, PITH_FRAME_WAITING);
  }
}

static void drop_first(pith_link *link) {
  pith_outgoing *message = link->out;
  link->out = message->next;
  if (!link->out) {
    link->out_end = &link->out;
  }
  if (!message->operation) {
    free((void *)(uintptr_t)message->payload);
  }
  pith__spare_give(&link->spare_out, message);
}

static size_t total_of(const pith_outgoing *message) { return sizeof message->frame + (size_t)message->frame.length; }

/* What is left of the first messages, as many as there is room for; returns how many pieces, and their bytes. */
static int gather_pieces(const pith_link *link, struct iovec *pieces, size_t *bytes) {
  int count = 0;
  *bytes = 0;
  for (const pith_outgoing *m = link->out; m && count + 2 <= PIECES_MOST && *bytes < PITH_LINK_TURN_BYTES;
       m = m->next) {
    size_t head = sizeof m->frame, into = m->done > head ? m->done - head : 0;
    if (m->done < head) {
      pieces[count++] = (struct iovec){(uint8_t *)(uintptr_t)&m->frame + m->done, head - m->done};
    }
    if (m->frame.length > into) {
      pieces[count++] = (struct iovec){(void *)(uintptr_t)(m->payload + into), (size_t)m->frame.length - into};
    }
    *bytes += total_of(m) - m->done;
  }
  return count;
}

/* The text of a spec is sent once and is no part of what operations cost: statistics leave it out. */
static int is_counted(const pith_outgoing *message) { return message->frame.kind != PITH_FRAME_SPEC; }

/* Counts bytes that were sent, for all messages before any of them is finished: finishing one may end the comm. */
static void note_sent(pith_link *link, size_t bytes) {
  for (pith_outgoing *m = link->out; m && bytes > 0; m = m->next) {
    size_t rest = total_of(m) - m->done, n = rest < bytes ? rest : bytes;
    m->done += n;
    bytes -= n;
    link->comm->stats.sent_bytes += is_counted(m) ? n : 0;
    link->moved += m->operation != NULL;
  }
}

/* Finishes the messages that were sent completely. */
static void finish_sent(pith_link *link) {
  while (link->out && link->out->done == total_of(link->out)) {
    pith_operation *op = link->out->operation;
    uint32_t task = link->out->task;
    link->comm->stats.messages += is_counted(link->out);
    if (op) {
      op->traffic.messages++;
      op->traffic.sent_bytes += total_of(link->out);
    }
    drop_first(link);
    if (op) {
      pith__operation_task_done(op, task);
    }
  }
}

static size_t push(pith_link *link) {
  size_t moved = 0, taken = 0, wanted = 0;
  while (link->out && moved < PITH_LINK_TURN_BYTES && taken == wanted) {
    struct iovec pieces[PIECES_MOST];
    int count = gather_pieces(link, pieces, &wanted);
    taken = 0;
    if (link->transport->ops->send(link->transport, link->peer, pieces, count, &taken) != PITH_OK) {
      link->broken = 1; /* its last messages may still be unread: receiving decides */
      break;
    }
    moved += taken;
    note_sent(link, taken);
    finish_sent(link);
  }
  link->comm->moved_bytes += moved;
  return moved;
}

/* The message's payload is a copy from now on, which it owns; 0: there is no memory. */
static int own_payload(pith_outgoing *message) {
  size_t length = (size_t)message->frame.length;
  uint8_t *copy = malloc(length + 1);
  if (copy) {
    pith__copy(copy, message->payload, length);
  }
  message->payload = copy;
  message->operation = NULL;
  return copy != NULL;
}

/* Queues the rest of a message. */
static void queue_copy(pith_link *link, const pith_outgoing *message) {
  pith_outgoing *rest = pith__spare_take(&link->spare_out, sizeof(pith_outgoing));
  if (rest) {
    *rest = *message;
  }
  if (!rest || !own_payload(rest)) {
    free(rest);
    link->left |= message->done > 0; /* nothing can follow a message that has begun */
    pith__comm_fail(link->comm, PITH_ERR_MEMORY, "rank %d: no memory to send a message", link->comm->rank);
    return;
  }
  pith__link_begin_wait(link);
  enqueue(link, rest);
  if (!link->linked) {
    pith__link_ask(link);
  }
}

void pith__link_send_now(pith_link *link, const pith_frame *sealed, const void *payload) {
  size_t done = 0, total = sizeof *sealed + (size_t)sealed->length;
  pith_frame checked;
  if (link->checked) {
    checked = *sealed;
    pith__frame_seal(&checked, payload, 1);
    sealed = &checked;
  }
  struct iovec pieces[2] = {{(void *)(uintptr_t)sealed, sizeof *sealed},
                            {(void *)(uintptr_t)payload, (size_t)sealed->length}};
  if (!link->out && link->linked && !link->broken && !link->left &&
      link->transport->ops->send(link->transport, link->peer, pieces, 2, &done) != PITH_OK) {
    link->broken = 1;
  }
  link->comm->stats.sent_bytes += done;
  link->comm->stats.messages += done == total;
  if (done < total && link->comm->failed == PITH_OK) {
    queue_copy(link, &(pith_outgoing){.frame = *sealed, .payload = payload, .done = done});
  }
}

/* ---- Driving ----------------------------------------------------------------------------------------------------- */

/* Reads and discards what comes after a goodbye, up to the end: poll() would not sleep otherwise. */
static void drain(pith_link *link) {
  uint8_t discarded[512];
  size_t got = sizeof discarded;
  while (got == sizeof discarded && !link->over) {
    got = 0;
    link->over =
        link->transport->ops->receive(link->transport, link->peer, discarded, sizeof discarded, &got) != PITH_OK;
  }
}

int pith__link_is_awaited(const pith_link *link) {
  const pith_outgoing *message = link->out;
  while (message && !message->operation) {
    message = message->next;
  }
  return link->posted || link->match || message;
}

int pith__link_awaits_it(const pith_link *link) {
  for (const pith_posted *posted = link->posted; posted; posted = posted->next) {
    if (posted->operation->job.schedule.task[posted->task].peer != PITH_ANY_RANK) {
      return 1;
    }
  }
  return 0;
}

int pith__link_progress(pith_link *link) {
  if (!link->linked) {
    return 0;
  }
  size_t moved = link->out && !link->left && !link->broken ? push(link) : 0;
  /* A peer may run ahead, but not further than this. What we wait for may come after early messages, though: then we
   * read on. */
  size_t kept = link->early_bytes + (link->stored ? link->payload_done : 0);
  int may_pull = !link->left && (link->posted || link->match || kept < pith__early_bounds.pause);
  if (link->comm->failed == PITH_OK && may_pull) {
    moved += pith__link_pull(link);
  } else if (link->left && !link->over) {
    drain(link);
  }
  if (link->left) {
    pith__link_release_any(link);
  }
  if (link->comm->failed == PITH_OK && link->left && pith__link_is_awaited(link)) { /* it will not answer any more */
    pith__comm_fail(link->comm, PITH_ERR_PEER, "rank %d left the group while rank %d was waiting for it", link->peer,
                    link->comm->rank);
  }
  return moved > 0;
}

int pith__link_flush(pith_link *link) {
  if (!link->linked || !link->out || link->left) {
    return 0;
  }
  push(link);
  link->left |= link->broken;
  return link->out && !link->left;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* A message that has begun must be completed, but its operation ends, and with it the payload: the rest is sent from a
 * copy. A notice owns its text already. */
static void clear_sends(pith_link *link, int keep_begun) {
  while (link->out && link->out->done == total_of(link->out)) { /* sent, though its operation does not know yet */
    drop_first(link);
  }
  pith_outgoing *begun = keep_begun && !link->left && !link->broken ? link->out : NULL;
  if (begun && begun->done > 0 && (!begun->operation || own_payload(begun))) {
    link->out = begun->next;
  } else {
    link->left |= begun && begun->done > 0; /* nothing can follow on this link */
    begun = NULL;
  }
  while (link->out) {
    drop_first(link);
  }
  link->out_end = &link->out;
  free(link->spare_out);
  link->spare_out = NULL;
  if (begun) {
    enqueue(link, begun);
  }
}

void pith__link_fail(pith_link *link, const char *why) {
  clear_sends(link, 1);
  pith__link_clear_receives(link);
  pith__link_notice(link, PITH_FRAME_ABORT, why);
}

void pith__link_clear(pith_link *link) {
  clear_sends(link, 0);
  pith__link_clear_receives(link);
}
