/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a transport over UCX (ucx.h): listening, connecting, leaving. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "modules/ucx.h"

#define LINGER 1.0 /* seconds that a rank which leaves gives to the others */

const pith_transport_host *pith__ucx_host;

static const pith_transport_ops ops; /* at the end */

#define UCX_TRY(call)                                                                                                 \
  do {                                                                                                                \
    ucs_status_t ucx_try_status = (call);                                                                             \
    PITH_REQUIRE(ucx_try_status == UCS_OK, PITH_ERR_SYSTEM, "ucx: %s: %s", #call, ucs_status_string(ucx_try_status)); \
  } while (0)

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* What an address begins with; that of the worker follows. UCX believes whatever it is given, so damage is found here.
 */
typedef struct ucx_place {
  char magic[4];
  uint32_t size, checksum;
  uint32_t zero;
  uint64_t token;
  ucx_process process;
} ucx_place;

#define MAGIC "ucx1"

/* ---- Listening --------------------------------------------------------------------------------------------------- */

/* Whether UCX_TLS lets UCX use shared memory. */
static int has_shared_memory(void) {
  static const char *const names[] = {"all", "shm", "sm", "mm", "posix", "sysv"};
  const char *networks = getenv("UCX_TLS");
  int named = 0;
  for (size_t i = 0; networks && i < sizeof names / sizeof *names; i++) {
    named |= strstr(networks, names[i]) != NULL;
  }
  return !networks || (networks[0] == '^' ? !named : named);
}

/* UCX leaves shared memory alone where somebody wants to be told of dead peers, unless this is set. */
static void set_defaults(ucp_config_t *config) {
  if (has_shared_memory() && !getenv("UCX_MM_ERROR_HANDLING")) {
    (void)ucp_config_modify(config, "MM_ERROR_HANDLING", "y");
  }
}

static pith_status choose_interface(ucp_config_t *config, const char *name) {
  if (name) {
    UCX_TRY(ucp_config_modify(config, "NET_DEVICES", name));
  }
  return PITH_OK;
}

static pith_status open_context(const char *interface, int ranks, ucp_context_h *context) {
  ucp_config_t *config;
  const ucp_params_t params = {
      .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS,
      .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
      .estimated_num_eps = (size_t)ranks,
  };
  UCX_TRY(ucp_config_read(NULL, NULL, &config));
  set_defaults(config);
  pith_status status = choose_interface(config, interface);
  ucs_status_t code = status == PITH_OK ? ucp_init(&params, config, context) : UCS_OK;
  ucp_config_release(config);
  PITH_TRY(status);
  PITH_REQUIRE(code == UCS_OK, PITH_ERR_UNSUPPORTED, "ucx: UCX cannot start%s%s: %s", interface ? " on " : "",
               interface ? interface : "", ucs_status_string(code));
  return PITH_OK;
}

static pith_status open_worker(ucx_transport *t) {
  const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                      .thread_mode = UCS_THREAD_MODE_SERIALIZED};
  const ucp_am_handler_param_t handler = {
      .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                    UCP_AM_HANDLER_PARAM_FIELD_ARG,
      .id = MESSAGE_ID,
      .flags = UCP_AM_FLAG_PERSISTENT_DATA,
      .cb = pith__ucx_on_message,
      .arg = t,
  };
  UCX_TRY(ucp_worker_create(t->context, &params, &t->worker));
  UCX_TRY(ucp_worker_set_am_recv_handler(t->worker, &handler));
  UCX_TRY(ucp_worker_get_efd(t->worker, &t->fd));
  return PITH_OK;
}

static pith_status write_address(const ucx_transport *t, pith_address *address) {
  ucp_address_t *bytes;
  size_t size;
  ucx_place place = {.magic = MAGIC, .token = t->token, .process = pith__ucx_this_process()};
  UCX_TRY(ucp_worker_get_address(t->worker, &bytes, &size));
  int fits = size <= sizeof address->data - sizeof place;
  *address = (pith_address){.size = 0};
  if (fits) {
    memcpy(address->data + sizeof place, bytes, size);
    place.size = (uint32_t)size;
    place.checksum = checksum(&place, sizeof place, checksum(bytes, size, 0));
    memcpy(address->data, &place, sizeof place);
    address->size = (uint32_t)(sizeof place + size);
  }
  ucp_worker_release_address(t->worker, bytes);
  PITH_REQUIRE(
      fits, PITH_ERR_UNSUPPORTED,
      "ucx: the address of this rank has %zu bytes, of at most %zu: choose fewer networks with UCX_NET_DEVICES "
      "or UCX_TLS",
      size, sizeof address->data - sizeof place);
  return PITH_OK;
}

static void release(ucx_transport *t) {
  if (t->worker) {
    ucp_worker_destroy(t->worker);
  }
  if (t->context) {
    ucp_cleanup(t->context);
  }
  for (int i = 0; i < t->peer_count; i++) {
    if (t->peers[i]->process >= 0) {
      close(t->peers[i]->process);
    }
    free(t->peers[i]);
  }
  free(t->wanted);
  free(t->greeted);
  free(t->peers);
  free(t->linked);
  while (t->all) {
    ucx_out *next = t->all->next_of_all;
    free(t->all);
    t->all = next;
  }
  pthread_cond_destroy(&t->flying);
  pthread_mutex_destroy(&t->mutex);
  free(t);
}

static pith_status open_all(ucx_transport *t, const char *interface, pith_address *address) {
  PITH_TRY(open_context(interface, t->ranks, &t->context));
  PITH_TRY(open_worker(t));
  PITH_REQUIRE(getrandom(&t->token, sizeof t->token, 0) == sizeof t->token, PITH_ERR_SYSTEM, "ucx: no random numbers");
  PITH_TRY(write_address(t, address));
  PITH_REQUIRE(pthread_create(&t->progress_thread, NULL, pith__ucx_run_progress, t) == 0, PITH_ERR_SYSTEM,
               "ucx: cannot start a thread");
  return PITH_OK;
}

static pith_status ucx_listen(const pith_transport_config *config, pith_transport **transport, pith_address *address) {
  ucx_transport *t = calloc(1, sizeof *t + (size_t)config->ranks * sizeof *t->peer);
  PITH_REQUIRE(t, PITH_ERR_MEMORY, "ucx: no memory for %d peers", config->ranks);
  t->base.ops = &ops;
  t->rank = config->rank;
  t->ranks = config->ranks;
  t->timeout = config->timeout;
  t->owner = getpid();
  t->wanted = calloc((size_t)t->ranks, 1);
  t->greeted = calloc((size_t)t->ranks, 1);
  t->peers = calloc((size_t)t->ranks, sizeof *t->peers);
  t->linked = calloc((size_t)t->ranks, sizeof *t->linked);
  pthread_mutex_init(&t->mutex, NULL);
  pthread_cond_init(&t->flying, NULL);
  pith_status status = t->wanted && t->greeted && t->peers && t->linked
                           ? open_all(t, config->interface, address)
                           : pith_fail(PITH_ERR_MEMORY, "ucx: no memory for %d peers", config->ranks);
  if (status != PITH_OK) {
    release(t);
    return status;
  }
  *transport = &t->base;
  return PITH_OK;
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static void on_error(void *argument, ucp_ep_h ep, ucs_status_t status) {
  ucx_peer *peer = argument;
  (void)ep;
  peer->error = peer->error == UCS_OK ? status : peer->error;
}

/* Makes an endpoint for a peer and says hello, unless that is done. */
static pith_status reach(ucx_transport *t, int rank) {
  pith_address address;
  ucx_place place;
  if (t->peer[rank]) {
    return PITH_OK;
  }
  PITH_TRY(pith__directory_find(&t->directory, rank, &address));
  PITH_REQUIRE(address.size >= sizeof place && address.size <= sizeof address.data, PITH_ERR_PEER,
               "ucx: the address of rank %d is not one of UCX", rank);
  memcpy(&place, address.data, sizeof place);
  const uint8_t *bytes = address.data + sizeof place;
  uint32_t wanted = place.checksum;
  place.checksum = 0;
  PITH_REQUIRE(memcmp(place.magic, MAGIC, sizeof place.magic) == 0 && place.size == address.size - sizeof place &&
                   wanted == checksum(&place, sizeof place, checksum(bytes, place.size, 0)),
               PITH_ERR_PEER, "ucx: the address of rank %d is not one of UCX", rank);
  ucx_peer *peer = calloc(1, sizeof *peer);
  PITH_REQUIRE(peer, PITH_ERR_MEMORY, "ucx: no memory for a link with rank %d", rank);
  peer->rank = rank;
  peer->process = pith__ucx_watch(&place.process);
  peer->near = peer->process >= 0 && has_shared_memory();
  peer->token = place.token ^ t->job;
  t->peers[t->peer_count++] = peer;
  const ucp_ep_params_t params = {
      .field_mask =
          UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
      .address = (const ucp_address_t *)(const void *)bytes,
      .err_mode = UCP_ERR_HANDLING_MODE_PEER,
      .err_handler = {on_error, peer},
  };
  pith__ucx_look_after(t, 1);
  PITH_REQUIRE(peer->error == UCS_OK, PITH_ERR_PEER, "ucx: rank %d is gone: its process has ended", rank);
  ucs_status_t code = ucp_ep_create(t->worker, &params, &peer->ep);
  PITH_REQUIRE(code == UCS_OK, PITH_ERR_PEER, "ucx: rank %d cannot be reached: %s", rank, ucs_status_string(code));
  t->peer[rank] = peer;
  peer->came[KIND_HELLO] = t->greeted[rank];
  pith__ucx_say(t, peer, KIND_HELLO);
  return PITH_OK;
}

/* Three rounds: hello, heard, ready. UCX itself makes a link in steps, whose messages go before ours; meanwhile bytes
 * that it took already wait. After three rounds it is done, and both sides may be silent for long. */
static int shake_hands(ucx_transport *t, ucx_peer *peer) {
  if (peer->came[KIND_HELLO] && !peer->answered) {
    pith__ucx_say(t, peer, KIND_HEARD);
    peer->answered = 1;
  }
  if (peer->came[KIND_HEARD] && peer->answered && !peer->said_ready) {
    pith__ucx_say(t, peer, KIND_READY);
    peer->said_ready = 1;
  }
  return peer->said_ready && peer->came[KIND_READY];
}

/* Answers peers that said hello first, and goes on with all handshakes. */
static pith_status shake_hands_with_all(ucx_transport *t) {
  pith__ucx_look_after(t, 1); /* at every turn: UCX itself is not at its best when a peer dies now */
  if (!t->asleep) {           /* else UCX wakes who sleeps, and would not if its messages were taken away */
    progress(t);
  }
  for (int p = 0; p < t->ranks; p++) {
    PITH_TRY(t->greeted[p] ? reach(t, p) : PITH_OK);
  }
  for (int i = 0; i < t->peer_count; i++) {
    ucx_peer *peer = t->peers[i];
    if (peer->linked) {
      continue;
    }
    if (shake_hands(t, peer)) {
      peer->linked = 1;
      t->linked[t->linked_count++] = peer->rank;
      t->later -= t->wanted[peer->rank] == PITH_LINK_LATER;
    } else if (peer->ended || is_dead(peer)) {
      return pith__ucx_gone(peer, peer->rank);
    }
  }
  return PITH_OK;
}

/* A rank with which connect wants a link and has none yet, or -1. */
static int find_missing(const ucx_transport *t) {
  for (int i = 0; i < t->peer_count; i++) {
    if (!t->peers[i]->linked && t->wanted[t->peers[i]->rank] == PITH_LINK_NOW) {
      return t->peers[i]->rank;
    }
  }
  return -1;
}

static pith_status connect_locked(ucx_transport *t) {
  double end = pith__now() + pith__connect_seconds(&t->base, t->timeout);
  for (int p = 0; p < t->ranks; p++) {
    PITH_TRY(t->wanted[p] == PITH_LINK_NOW ? reach(t, p) : PITH_OK);
    t->later += t->wanted[p] == PITH_LINK_LATER;
  }
  PITH_TRY(shake_hands_with_all(t));
  while (find_missing(t) >= 0 || t->in_flight > 0) {
    PITH_REQUIRE(find_missing(t) < 0 || pith__now() < end, PITH_ERR_TIMEOUT, "ucx: rank %d did not connect within %g s",
                 find_missing(t), t->timeout);
    PITH_REQUIRE(pith__now() < end + LINGER, PITH_ERR_TIMEOUT, "ucx: the links were not established within %g s",
                 t->timeout);
    breathe(t);
    PITH_TRY(shake_hands_with_all(t));
  }
  t->base.is_open = t->later > 0;
  return PITH_OK;
}

static pith_status ucx_connect(pith_transport *transport, const pith_directory *directory, const uint8_t *wanted,
                               const pith_link_key *key) {
  ucx_transport *t = ucx_of(transport);
  lock(t);
  t->job = key->job;
  t->directory = *directory;
  memcpy(t->wanted, wanted, (size_t)t->ranks);
  t->wanted[t->rank] = PITH_LINK_NEVER;
  pith_status status = connect_locked(t);
  unlock(t);
  return status;
}

/* ---- Links that are made later ----------------------------------------------------------------------------------- */

static pith_status ucx_ask(pith_transport *transport, int rank) {
  ucx_transport *t = ucx_of(transport);
  lock(t);
  pith_status status = t->wanted[rank] == PITH_LINK_LATER ? reach(t, rank) : PITH_OK;
  unlock(t);
  return status;
}

static pith_status ucx_attend(pith_transport *transport) {
  ucx_transport *t = ucx_of(transport);
  lock(t);
  pith_status status = shake_hands_with_all(t);
  t->base.is_open = t->later > 0;
  unlock(t);
  return status;
}

static int ucx_next_linked(pith_transport *transport) {
  ucx_transport *t = ucx_of(transport);
  return t->told < t->linked_count ? t->linked[t->told++] : -1;
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

/* Whether bytes for a peer that still listens are on their way. What comes meanwhile is dropped, lest it wait for us.
 */
static int is_flying(ucx_transport *t) {
  progress(t);
  pith__ucx_drop(t);
  return t->in_flight > 0;
}

static void drop_pieces(ucx_transport *t) {
  for (int p = 0; p < t->peer_count; p++) {
    for (unsigned i = 0; i < WINDOW_NEAR; i++) {
      if (t->peers[p]->in[i].data) {
        ucp_am_data_release(t->worker, t->peers[p]->in[i].data);
        t->peers[p]->in[i].data = NULL;
      }
    }
  }
}

/* Closes an endpoint: in order, which waits for its bytes, or by force, which drops them. */
static void close_endpoint(ucx_transport *t, ucx_peer *peer, int force) {
  const ucp_request_param_t param = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                     .flags = force ? UCP_EP_CLOSE_FLAG_FORCE : 0};
  ucs_status_ptr_t request = peer->ep ? ucp_ep_close_nbx(peer->ep, &param) : NULL;
  peer->ep = NULL;
  if (!UCS_PTR_IS_PTR(request)) {
    return;
  }
  for (double end = pith__now() + LINGER; ucp_request_check_status(request) == UCS_INPROGRESS && pith__now() < end;) {
    ucp_worker_progress(t->worker);
    breathe(t);
  }
  ucp_request_free(request);
}

/* The dead first: nobody waits for what was meant for them. */
static void close_links(ucx_transport *t) {
  double end = pith__now() + LINGER;
  for (int i = 0; i < t->peer_count; i++) {
    ucx_peer *peer = t->peers[i];
    if (is_dead(peer)) {
      close_endpoint(t, peer, 1);
    } else if (peer->ep && !peer->ended) {
      pith__ucx_say(t, peer, KIND_END);
    }
  }
  while (is_flying(t) && pith__now() < end) {
    breathe(t);
  }
  for (int i = 0; i < t->peer_count; i++) {
    close_endpoint(t, t->peers[i], is_dead(t->peers[i]) || pith__now() > end);
  }
}

static void ucx_close(pith_transport *transport) {
  ucx_transport *t = ucx_of(transport);
  if (!t || t->owner != getpid()) {
    return; /* in a forked child UCX cannot be used, not even to leave */
  }
  lock(t);
  close_links(t);
  t->closing = 1;
  pthread_cond_signal(&t->flying);
  unlock(t);
  pthread_join(t->progress_thread, NULL);
  drop_pieces(t);
  release(t);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static pith_status ucx_probe(void) {
  ucp_context_h context = NULL;
  PITH_TRY(open_context(NULL, 1, &context));
  ucp_cleanup(context);
  return PITH_OK;
}

static const pith_transport_ops ops = {
    .name = "ucx",
    .summary = "active messages of UCX: InfiniBand, RoCE and other fast networks, without mpirun",
    .probe = ucx_probe,
    .listen = ucx_listen,
    .connect = ucx_connect,
    .ask = ucx_ask,
    .attend = ucx_attend,
    .next_linked = ucx_next_linked,
    .send = pith__ucx_send,
    .receive = pith__ucx_receive,
    .descriptors = pith__ucx_descriptors,
    .sleep = pith__ucx_sleep,
    .close = ucx_close,
};

__attribute__((visibility("default"))) const pith_transport_module *pith_transport_module_entry(
    const pith_transport_host *from);

const pith_transport_module *pith_transport_module_entry(const pith_transport_host *from) {
  static const pith_transport_module module = {PITH_TRANSPORT_ABI, sizeof(pith_transport_ops), &ops};
  pith__ucx_host = from;
  return &module;
}
