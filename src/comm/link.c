/*
 * Messages of one peer, over whatever transport reaches it.
 *
 * A message is a header of 128 bytes and a payload. Headers are checked before anything else: a peer that is in another
 * operation, or in the same one with another size, type, spec, layer, step or seed, is an error that says what each of
 * the two is doing. A payload goes straight to where its receive wants it, or is kept until that is posted.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "comm/comm.h"

#define MESSAGE_MOST ((uint64_t)1 << 40)
#define NOTICE_MOST 700
#define PIECES_MOST 32 /* of messages that are sent at once: a system call costs as much as some kilobytes */
#define EARLY_STEP ((size_t)1 << 20) /* memory for the first bytes of a message that nothing here waits for */
#define BYTES_PER_TURN \
  ((size_t)256 << 10) /* then the other links get theirs, and what came is worked on while the cache has it */

pith_early_bounds pith__early_bounds = {.pause = (size_t)64 << 20};

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void enqueue(pith_link *link, pith_outgoing *message) {
  message->next = NULL;
  *link->out_end = message;
  link->out_end = &message->next;
}

/* If nothing was wanted of the peer until now, its time begins now. */
static void begin_wait(pith_link *link) { link->moved += !link->out && !link->posted && !link->match; }

static pith_outgoing *new_outgoing(pith_link *link) {
  pith_outgoing *message = link->spare_out;
  link->spare_out = NULL;
  return message ? message : malloc(sizeof *message);
}

static void free_outgoing(pith_link *link, pith_outgoing *message) {
  free(link->spare_out);
  link->spare_out = message;
}

static pith_outgoing *queue_notice(pith_link *link, pith_frame_kind kind, const char *text) {
  size_t length = strnlen(text, NOTICE_MOST);
  pith_outgoing *message = link->transport && !link->left ? malloc(sizeof *message) : NULL;
  char *copy = message ? malloc(length + 1) : NULL;
  if (!copy) {
    free(message);
    return NULL; /* the link is closed soon: the peer will notice that */
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

/* Before the first message with a spec: its text, so that the peer can name it if it expected another. */
static void tell_spec(pith_link *link, const pith_operation *op) {
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
  tell_spec(link, op);
  pith_outgoing *message = new_outgoing(link);
  if (!message) {
    pith__comm_fail(link->comm, PITH_ERR_MEMORY, "rank %d: no memory to send a message", link->comm->rank);
    return;
  }
  begin_wait(link);
  *message = (pith_outgoing){.operation = op, .task = number, .frame = op->frame, .payload = task->piece->data};
  message->frame.tag = task->tag;
  message->frame.length = task->piece->size;
  pith__frame_seal(&message->frame, message->payload, link->checked);
  enqueue(link, message);
}

void pith__link_sign(pith_link *link) {
  const pith_operation *op = link->comm->running;
  while (op && (op->done || op->frame.operation == PITH_OP_POINT)) {
    op = op->next;
  }
  if (!link->transport || link->left || link->out) {
    return; /* one that takes nothing needs no more */
  }
  if (op) {
    tell_spec(link, op);
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
  free_outgoing(link, message);
}

static void fail_peer(pith_link *link) {
  char why[600];
  snprintf(why, sizeof why, "%s", pith_error());
  link->left = 1;
  pith__comm_fail(link->comm, PITH_ERR_PEER, "rank %d is gone (seen by rank %d): %s", link->peer, link->comm->rank,
                  why);
}

static size_t total_of(const pith_outgoing *message) { return sizeof message->frame + (size_t)message->frame.length; }

/* What is left of the first messages, as many as there is room for; returns how many pieces, and their bytes. */
static int gather_pieces(const pith_link *link, struct iovec *pieces, size_t *bytes) {
  int count = 0;
  *bytes = 0;
  for (const pith_outgoing *m = link->out; m && count + 2 <= PIECES_MOST && *bytes < BYTES_PER_TURN; m = m->next) {
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

/* Texts of specs are told once and are no part of what operations cost: statistics leave them out. */
static int is_counted(const pith_outgoing *message) { return message->frame.kind != PITH_FRAME_SPEC; }

/* Notes that so many bytes are gone, of all messages before any of them is finished: what follows may end the comm. */
static void note_sent(pith_link *link, size_t bytes) {
  for (pith_outgoing *m = link->out; m && bytes > 0; m = m->next) {
    size_t rest = total_of(m) - m->done, n = rest < bytes ? rest : bytes;
    m->done += n;
    bytes -= n;
    link->comm->stats.sent_bytes += is_counted(m) ? n : 0;
    link->moved += m->operation != NULL;
  }
}

/* Finishes the messages that are out. */
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
  while (link->out && moved < BYTES_PER_TURN && taken == wanted) {
    struct iovec pieces[PIECES_MOST];
    int count = gather_pieces(link, pieces, &wanted);
    taken = 0;
    if (link->transport->ops->send(link->transport, link->peer, pieces, count, &taken) != PITH_OK) {
      link->broken = 1; /* what it said before it went may still be here: receiving decides */
      break;
    }
    moved += taken;
    note_sent(link, taken);
    finish_sent(link);
  }
  link->comm->moved_bytes += moved;
  return moved;
}

/* The rest of a message, from a copy that nobody else knows of. */
static void queue_copy(pith_link *link, const pith_outgoing *message) {
  pith_outgoing *rest = new_outgoing(link);
  uint8_t *copy = malloc((size_t)message->frame.length + 1);
  if (!rest || !copy) {
    free(rest);
    free(copy);
    link->left |= message->done > 0; /* nothing can follow a message that has begun */
    pith__comm_fail(link->comm, PITH_ERR_MEMORY, "rank %d: no memory to send a message", link->comm->rank);
    return;
  }
  pith__copy(copy, message->payload, (size_t)message->frame.length);
  *rest = *message;
  rest->payload = copy;
  enqueue(link, rest);
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
  if (!link->out && !link->broken && !link->left &&
      link->transport->ops->send(link->transport, link->peer, pieces, 2, &done) != PITH_OK) {
    link->broken = 1;
  }
  link->comm->stats.sent_bytes += done;
  link->comm->stats.messages += done == total;
  if (done < total && link->comm->failed == PITH_OK) {
    queue_copy(link, &(pith_outgoing){.frame = *sealed, .payload = payload, .done = done});
  }
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

static pith_posted *new_posted(pith_link *link) {
  pith_posted *posted = link->spare_posted;
  link->spare_posted = NULL;
  return posted ? posted : malloc(sizeof *posted);
}

static void free_posted(pith_link *link, pith_posted *posted) {
  free(link->spare_posted);
  link->spare_posted = posted;
}

static int matches(const pith_posted *posted, const pith_frame *frame) {
  const pith_frame *ours = &posted->operation->frame;
  int is_point = frame->operation == PITH_OP_POINT;
  return is_point == (ours->operation == PITH_OP_POINT) && (is_point || ours->sequence == frame->sequence) &&
         posted->operation->job.schedule.task[posted->task].tag == frame->tag;
}

/* Takes a receive out of the list of its link. */
static pith_posted *unlink_posted(pith_link *link, pith_posted **at) {
  pith_posted *posted = *at;
  *at = posted->next;
  if (!*at) {
    link->posted_end = at;
  }
  return posted;
}

static int is_any(const pith_posted *posted) {
  return posted->operation->job.schedule.task[posted->task].peer == PITH_ANY_RANK;
}

/* Takes back what a receive from any rank has posted on a link; whether there was something. */
static int withdraw(pith_link *link, const pith_operation *op) {
  for (pith_posted **at = &link->posted; *at; at = &(*at)->next) {
    if ((*at)->operation == op) {
      free_posted(link, unlink_posted(link, at));
      return 1;
    }
  }
  return 0;
}

/* A message of this link is for the operation: if it receives from any rank, this is the one. */
static void settle_source(pith_link *link, pith_operation *op, uint32_t number) {
  if (op->job.schedule.task[number].peer == PITH_ANY_RANK) {
    op->job.schedule.task[number].peer = link->peer;
    for (int p = 0; p < link->comm->ranks; p++) {
      withdraw(&link->comm->link[p], op);
    }
  }
}

static pith_posted *take_posted(pith_link *link, const pith_frame *frame) {
  for (pith_posted **at = &link->posted; *at; at = &(*at)->next) {
    if (matches(*at, frame)) {
      pith_posted *posted = unlink_posted(link, at);
      settle_source(link, posted->operation, posted->task);
      return posted;
    }
  }
  return NULL;
}

static const pith_operation *operation_of(const pith_comm *comm, uint64_t sequence) {
  for (const pith_operation *op = comm->running; op; op = op->next) {
    if (op->frame.operation != PITH_OP_POINT && op->frame.sequence == sequence) {
      return op;
    }
  }
  return NULL;
}

/* A collective's message must be of an operation that is running here, or of one to come. */
static int check_data(pith_link *link, const pith_frame *frame) {
  pith_comm *comm = link->comm;
  if (frame->operation == PITH_OP_POINT) {
    return 1;
  }
  const pith_operation *op = operation_of(comm, frame->sequence);
  if (op && !pith__frame_agrees(frame, &op->frame)) {
    pith__link_disagree(link, frame, op);
    return 0;
  }
  if (!op && frame->sequence <= comm->sequence) {
    pith__comm_fail(comm, PITH_ERR_MISMATCH,
                    "ranks disagree: rank %d sent a message of %s number %" PRIu64
                    ", and rank %d has finished its operation of that number. All "
                    "ranks must make the same calls in the same order",
                    link->peer, pith__operation_name(frame->operation), frame->sequence, comm->rank);
    return 0;
  }
  return 1;
}

static int check_frame(pith_link *link, const pith_frame *frame) {
  if (frame->magic != PITH_FRAME_MAGIC || frame->version != PITH_FRAME_VERSION || frame->length > MESSAGE_MOST) {
    pith__comm_fail(link->comm, PITH_ERR_CORRUPT, "rank %d sent rank %d something that is no message", link->peer,
                    link->comm->rank);
    return 0;
  }
  if (!pith__frame_is_intact(frame)) {
    pith__comm_fail(link->comm, PITH_ERR_CORRUPT, "the header of a message from rank %d to rank %d was damaged",
                    link->peer, link->comm->rank);
    return 0;
  }
  if (frame->epoch != PITH_FRAME_EPOCH) {
    pith__comm_fail(link->comm, PITH_ERR_MISMATCH, "rank %d is in epoch %u of the group, rank %d in epoch %u",
                    link->peer, frame->epoch, link->comm->rank, PITH_FRAME_EPOCH);
    return 0;
  }
  if (frame->kind == PITH_FRAME_DATA) {
    return check_data(link, frame);
  }
  if (frame->kind < PITH_FRAME_ABORT || frame->kind > PITH_FRAME_SPEC || frame->length > NOTICE_MOST) {
    pith__comm_fail(link->comm, PITH_ERR_CORRUPT, "rank %d sent rank %d a notice that is none", link->peer,
                    link->comm->rank);
    return 0;
  }
  return 1;
}

/* Whether a message has a size that its receive can take: raw values all of them, payloads of codecs up to their bound.
 */
static int fits(const pith_frame *frame, const pith_piece *piece) {
  return frame->length >= piece->least && frame->length <= piece->capacity;
}

static size_t early_limit(size_t bytes) {
  if (pith__early_bounds.limit || bytes <= pith__early_bounds.pause) {
    return pith__early_bounds.limit ? pith__early_bounds.limit : SIZE_MAX; /* asking the system takes its time */
  }
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && size > 0 ? (size_t)pages / 4 * (size_t)size : SIZE_MAX;
}

/* Memory for so many bytes of the payload of a message that nothing here waits for; 0 if the comm failed. */
static int make_room(pith_link *link, size_t room) {
  pith_comm *comm = link->comm;
  size_t bytes = link->early_bytes + room, limit = early_limit(bytes);
  if (bytes > limit) {
    pith__comm_fail(
        comm, PITH_ERR_MEMORY,
        "rank %d sent rank %d more than %zu bytes that it does not wait for yet: receive messages in the order "
        "in which they are sent, or start fewer operations at once",
        link->peer, comm->rank, limit);
    return 0;
  }
  pith_early *larger = realloc(link->stored, sizeof *larger + room + 1);
  if (!larger) {
    pith__comm_fail(comm, PITH_ERR_MEMORY, "rank %d: no memory for a message of %" PRIu64 " bytes from rank %d",
                    comm->rank, link->frame.length, link->peer);
    return 0;
  }
  link->stored = larger;
  link->stored_room = room;
  link->target = larger->payload;
  return 1;
}

/* Begins to keep a message. Memory grows with what comes of it: a header may claim anything. */
static int store(pith_link *link) {
  uint64_t length = link->frame.length;
  if (!make_room(link, length < EARLY_STEP ? (size_t)length : EARLY_STEP)) {
    return 0;
  }
  link->stored->frame = link->frame;
  link->stored->next = NULL;
  return 1;
}

/* Bytes that can be received of the payload now, of which there is one at least; 0 if the comm failed. */
static size_t room_left(pith_link *link) {
  size_t length = (size_t)link->frame.length, room = link->stored_room;
  if (link->stored && link->payload_done == room && room < length &&
      !make_room(link, room < length / 2 ? 2 * room : length)) {
    return 0;
  }
  return (link->stored ? link->stored_room : length) - link->payload_done;
}

/* The payload goes where this receive wants it; 0 if it does not fit, and the comm failed. */
static int aim(pith_link *link, pith_posted *posted) {
  const pith_operation *op = posted->operation;
  pith_piece *piece = op->job.schedule.task[posted->task].piece;
  if (!fits(&link->frame, piece) ||
      (link->frame.operation == PITH_OP_POINT && !pith__frame_agrees(&link->frame, &op->frame))) {
    pith__link_disagree(link, &link->frame, op);
    return 0;
  }
  link->match = posted;
  link->target = piece->data;
  return 1;
}

/* Finds a place for the payload; 0 if the comm failed. */
static int begin_payload(pith_link *link) {
  pith_frame *frame = &link->frame;
  if (!check_frame(link, frame)) {
    return 0;
  }
  link->payload_done = 0;
  link->stored = NULL;
  pith_posted *posted = frame->kind == PITH_FRAME_DATA ? take_posted(link, frame) : NULL;
  if (!posted) {
    return store(link);
  }
  if (!aim(link, posted)) {
    free_posted(link, posted);
    return 0;
  }
  return 1;
}

static void take_sign(pith_link *link, const pith_frame *frame) {
  const pith_operation *op = frame->sequence ? operation_of(link->comm, frame->sequence) : NULL;
  link->heard = pith__now();
  if (op && !op->done && !pith__frame_agrees(frame, &op->frame)) {
    pith__link_disagree(link, frame, op);
  }
}

static void take_notice(pith_link *link, pith_early *notice) {
  notice->payload[notice->frame.length] = 0;
  switch ((pith_frame_kind)notice->frame.kind) {
    case PITH_FRAME_DATA:
      break;
    case PITH_FRAME_ABORT:
      if (notice->payload[0]) {
        pith__comm_fail(link->comm, PITH_ERR_ABORTED, "%s", (const char *)notice->payload);
      } else {
        pith__comm_fail(link->comm, PITH_ERR_ABORTED, "rank %d gave up and did not say why", link->peer);
      }
      link->left = 1;
      break;
    case PITH_FRAME_GOODBYE:
      link->left = 1;
      break;
    case PITH_FRAME_WAITING:
      take_sign(link, &notice->frame);
      break;
    case PITH_FRAME_SPEC:
      pith__spec_learn(link->comm, notice->frame.fingerprint, (const char *)notice->payload);
      break;
  }
  free(notice);
}

static void arrived(pith_operation *op, uint32_t number, size_t size) {
  op->job.schedule.task[number].piece->size = size;
  pith__operation_task_done(op, number);
}

static void accept_early(pith_link *link, pith_early *early, pith_operation *op, uint32_t number) {
  pith_piece *piece = op->job.schedule.task[number].piece;
  if (!fits(&early->frame, piece) || !pith__frame_agrees(&early->frame, &op->frame)) {
    pith__link_disagree(link, &early->frame, op);
  } else {
    if (early->frame.length) {
      memcpy(piece->data, early->payload, (size_t)early->frame.length);
    }
    arrived(op, number, (size_t)early->frame.length);
  }
  free(early);
}

/* A message that had no receive when it began may have one by now. */
static void keep_early(pith_link *link) {
  pith_early *early = link->stored;
  pith_posted *posted = take_posted(link, &early->frame);
  link->stored = NULL;
  if (posted) {
    pith_operation *op = posted->operation;
    uint32_t task = posted->task;
    free_posted(link, posted);
    accept_early(link, early, op, task);
  } else {
    *link->early_end = early;
    link->early_end = &early->next;
    link->early_bytes += sizeof *early + (size_t)early->frame.length;
  }
}

static void end_payload(pith_link *link) {
  pith_frame *frame = &link->frame;
  link->frame_done = 0;
  if (!pith__frame_payload_is_intact(frame, link->target)) {
    pith__comm_fail(link->comm, PITH_ERR_CORRUPT, "a message from rank %d to rank %d was damaged on the way",
                    link->peer, link->comm->rank);
    return;
  }
  if (frame->kind != PITH_FRAME_DATA) {
    pith_early *notice = link->stored;
    link->stored = NULL;
    take_notice(link, notice);
  } else if (link->match) {
    pith_operation *op = link->match->operation;
    uint32_t task = link->match->task;
    free_posted(link, link->match);
    link->match = NULL;
    arrived(op, task, (size_t)frame->length);
  } else {
    keep_early(link);
  }
}

/* Receives up to `size` bytes to `to`; how many. */
static size_t pull_bytes(pith_link *link, void *to, size_t size) {
  size_t got = 0;
  if (link->transport->ops->receive(link->transport, link->peer, to, size, &got) != PITH_OK) {
    if (!link->left) {
      fail_peer(link);
    }
    return 0;
  }
  return got;
}

static size_t pull(pith_link *link) {
  size_t moved = 0;
  pith_comm *comm = link->comm;
  while (moved < BYTES_PER_TURN && comm->failed == PITH_OK) {
    size_t got, asked;
    if (link->frame_done < sizeof link->frame) {
      asked = sizeof link->frame - link->frame_done;
      got = pull_bytes(link, (uint8_t *)&link->frame + link->frame_done, asked);
      link->frame_done += got;
      if (got && link->frame_done == sizeof link->frame && !begin_payload(link)) {
        break;
      }
    } else {
      asked = room_left(link);
      if (asked == 0 && link->payload_done < link->frame.length) {
        break; /* the comm has failed */
      }
      got = pull_bytes(link, link->target + link->payload_done, asked);
      link->payload_done += got;
    }
    moved += got;
    link->moved += got && link->frame_done == sizeof link->frame && link->frame.kind == PITH_FRAME_DATA;
    int whole = link->frame_done == sizeof link->frame && link->payload_done == link->frame.length;
    if (whole && comm->failed == PITH_OK) {
      end_payload(link);
    } else if (got < asked) {
      break; /* that was all there is */
    }
  }
  comm->moved_bytes += moved;
  return moved;
}

/* An early message whose receive is posted now. */
static pith_early *take_early(pith_link *link, const pith_posted *posted) {
  for (pith_early **at = &link->early; *at; at = &(*at)->next) {
    pith_early *early = *at;
    if (matches(posted, &early->frame)) {
      *at = early->next;
      if (!*at) {
        link->early_end = at;
      }
      link->early_bytes -= sizeof *early + (size_t)early->frame.length;
      return early;
    }
  }
  return NULL;
}

/* The message that is arriving is the one that this receive waits for: what came of it moves to its place, and the rest
 * goes there straight. Its header came before the operation was known here, and is compared now. */
static void adopt(pith_link *link, pith_posted *posted) {
  pith_early *stored = link->stored;
  const pith_operation *op = posted->operation;
  link->stored = NULL;
  settle_source(link, posted->operation, posted->task);
  if (!pith__frame_agrees(&link->frame, &op->frame)) {
    pith__link_disagree(link, &link->frame, op);
    free_posted(link, posted);
  } else if (!aim(link, posted)) {
    free_posted(link, posted);
  } else if (link->payload_done) {
    memcpy(link->target, stored->payload, link->payload_done);
  }
  free(stored);
}

static int is_arriving(const pith_link *link, const pith_posted *posted) {
  return link->stored && link->stored->frame.kind == PITH_FRAME_DATA && matches(posted, &link->stored->frame);
}

/* Receives from this link; whether the message is there already. */
static int post(pith_link *link, pith_operation *op, uint32_t number) {
  pith_posted *posted = new_posted(link);
  if (!posted) {
    pith__comm_fail(link->comm, PITH_ERR_MEMORY, "rank %d: no memory to receive a message", link->comm->rank);
    return 0;
  }
  begin_wait(link);
  *posted = (pith_posted){.operation = op, .task = number};
  pith_early *early = take_early(link, posted);
  if (early) {
    free_posted(link, posted);
    settle_source(link, op, number);
    accept_early(link, early, op, number);
    return 1;
  }
  if (is_arriving(link, posted)) {
    adopt(link, posted);
    return 1;
  }
  *link->posted_end = posted;
  link->posted_end = &posted->next;
  return 0;
}

void pith__link_receive(pith_link *link, pith_operation *op, uint32_t number) {
  if (link->comm->failed == PITH_OK) {
    post(link, op, number);
  }
}

void pith__link_receive_any(pith_comm *comm, pith_operation *op, uint32_t number) {
  for (int p = 0, found = 0; p < comm->ranks && comm->failed == PITH_OK && !found; p++) {
    found = comm->link[p].transport ? post(&comm->link[p], op, number) : 0;
  }
}

/* Receives from any rank do not wait for one that has left, as long as there is another. */
static void release_any(pith_link *link) {
  int others = 0;
  for (int p = 0; p < link->comm->ranks; p++) {
    const pith_link *other = &link->comm->link[p];
    others += other != link && other->transport && !other->left;
  }
  for (pith_posted **at = &link->posted; others && *at;) {
    if (is_any(*at)) {
      free_posted(link, unlink_posted(link, at));
    } else {
      at = &(*at)->next;
    }
  }
}

/* Whether a message that came before its operation began is none that the operation could have. */
static int is_foreign(const pith_frame *frame, const pith_operation *op) {
  return frame->kind == PITH_FRAME_DATA && frame->operation != PITH_OP_POINT && frame->sequence == op->frame.sequence &&
         !pith__frame_agrees(frame, &op->frame);
}

void pith__link_check_early(pith_link *link, const pith_operation *op) {
  const pith_early *early = link->early;
  while (early && !is_foreign(&early->frame, op)) {
    early = early->next;
  }
  if (!early && link->stored && is_foreign(&link->stored->frame, op)) {
    early = link->stored; /* not all of it is here yet */
  }
  if (early) {
    pith__link_disagree(link, &early->frame, op);
  }
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

/* Reads away what comes after a goodbye, up to the end: poll() would not sleep over it. */
static void drain(pith_link *link) {
  uint8_t nothing[512];
  size_t got = sizeof nothing;
  while (got == sizeof nothing && !link->over) {
    got = 0;
    link->over = link->transport->ops->receive(link->transport, link->peer, nothing, sizeof nothing, &got) != PITH_OK;
  }
}

/* A peer may run ahead, but not further than this; what we wait for may stand behind what came early, though. */
static int may_pull(const pith_link *link) {
  size_t kept = link->early_bytes + (link->stored ? link->payload_done : 0);
  return !link->left && (link->posted || link->match || kept < pith__early_bounds.pause);
}

int pith__link_is_awaited(const pith_link *link) {
  const pith_outgoing *message = link->out;
  while (message && !message->operation) {
    message = message->next;
  }
  return link->posted || link->match || message;
}

int pith__link_progress(pith_link *link) {
  if (!link->transport) {
    return 0;
  }
  size_t moved = link->out && !link->left && !link->broken ? push(link) : 0;
  if (link->comm->failed == PITH_OK && may_pull(link)) {
    moved += pull(link);
  } else if (link->left && !link->over) {
    drain(link);
  }
  if (link->left) {
    release_any(link);
  }
  if (link->comm->failed == PITH_OK && link->left && pith__link_is_awaited(link)) { /* it will not answer any more */
    pith__comm_fail(link->comm, PITH_ERR_PEER, "rank %d left the group while rank %d was waiting for it", link->peer,
                    link->comm->rank);
  }
  return moved > 0;
}

int pith__link_flush(pith_link *link) {
  if (!link->transport || !link->out || link->left) {
    return 0;
  }
  push(link);
  link->left |= link->broken;
  return link->out && !link->left;
}

/* A message that has begun cannot be taken back, nor its payload be touched any longer: a copy of it goes on. The text
 * of a notice is its own already. */
static pith_outgoing *keep_begun(pith_link *link) {
  pith_outgoing *message = link->out;
  if (!message->operation) {
    link->out = message->next;
    return message;
  }
  uint8_t *copy = malloc((size_t)message->frame.length + 1);
  if (!copy) {
    link->left = 1; /* nothing can be said on this link any more */
    return NULL;
  }
  if (message->frame.length) {
    memcpy(copy, message->payload, (size_t)message->frame.length);
  }
  link->out = message->next;
  message->payload = copy;
  message->operation = NULL;
  return message;
}

void pith__link_fail(pith_link *link, const char *why) {
  while (link->out && link->out->done == total_of(link->out)) { /* out, though its operation does not know */
    drop_first(link);
  }
  int has_begun = link->out && link->out->done > 0 && !link->left && !link->broken;
  pith_outgoing *begun = has_begun ? keep_begun(link) : NULL;
  pith__link_clear(link);
  if (begun) {
    enqueue(link, begun);
  }
  pith__link_notice(link, PITH_FRAME_ABORT, why);
}

void pith__link_clear(pith_link *link) {
  while (link->out) {
    drop_first(link);
  }
  link->out_end = &link->out;
  for (pith_posted *posted = link->posted, *next; posted; posted = next) {
    next = posted->next;
    free(posted);
  }
  for (pith_early *early = link->early, *next; early; early = next) {
    next = early->next;
    free(early);
  }
  free(link->match);
  free(link->stored);
  free(link->spare_out);
  free(link->spare_posted);
  link->spare_out = NULL, link->spare_posted = NULL;
  link->posted = NULL, link->posted_end = &link->posted;
  link->early = NULL, link->early_end = &link->early, link->early_bytes = 0;
  link->match = NULL, link->stored = NULL;
}
