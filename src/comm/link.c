/*
 * A link: the messages to and from one peer, over whatever transport reaches it. Here is what drives it and what ends
 * it; link_send.c sends, link_receive.c receives.
 */
#include "comm/link.h"

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

/* A peer may run ahead, but not further than this. What we wait for may come after early messages, though: then we read
 * on. */
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
  size_t moved = link->out && !link->left && !link->broken ? pith__link_push(link) : 0;
  if (link->comm->failed == PITH_OK && may_pull(link)) {
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
  if (!link->transport || !link->out || link->left) {
    return 0;
  }
  pith__link_push(link);
  link->left |= link->broken;
  return link->out && !link->left;
}

void pith__link_fail(pith_link *link, const char *why) {
  pith__link_clear_sends(link, 1);
  pith__link_clear_receives(link);
  pith__link_notice(link, PITH_FRAME_ABORT, why);
}

void pith__link_clear(pith_link *link) {
  pith__link_clear_sends(link, 0);
  pith__link_clear_receives(link);
}
