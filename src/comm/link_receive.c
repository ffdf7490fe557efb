/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Receiving over a link. Headers are checked before anything else: a peer that is in another operation, or in the same
 * one with another size, type, spec, layer, step or seed, is an error that says what each of the two is doing. A
 * payload goes directly to the buffer of its receive, or is stored as an early message until that is posted.
 */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/link.h"

#define MESSAGE_MOST ((uint64_t)1 << 40)
#define EARLY_STEP ((size_t)1 << 20) /* memory for the first bytes of an early message */

pith_early_bounds pith__early_bounds = {.pause = (size_t)64 << 20};

/* ---- Posted receives --------------------------------------------------------------------------------------------- */

static void free_posted(pith_link *link, pith_posted *posted) { pith__spare_give(&link->spare_posted, posted); }

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

/* A message of this link is for the operation: if it receives from any rank, the source is this one from now on, and
 * what it has posted on other links is removed. */
static void settle_source(pith_link *link, pith_operation *op, uint32_t number) {
  if (op->job.schedule.task[number].peer != PITH_ANY_RANK) {
    return;
  }
  op->job.schedule.task[number].peer = link->peer;
  for (int i = 0; i < link->comm->link_count; i++) {
    pith_link *each = link->comm->links[i];
    pith_posted **at = &each->posted;
    while (*at && (*at)->operation != op) {
      at = &(*at)->next;
    }
    if (*at) {
      free_posted(each, unlink_posted(each, at));
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

/* ---- Headers ----------------------------------------------------------------------------------------------------- */

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
    return pith__link_disagree(link, frame, op);
  }
  if (!op && frame->sequence <= comm->sequence) {
    return pith__comm_fail(comm, PITH_ERR_MISMATCH,
                           "ranks disagree: rank %d sent a message of %s number %" PRIu64
                           ", and rank %d has finished its operation of that number. All "
                           "ranks must make the same calls in the same order",
                           link->peer, pith__operation_name(frame->operation), frame->sequence, comm->rank);
  }
  return 1;
}

static int check_frame(pith_link *link, const pith_frame *frame) {
  if (frame->magic != PITH_FRAME_MAGIC || frame->version != PITH_FRAME_VERSION || frame->length > MESSAGE_MOST) {
    return pith__comm_fail(link->comm, PITH_ERR_CORRUPT, "rank %d sent rank %d something that is no message",
                           link->peer, link->comm->rank);
  }
  if (!pith__frame_is_intact(frame)) {
    return pith__comm_fail(link->comm, PITH_ERR_CORRUPT, "the header of a message from rank %d to rank %d was damaged",
                           link->peer, link->comm->rank);
  }
  if (frame->epoch != PITH_FRAME_EPOCH) {
    return pith__comm_fail(link->comm, PITH_ERR_MISMATCH, "rank %d is in epoch %u of the group, rank %d in epoch %u",
                           link->peer, frame->epoch, link->comm->rank, PITH_FRAME_EPOCH);
  }
  if (frame->kind == PITH_FRAME_DATA) {
    return check_data(link, frame);
  }
  if (frame->kind < PITH_FRAME_ABORT || frame->kind > PITH_FRAME_SPEC || frame->length > PITH_NOTICE_MOST) {
    return pith__comm_fail(link->comm, PITH_ERR_CORRUPT, "rank %d sent rank %d a notice that is none", link->peer,
                           link->comm->rank);
  }
  return 1;
}

/* Whether a message has a size that its receive can take: raw values all of them, payloads of codecs up to their bound.
 */
static int fits(const pith_frame *frame, const pith_piece *piece) {
  return frame->length >= piece->least && frame->length <= piece->capacity;
}

/* ---- Payloads ---------------------------------------------------------------------------------------------------- */

/* Allocates memory for so many bytes of the payload of an early message; 0 if the comm failed. */
static int make_room(pith_link *link, size_t room) {
  pith_comm *comm = link->comm;
  size_t bytes = link->early_bytes + room, limit = pith__early_bounds.limit ? pith__early_bounds.limit : SIZE_MAX;
  if (!pith__early_bounds.limit && bytes > pith__early_bounds.pause) { /* asking the system takes long */
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
    limit = pages > 0 && size > 0 ? (size_t)pages / 4 * (size_t)size : SIZE_MAX;
  }
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

/* Bytes that can be received of the payload now, of which there is one at least; 0 if the comm failed. */
static size_t room_left(pith_link *link) {
  size_t length = (size_t)link->frame.length, room = link->stored_room;
  if (link->stored && link->payload_done == room && room < length &&
      !make_room(link, room < length / 2 ? 2 * room : length)) {
    return 0;
  }
  return (link->stored ? link->stored_room : length) - link->payload_done;
}

/* Makes the buffer of this receive the target of the payload; 0 if it does not fit, and the comm failed. */
static int aim(pith_link *link, pith_posted *posted) {
  const pith_operation *op = posted->operation;
  pith_piece *piece = op->job.schedule.task[posted->task].piece;
  if (!fits(&link->frame, piece) ||
      (link->frame.operation == PITH_OP_POINT && !pith__frame_agrees(&link->frame, &op->frame))) {
    return pith__link_disagree(link, &link->frame, op);
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
  if (posted && aim(link, posted)) {
    return 1;
  }
  if (posted) {
    free_posted(link, posted);
    return 0;
  }
  /* It is stored. Memory grows with what comes of it: a header may claim any length. */
  if (!make_room(link, frame->length < EARLY_STEP ? (size_t)frame->length : EARLY_STEP)) {
    return 0;
  }
  link->stored->frame = *frame;
  link->stored->next = NULL;
  return 1;
}

/* ---- Complete messages ------------------------------------------------------------------------------------------- */

static void take_notice(pith_link *link, pith_early *notice) {
  const pith_frame *frame = &notice->frame;
  const char *text = (const char *)notice->payload;
  const pith_operation *op;
  notice->payload[frame->length] = 0;
  switch ((pith_frame_kind)frame->kind) {
    case PITH_FRAME_DATA:
      break;
    case PITH_FRAME_ABORT:
      if (*text) {
        pith__comm_fail(link->comm, PITH_ERR_ABORTED, "%s", text);
      } else {
        pith__comm_fail(link->comm, PITH_ERR_ABORTED, "rank %d gave up and did not say why", link->peer);
      }
      link->left = 1;
      break;
    case PITH_FRAME_GOODBYE:
      link->left = 1;
      break;
    case PITH_FRAME_WAITING:
      op = frame->sequence ? operation_of(link->comm, frame->sequence) : NULL;
      link->heard = pith__now();
      if (op && !op->done && !pith__frame_agrees(frame, &op->frame)) {
        pith__link_disagree(link, frame, op);
      }
      break;
    case PITH_FRAME_SPEC:
      pith__spec_learn(link->comm, frame->fingerprint, text);
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

/* ---- Pulling ----------------------------------------------------------------------------------------------------- */

#define REASON_SECONDS 1.5 /* for others to tell why a link ended */

/* Whether a link that has ended tells nothing yet: no byte came over it, so that the peer may have given up before the
 * link was one on its side, too. It is not the cause then, and others know what is. */
static int awaits_reason(pith_link *link) {
  const pith_comm *comm = link->comm;
  if (link->met || (comm->is_made && comm->ranks <= comm->settings.eager)) {
    return 0;
  }
  link->ended = link->ended > 0 ? link->ended : pith__now();
  return !comm->is_made || pith__now() - link->ended < REASON_SECONDS;
}

/* Receives up to `size` bytes to `to`; how many. */
static size_t pull_bytes(pith_link *link, void *to, size_t size) {
  size_t got = 0;
  if (link->transport->ops->receive(link->transport, link->peer, to, size, &got) != PITH_OK) {
    if (!link->left && !awaits_reason(link)) {
      link->left = 1;
      pith__comm_fail(link->comm, PITH_ERR_PEER, "rank %d is gone (seen by rank %d): %s", link->peer, link->comm->rank,
                      pith_error());
    }
    return 0;
  }
  return got;
}

size_t pith__link_pull(pith_link *link) {
  size_t moved = 0;
  pith_comm *comm = link->comm;
  while (moved < PITH_LINK_TURN_BYTES && comm->failed == PITH_OK) {
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
    link->met |= got > 0;
    link->moved += got && link->frame_done == sizeof link->frame && link->frame.kind == PITH_FRAME_DATA;
    int whole = link->frame_done == sizeof link->frame && link->payload_done == link->frame.length;
    if (whole && comm->failed == PITH_OK) {
      end_payload(link);
    } else if (got < asked) {
      break; /* there is no more now */
    }
  }
  comm->moved_bytes += moved;
  return moved;
}

/* ---- Posting ----------------------------------------------------------------------------------------------------- */

/* Takes an early message whose receive is posted now. */
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

/* The message that is arriving is the one for this receive: what came of it is copied to the receive's buffer, and the
 * rest goes there directly. Its header came before the operation was known here, and is compared now. */
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

/* Posts a receive on this link; whether its message has come, or is arriving. */
static int post_receive(pith_link *link, pith_operation *op, uint32_t number) {
  pith_posted *posted = pith__spare_take(&link->spare_posted, sizeof(pith_posted));
  if (!posted) {
    return pith__comm_fail(link->comm, PITH_ERR_MEMORY, "rank %d: no memory to receive a message", link->comm->rank);
  }
  pith__link_begin_wait(link);
  *posted = (pith_posted){.operation = op, .task = number};
  pith_early *early = take_early(link, posted);
  if (early) {
    free_posted(link, posted);
    settle_source(link, op, number);
    accept_early(link, early, op, number);
    return 1;
  }
  if (link->stored && link->stored->frame.kind == PITH_FRAME_DATA && matches(posted, &link->stored->frame)) {
    adopt(link, posted); /* it is arriving */
    return 1;
  }
  *link->posted_end = posted;
  link->posted_end = &posted->next;
  return 0;
}

void pith__link_receive(pith_link *link, pith_operation *op, uint32_t number) {
  if (link->comm->failed == PITH_OK) {
    post_receive(link, op, number);
  }
}

/* Also from ranks with which there is no link yet. */
void pith__link_receive_any(pith_comm *comm, pith_operation *op, uint32_t number) {
  for (int p = 0, found = 0; p < comm->ranks && comm->failed == PITH_OK && !found; p++) {
    pith_link *link = p == comm->rank ? NULL : pith__link_have(comm, p);
    found = link ? post_receive(link, op, number) : 0;
  }
}

/* Whether an early message has the sequence number of this operation, but is of another one. */
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

/* ---- The end ----------------------------------------------------------------------------------------------------- */

void pith__link_release_any(pith_link *link) {
  const pith_comm *comm = link->comm;
  int others = comm->ranks - 1 - comm->link_count; /* those without a link are there, as far as we know */
  for (int i = 0; i < comm->link_count; i++) {
    others += comm->links[i] != link && !comm->links[i]->left;
  }
  others += comm->link[comm->rank] != NULL; /* which is none */
  for (pith_posted **at = &link->posted; others && *at;) {
    if ((*at)->operation->job.schedule.task[(*at)->task].peer == PITH_ANY_RANK) {
      free_posted(link, unlink_posted(link, at));
    } else {
      at = &(*at)->next;
    }
  }
}

void pith__link_clear_receives(pith_link *link) {
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
  free(link->spare_posted);
  link->spare_posted = NULL;
  link->posted = NULL, link->posted_end = &link->posted;
  link->early = NULL, link->early_end = &link->early, link->early_bytes = 0;
  link->match = NULL, link->stored = NULL;
}
