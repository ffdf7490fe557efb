/* SPDX-License-Identifier: Apache-2.0 */
/* The streams of ucx.h: sending and receiving pieces, waiting, and the progress thread. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "modules/ucx.h"

#define PADDING 1024
#define KEEPER_NAP_NS 200000
#define KEEPER_NAP_BUSY_NS 1000000 /* while the comm does its work */
#define LOOK_SECONDS 0.1           /* between two looks whether processes live, for those who do not sleep */

/* ---- Peers that are gone ----------------------------------------------------------------------------------------- */

pith_status pith__ucx_gone(const ucx_peer *peer, int rank) {
  const char *why = peer->lied              ? "it sent what is no part of a stream"
                    : peer->error != UCS_OK ? ucs_status_string(peer->error)
                                            : "it closed its links";
  return pith_fail(PITH_ERR_PEER, "ucx: rank %d is gone: %s", rank, why);
}

static void look_after(ucx_peer *peer) {
  struct pollfd fd = {.fd = peer->process, .events = POLLIN};
  if (peer->process >= 0 && peer->error == UCS_OK && poll(&fd, 1, 0) == 1) {
    peer->error = UCS_ERR_CONNECTION_RESET;
  }
}

void pith__ucx_look_after(ucx_transport *t, int at_once) {
  double now = pith__now_rough();
  if (!at_once && now - t->looked < LOOK_SECONDS) {
    return;
  }
  t->looked = now;
  for (int i = 0; i < t->peer_count; i++) {
    look_after(t->peers[i]);
  }
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static ucx_out *take_out(ucx_transport *t) {
  ucx_out *out = t->idle;
  if (out) {
    t->idle = out->next;
    return out;
  }
  out = malloc(sizeof *out);
  if (out) {
    out->transport = t;
    out->next_of_all = t->all;
    t->all = out;
  }
  return out;
}

static void put_back(ucx_out *out) {
  out->next = out->transport->idle;
  out->transport->idle = out;
}

static void on_sent(void *request, ucs_status_t status, void *argument) {
  ucx_out *out = argument;
  if (status != UCS_OK && out->peer->error == UCS_OK) {
    out->peer->error = status;
  }
  out->transport->in_flight--;
  put_back(out);
  ucp_request_free(request);
}

static void post(ucx_transport *t, ucx_peer *peer, ucx_out *out, ucx_kind kind, size_t size) {
  const ucp_request_param_t param = {
      .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
      .flags = UCP_AM_SEND_FLAG_EAGER,
      .cb.send = on_sent,
      .user_data = out,
  };
  peer->said = peer->taken;
  out->peer = peer;
  out->head = (ucx_head){peer->token, (uint32_t)t->rank, kind, peer->sent, peer->taken};
  ucs_status_ptr_t request =
      ucp_am_send_nbx(peer->ep, MESSAGE_ID, &out->head, sizeof out->head, out->bytes, size, &param);
  if (UCS_PTR_IS_PTR(request)) {
    t->in_flight++;
    return;
  }
  if (UCS_PTR_IS_ERR(request) && peer->error == UCS_OK) {
    peer->error = UCS_PTR_STATUS(request);
  }
  put_back(out);
}

/* Messages without bytes of a stream. Those of the handshake have some that nobody reads: UCX sends longer messages in
 * another way than short ones, and must have found it before data come. */
void pith__ucx_say(ucx_transport *t, ucx_peer *peer, ucx_kind kind) {
  ucx_out *out = peer->error == UCS_OK ? take_out(t) : NULL;
  if (out) { /* else the peer waits in vain, and says so */
    size_t padding = kind <= KIND_READY ? PADDING : 0;
    memset(out->bytes, 0, padding);
    post(t, peer, out, kind, padding);
  }
}

/* Fills a buffer from the pieces, after the first `skip` bytes of them. */
static size_t gather(const struct iovec *pieces, int count, size_t skip, uint8_t *buffer, size_t most) {
  size_t used = 0;
  for (int i = 0; i < count && used < most; i++) {
    size_t size = pieces[i].iov_len, first = skip < size ? skip : size;
    size_t n = size - first < most - used ? size - first : most - used;
    if (n > 0) {
      memcpy(buffer + used, (const uint8_t *)pieces[i].iov_base + first, n);
    }
    skip -= first;
    used += n;
  }
  return used;
}

static int has_room(const ucx_peer *peer) { return peer->sent - peer->room < (peer->near ? WINDOW_NEAR : WINDOW); }

static pith_status send_locked(ucx_transport *t, int rank, const struct iovec *pieces, int count, size_t *taken) {
  ucx_peer *peer = t->peer[rank];
  size_t most = peer->near ? PIECE_NEAR : PIECE;
  *taken = 0;
  t->calls++;
  if (!has_room(peer)) {
    pith__ucx_look_after(t, 0);
    progress(t);
  }
  if (peer->ended || is_dead(peer)) {
    return pith__ucx_gone(peer, rank);
  }
  for (size_t n = most; n == most && has_room(peer);) {
    ucx_out *out = take_out(t);
    PITH_REQUIRE(out, PITH_ERR_MEMORY, "ucx: no memory to send to rank %d", rank);
    n = gather(pieces, count, *taken, out->bytes, most);
    if (n == 0) {
      put_back(out);
      break;
    }
    post(t, peer, out, KIND_DATA, n);
    peer->sent++;
    *taken += n;
  }
  peer->starving = !has_room(peer);
  if (t->in_flight > 0) {
    progress(t); /* what can leave, leaves now: we may be killed */
  }
  if (t->in_flight > 0 && t->resting) {
    pthread_cond_signal(&t->flying);
  }
  return PITH_OK;
}

pith_status pith__ucx_send(pith_transport *transport, int rank, const struct iovec *pieces, int count, size_t *taken) {
  ucx_transport *t = ucx_of(transport);
  lock(t);
  pith_status status = send_locked(t, rank, pieces, count, taken);
  unlock(t);
  return status;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

/* Keeps a piece that came; 0 if it cannot be one. */
static int keep_piece(ucx_peer *peer, uint32_t number, void *data, size_t size) {
  ucx_piece *piece = &peer->in[number % WINDOW_NEAR];
  uint32_t ahead = number - peer->taken, most = peer->ended ? peer->last - peer->taken : WINDOW_NEAR;
  if (ahead >= WINDOW_NEAR || ahead >= most || piece->data || size == 0 || size > PIECE) {
    return 0;
  }
  *piece = (ucx_piece){data, size, 0};
  return 1;
}

/* Whether a head is from a peer and could be true. The hello of a peer that we know nothing of yet is noted. */
static ucx_peer *sender_of(ucx_transport *t, const ucx_head *head) {
  if (head->token != (t->token ^ t->job) || head->rank >= (uint32_t)t->ranks) {
    return NULL;
  }
  ucx_peer *peer = t->peer[head->rank];
  if (!peer) {
    t->greeted[head->rank] |= head->kind == KIND_HELLO && t->wanted[head->rank];
    return NULL;
  }
  peer->lied |= head->taken - peer->room > peer->sent - peer->room; /* more than we sent */
  return peer->lied ? NULL : peer;
}

ucs_status_t pith__ucx_on_message(void *argument, const void *header, size_t header_size, void *data, size_t size,
                                  const ucp_am_recv_param_t *param) {
  ucx_head head;
  if (header_size != sizeof head || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
    return UCS_OK; /* a stranger */
  }
  memcpy(&head, header, sizeof head);
  ucx_peer *peer = sender_of(argument, &head);
  if (!peer) {
    return UCS_OK;
  }
  peer->room = head.taken;
  if (head.kind == KIND_DATA && keep_piece(peer, head.number, data, size)) {
    return UCS_INPROGRESS; /* until ucp_am_data_release */
  }
  peer->lied |= head.kind < KIND_HELLO || head.kind > KIND_END || head.kind == KIND_DATA;
  peer->came[head.kind <= KIND_END ? head.kind : 0] = 1;
  if (head.kind == KIND_END) {
    peer->ended = 1;
    peer->last = head.number;
  }
  return UCS_OK;
}

static ucx_piece *arrived(ucx_peer *peer) {
  ucx_piece *piece = &peer->in[peer->taken % WINDOW_NEAR];
  return piece->data ? piece : NULL;
}

/* Whether no more bytes come, once UCX has been asked for all it has. */
static int is_over(const ucx_peer *peer) { return (peer->ended && peer->taken == peer->last) || is_dead(peer); }

static void consume(ucx_transport *t, ucx_peer *peer, ucx_piece *piece) {
  ucp_am_data_release(t->worker, piece->data);
  *piece = (ucx_piece){NULL, 0, 0};
  peer->taken++;
}

void pith__ucx_drop(ucx_transport *t) {
  for (int i = 0; i < t->peer_count; i++) {
    for (ucx_piece *piece; (piece = arrived(t->peers[i]));) {
      consume(t, t->peers[i], piece);
    }
  }
}

static pith_status receive_locked(ucx_transport *t, int rank, uint8_t *buffer, size_t size, size_t *got) {
  ucx_peer *peer = t->peer[rank];
  *got = 0;
  t->calls++;
  if (!arrived(peer)) {
    pith__ucx_look_after(t, 0);
    ucp_worker_progress(t->worker);
  }
  if (!arrived(peer) && is_over(peer)) {
    progress(t); /* the last message */
  }
  for (ucx_piece *piece; *got < size && (piece = arrived(peer));) {
    size_t n = piece->size - piece->at < size - *got ? piece->size - piece->at : size - *got;
    memcpy(buffer + *got, piece->data + piece->at, n);
    *got += n;
    piece->at += n;
    if (piece->at == piece->size) {
      consume(t, peer, piece);
    }
  }
  if (peer->taken - peer->said >= WINDOW / 2 && !peer->ended) {
    pith__ucx_say(t, peer, KIND_ROOM);
  }
  return *got > 0 || size == 0 || arrived(peer) || !is_over(peer) ? PITH_OK : pith__ucx_gone(peer, rank);
}

pith_status pith__ucx_receive(pith_transport *transport, int rank, void *buffer, size_t size, size_t *got) {
  ucx_transport *t = ucx_of(transport);
  lock(t);
  pith_status status = receive_locked(t, rank, buffer, size, got);
  unlock(t);
  return status;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

int pith__ucx_descriptors(pith_transport *transport, const uint8_t *sending, struct pollfd *fds, int most) {
  ucx_transport *t = ucx_of(transport);
  int count = 0;
  (void)sending;
  if (count < most) {
    fds[count++] = (struct pollfd){.fd = t->fd, .events = POLLIN};
  }
  for (int i = 0; i < t->peer_count && count < most; i++) {
    if (t->peers[i]->process >= 0 && t->peers[i]->error == UCS_OK) {
      fds[count++] = (struct pollfd){.fd = t->peers[i]->process, .events = POLLIN};
    }
  }
  return count;
}

static int has_work(ucx_transport *t) {
  int work = 0;
  for (int i = 0; i < t->peer_count; i++) {
    ucx_peer *peer = t->peers[i];
    int over = peer->linked && is_over(peer);
    work |= arrived(peer) != NULL || (over && !peer->told) || (peer->starving && has_room(peer));
    peer->told = (uint8_t)over;
    peer->starving &= !has_room(peer);
  }
  return work;
}

/* UCX refuses to be armed as long as it has something to do, sends that wait for room in shared memory among it. */
static int fall_asleep(ucx_transport *t) {
  for (int tries = 0; tries < 16; tries++) {
    progress(t);
    if (has_work(t)) {
      return 1;
    }
    if (ucp_worker_arm(t->worker) == UCS_OK) {
      return 0;
    }
  }
  return 1;
}

int pith__ucx_sleep(pith_transport *transport, int asleep) {
  ucx_transport *t = ucx_of(transport);
  lock(t);
  int work = asleep && fall_asleep(t);
  t->looked = asleep ? t->looked : 0; /* we may have been woken by an end */
  t->asleep = asleep && !work;
  unlock(t);
  return work;
}

/* Waking a thread costs more than a short message does. So the progress thread does not rest as long as the comm calls,
 * and leaves the work to it then. Who sleeps is woken by UCX and calls it then; would the progress thread call it
 * meanwhile, it would take the wake-up away. */
void *pith__ucx_run_progress(void *argument) {
  ucx_transport *t = argument;
  unsigned calls = 0;
  lock(t);
  while (!t->closing) {
    int is_alone = t->calls == calls;
    calls = t->calls;
    if (is_alone && t->in_flight == 0) {
      t->resting = 1;
      pthread_cond_wait(&t->flying, &t->mutex);
      t->resting = 0;
      continue;
    }
    if (is_alone && !t->asleep) {
      progress(t);
    }
    unlock(t);
    nanosleep(&(struct timespec){0, is_alone ? KEEPER_NAP_NS : KEEPER_NAP_BUSY_NS}, NULL);
    lock(t);
  }
  unlock(t);
  return NULL;
}
