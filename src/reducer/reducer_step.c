/*
 * A step of the reducer over a comm.
 *
 * Large layers become an operation each, at once, so that they travel while the next gradients are computed. Small
 * ones, and all that are sent in rounds, are joined: uncompressed layers of one type, or layers of one codec. A joint
 * leaves when enough is on board, when it is flushed, or at the end of the step.
 */
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "comm/submit.h"
#include "reducer/reducer.h"

#define JOIN_MOST ((size_t)64 << 10)         /* layers up to this many bytes are joined … */
#define JOINT_BYTES ((size_t)1 << 20)        /* … until they are this many */
#define ROUNDS_JOINT_BYTES ((size_t)8 << 20) /* of gradients whose factors are sent together */

/* ---- Flights ----------------------------------------------------------------------------------------------------- */

static void release_flight(pith_flight *f) {
  free(f->layer);
  free(f->gradient);
  free(f->member);
  free(f->buffer);
  *f = (pith_flight){0};
}

void pith__reducer_drop_flights(pith_reducer *r) {
  for (size_t i = 0; i < r->flight_count; i++) {
    if (r->flights[i].request) {
      pith_wait(r->flights[i].request); /* tensors are lent until then, whatever comes of it */
    }
    release_flight(&r->flights[i]);
  }
  for (size_t i = 0; i < r->open_count; i++) {
    release_flight(&r->open[i]);
  }
  free(r->flights);
}

static const pith_codec *codec_of(const pith_named *l) {
  return strcmp(l->match.codec->spec, "none") == 0 ? NULL : l->match.codec;
}

static int takes_rounds(const pith_codec *codec) { return codec && (codec->caps & PITH_CAP_ROUNDS); }

/* ---- On board ---------------------------------------------------------------------------------------------------- */

/* Whether a layer's last block, however short, fits into the bytes of a full one. */
static int fits_granules(const pith_codec *codec) {
  const uint32_t fixed_blocks = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  return (codec->caps & fixed_blocks) == fixed_blocks &&
         pith_codec_bound(codec, codec->granule - 1) <= pith_codec_bound(codec, codec->granule);
}

/* Joined where a message would cost more than the layer, and where all that is joined can be told apart again. */
static int is_joined(const pith_reducer *r, const pith_named *l) {
  const pith_codec *codec = codec_of(l);
  int joinable = !codec || takes_rounds(codec) || fits_granules(codec);
  return joinable && r->ranks > 1 && (takes_rounds(codec) || pith__layer_bytes(l) <= JOIN_MOST);
}

static int is_same_kind(const pith_flight *f, const pith_codec *codec, pith_dtype dtype) {
  int same_codec = f->codec && codec ? f->codec->fingerprint == codec->fingerprint : f->codec == codec;
  return same_codec && f->dtype == dtype;
}

/* Where the next layer starts, in values. */
static size_t next_start(const pith_flight *f) {
  size_t granule = f->codec && f->codec->granule ? f->codec->granule : 1;
  return (f->n + granule - 1) / granule * granule;
}

static pith_status make_room(pith_flight *f) {
  size_t room = f->room;
  if (f->count < room) {
    return PITH_OK;
  }
  PITH_TRY(pith__reducer_grow((void **)&f->layer, &room, f->count, sizeof *f->layer));
  room = f->room;
  PITH_TRY(pith__reducer_grow((void **)&f->gradient, &room, f->count, sizeof *f->gradient));
  room = f->room;
  PITH_TRY(pith__reducer_grow((void **)&f->member, &room, f->count, sizeof *f->member));
  f->room = room;
  return PITH_OK;
}

static pith_status make_buffer(pith_flight *f) {
  if (f->buffer || f->codec) {
    return PITH_OK;
  }
  f->buffer = malloc(JOINT_BYTES);
  PITH_REQUIRE(f->buffer, PITH_ERR_MEMORY, "no memory to join layers");
  return PITH_OK;
}

static pith_status board(const pith_reducer *r, pith_flight *f, size_t index, void *gradient) {
  const pith_named *l = &r->layers[index];
  size_t start = next_start(f), width = pith_dtype_size(l->dtype);
  PITH_TRY(make_room(f));
  PITH_TRY(make_buffer(f));
  f->layer[f->count] = index;
  f->gradient[f->count] = gradient;
  f->member[f->count++] = (pith_member){start, l->n, l->number, l->state, gradient, 0};
  if (f->buffer) {
    memcpy(f->buffer + start * width, gradient, l->n * width);
  }
  f->n = start + l->n;
  f->bytes += l->n * width;
  return PITH_OK;
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

static pith_call call_for(const pith_reducer *r, const pith_codec *codec) {
  pith_call call = PITH_CALL_INIT;
  call.codec = codec;
  call.seed = r->seed;
  call.step = r->step;
  return call;
}

static pith_status send_joint(const pith_reducer *r, pith_flight *f) {
  pith_span span = {f->buffer, f->n, f->dtype};
  pith_call call = call_for(r, f->codec);
  return pith__allreduce_joined(r->comm, span, &call, f->member, f->count, &f->request);
}

static pith_status add_flight(pith_reducer *r, pith_flight *f) {
  pith_status status = pith__reducer_grow((void **)&r->flights, &r->flight_room, r->flight_count, sizeof *r->flights);
  if (status == PITH_OK) {
    r->flights[r->flight_count++] = *f;
  } else if (f->request) {
    pith_wait(f->request);
  }
  return status;
}

/* An open joint leaves; the others close up. */
static pith_status leave(pith_reducer *r, size_t index) {
  pith_flight f = r->open[index];
  memmove(&r->open[index], &r->open[index + 1], (--r->open_count - index) * sizeof *r->open);
  pith_status status = send_joint(r, &f);
  if (status == PITH_OK) {
    status = add_flight(r, &f);
  }
  if (status != PITH_OK) {
    release_flight(&f);
  }
  return status;
}

pith_status pith__reducer_send_joints(pith_reducer *r) {
  pith_status first = PITH_OK;
  while (r->open_count) {
    pith_status status = leave(r, 0);
    first = first == PITH_OK ? status : first;
  }
  return first;
}

/* The open joint for a layer: one of its kind with room, or a new one. */
static pith_status find_joint(pith_reducer *r, const pith_named *l, size_t *index) {
  const pith_codec *codec = codec_of(l);
  size_t width = pith_dtype_size(l->dtype);
  for (*index = 0; *index < r->open_count; ++*index) {
    pith_flight *f = &r->open[*index];
    if (is_same_kind(f, codec, l->dtype)) {
      if (takes_rounds(codec) || (next_start(f) + l->n) * width <= JOINT_BYTES) {
        return PITH_OK;
      }
      PITH_TRY(leave(r, *index));
      break;
    }
  }
  if (r->open_count == PITH_OPEN_MOST) {
    PITH_TRY(leave(r, 0));
  }
  *index = r->open_count++;
  r->open[*index] = (pith_flight){.codec = codec, .dtype = l->dtype};
  return PITH_OK;
}

static pith_status join(pith_reducer *r, size_t index, void *gradient) {
  size_t at;
  PITH_TRY(find_joint(r, &r->layers[index], &at));
  PITH_TRY(board(r, &r->open[at], index, gradient));
  return takes_rounds(r->open[at].codec) && r->open[at].bytes >= ROUNDS_JOINT_BYTES ? leave(r, at) : PITH_OK;
}

static pith_status send_alone(pith_reducer *r, size_t index, void *gradient) {
  pith_named *l = &r->layers[index];
  pith_flight f = {.codec = codec_of(l), .dtype = l->dtype};
  pith_call call = call_for(r, f.codec);
  call.state = f.codec ? l->state : NULL;
  call.layer = l->number;
  pith_span span = {gradient, l->n, l->dtype};
  pith_status status = make_room(&f);
  if (status == PITH_OK) {
    f.layer[0] = index;
    f.gradient[0] = gradient;
    f.count = 1;
    f.bytes = pith__layer_bytes(l);
    status = pith_allreduce(r->comm, (pith_cspan){gradient, l->n, l->dtype}, span, PITH_MEAN, &call, &f.request);
  }
  if (status == PITH_OK) {
    status = add_flight(r, &f);
  }
  if (status != PITH_OK) {
    release_flight(&f);
  }
  return status;
}

pith_status pith__reducer_send(pith_reducer *r, size_t index, void *gradient) {
  return is_joined(r, &r->layers[index]) ? join(r, index, gradient) : send_alone(r, index, gradient);
}

/* ---- Arriving ---------------------------------------------------------------------------------------------------- */

static void hand_back(const pith_reducer *r, const pith_flight *f) {
  for (size_t i = 0; i < f->count && f->buffer; i++) {
    const pith_named *l = &r->layers[f->layer[i]];
    memcpy(f->gradient[i], f->buffer + f->member[i].first * pith_dtype_size(l->dtype), pith__layer_bytes(l));
  }
}

/* Every layer has its share of what was moved for all of them. */
static void share_traffic(pith_reducer *r, const pith_flight *f, const pith_traffic *traffic) {
  for (size_t i = 0; i < f->count; i++) {
    pith_named *l = &r->layers[f->layer[i]];
    pith__traffic_add(&l->traffic, traffic, f->bytes ? (double)pith__layer_bytes(l) / (double)f->bytes : 0);
  }
}

pith_status pith__reducer_arrive(pith_reducer *r) {
  pith_status first = PITH_OK;
  for (size_t i = 0; i < r->flight_count; i++) {
    pith_flight *f = &r->flights[i];
    pith_traffic traffic = {0};
    pith_status status = pith__wait(f->request, &traffic, NULL);
    if (status == PITH_OK) {
      hand_back(r, f);
      share_traffic(r, f, &traffic);
    }
    first = first == PITH_OK ? status : first;
    release_flight(f);
  }
  r->flight_count = 0;
  return first;
}
