/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state object: buffers of one layer on one rank, and their checkpoint. docs/format.md has the bytes of a saved
 * state; loading checks all of them before anything changes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/saturate.h"
#include "memory/memory.h"

#define STATE_MAGIC 0x54534850u /* "PHST" */

enum { WITHOUT_OWNER = 2, WITH_OWNER = 3, PACKED = 4 }; /* versions */

typedef struct state_header {
  uint32_t magic, version;
  uint64_t n, rows, part_size, result_first, result_n, checksum; /* of all that follows the header */
  uint32_t keeps;
  uint16_t rank, ranks; /* of the owner; 0 of 0 if no comm has used the state */
} state_header;

_Static_assert(sizeof(state_header) == 64, "the header has no holes");

/* Follows the header from version 4 on, which is for residuals in fewer bits than 32. */
typedef struct store_header {
  uint64_t changes;
  uint32_t store, unused;
} store_header;

_Static_assert(sizeof(store_header) == 16, "the header has no holes");

static unsigned keeps_of(const pith_codec *codec) { return codec->memory ? codec->memory->keeps : 0; }

static size_t part_size_of(const pith_codec *codec, size_t n, uint64_t rows) {
  return codec->ops->part_size ? codec->ops->part_size(codec->args, n, rows) : 0;
}

static pith_status make_values(pith_space *space, pith_store store, size_t n, void **out) {
  PITH_REQUIRE(n <= SIZE_MAX / sizeof(float), PITH_ERR_RANGE, "a state of %zu values is too large", n);
  return pith__space_zeros(space, pith__store_size(store, n), out);
}

static void release(pith_state *state) {
  if (state->lent) {
    return;
  }
  pith__space_release(state->space, state->residual);
  pith__space_release(state->space, state->momentum);
  pith__space_release(state->space, state->result);
  pith__space_release(state->space, state->part);
}

/* What a state is without its arrays. */
static pith_status describe(pith_space *space, const pith_codec *codec, size_t n, uint64_t rows, pith_state *state) {
  *state =
      (pith_state){.space = space, .n = n, .rows = rows, .keeps = keeps_of(codec), .store = pith__codec_store(codec)};
  state->part_size = part_size_of(codec, n, rows);
  state->nested = codec->traits->nested;
  state->columns = state->nested ? state->nested->columns(codec->args, n, rows) : 0;
  PITH_REQUIRE(state->part_size < SIZE_MAX, PITH_ERR_MEMORY, "no memory for the state of %s", codec->spec);
  return PITH_OK;
}

static pith_status fill(pith_space *space, const pith_codec *codec, size_t n, uint64_t rows, pith_state *state) {
  void *momentum = NULL;
  PITH_TRY(describe(space, codec, n, rows, state));
  if (state->keeps & PITH_KEEPS_RESIDUAL) {
    PITH_TRY(make_values(space, state->store, n, &state->residual));
  }
  if (state->keeps & PITH_KEEPS_MOMENTUM) {
    PITH_TRY(make_values(space, PITH_STORE_F32, n, &momentum));
  }
  state->momentum = momentum;
  return state->part_size ? pith__space_zeros(space, state->part_size, &state->part) : PITH_OK;
}

pith_status pith_state_create(const pith_codec *codec, size_t n, size_t rows, pith_state **state) {
  return pith__state_create_in(NULL, codec, n, rows, 0, state);
}

static pith_status create(pith_space *space, const pith_codec *codec, size_t n, size_t rows, int rank, int lent,
                          pith_state **state) {
  PITH_REQUIRE(codec && state, PITH_ERR_ARGUMENT, "pith_state_create: codec and state must not be NULL");
  PITH_REQUIRE(rows <= n, PITH_ERR_ARGUMENT, "a layer of %zu values cannot have %zu rows", n, rows);
  pith_state *made = malloc(sizeof *made);
  PITH_REQUIRE(made, PITH_ERR_MEMORY, "no memory for a state");
  pith_status status = (lent ? describe : fill)(space, codec, n, rows, made);
  made->lent = lent;
  if (status != PITH_OK) {
    pith_state_destroy(made);
    return status;
  }
  made->draws_as = rank;
  *state = made;
  return PITH_OK;
}

pith_status pith__state_create_in(pith_space *space, const pith_codec *codec, size_t n, size_t rows, int rank,
                                  pith_state **state) {
  return create(space, codec, n, rows, rank, 0, state);
}

pith_status pith__state_create_lent(pith_space *space, const pith_codec *codec, size_t n, size_t rows, int rank,
                                    pith_state **state) {
  return create(space, codec, n, rows, rank, 1, state);
}

void pith_state_destroy(pith_state *state) {
  if (state) {
    release(state);
    free(state);
  }
}

/* ---- Changes between steps --------------------------------------------------------------------------------------- */

/* Nothing is drawn for f32. */
pith_key pith__state_key(pith_state *state) {
  return state->store == PITH_STORE_F32
             ? (pith_key){0, 0}
             : pith__rng_key_of(0, state->changes++, 0, (uint64_t)state->draws_as, PITH_DOMAIN_STORE, 1);
}

/* n values, from one of a state's to another's or in place; `index` is the place of the first in the layer. */
static pith_status repack(const void *from, pith_store from_store, pith_state *state, void *to, size_t index, size_t n,
                          float factor, int add) {
  pith_key key = pith__state_key(state);
  return pith__space_repack(state->space, &(pith_repack_task){.from = from,
                                                              .to = to,
                                                              .n = n,
                                                              .index = (uint32_t)index,
                                                              .key0 = key.k0,
                                                              .key1 = key.k1,
                                                              .factor = factor,
                                                              .from_store = (uint8_t)from_store,
                                                              .to_store = (uint8_t)state->store,
                                                              .add = add != 0});
}

static void *results_of(const pith_state *state) {
  return pith__store_at(state->store, state->result, state->result_first - state->result_base);
}

pith_status pith_state_scale_residual(pith_state *state, float factor) {
  PITH_REQUIRE(state, PITH_ERR_ARGUMENT, "pith_state_scale: state must not be NULL");
  PITH_REQUIRE(isfinite(factor) && factor > 0, PITH_ERR_ARGUMENT, "a state cannot be scaled by %g", (double)factor);
  void *residual = state->residual, *results = results_of(state);
  PITH_TRY(residual ? repack(residual, state->store, state, residual, 0, state->n, factor, 0) : PITH_OK);
  return results ? repack(results, state->store, state, results, state->result_first, state->result_n, factor, 0)
                 : PITH_OK;
}

pith_status pith_state_scale(pith_state *state, float factor) {
  PITH_TRY(pith_state_scale_residual(state, factor));
  return state->momentum ? pith__space_scale(state->space, factor, state->momentum, state->n) : PITH_OK;
}

pith_status pith__state_add_residual(pith_state *state, const float *x) {
  return repack(x, PITH_STORE_F32, state, state->residual, 0, state->n, 1.0f, 1);
}

pith_status pith__state_take_residual(const pith_state *state, float results, float *to) {
  pith_state wide = {.space = state->space, .store = PITH_STORE_F32};
  PITH_TRY(repack(state->residual, state->store, &wide, to, 0, state->n, 1.0f, 1));
  return state->result_n
             ? repack(results_of(state), state->store, &wide, to + state->result_first, 0, state->result_n, results, 1)
             : PITH_OK;
}

const float *pith_state_residual(const pith_state *state) {
  return state && state->store == PITH_STORE_F32 ? state->residual : NULL;
}

size_t pith_state_copy_residual(const pith_state *state, float *to) {
  if (!state || !state->residual || !to) {
    return 0;
  }
  pith__store_widen(state->store, state->residual, state->n, to);
  return state->n;
}

size_t pith_codec_residual_size(const pith_codec *codec, size_t n) {
  return codec && keeps_of(codec) & PITH_KEEPS_RESIDUAL ? pith__store_size(pith__codec_store(codec), n) : 0;
}

/* ---- Another codec ----------------------------------------------------------------------------------------------- */

static void exchange(void **a, void **b) {
  void *kept = *a;
  *a = *b;
  *b = kept;
}

/* Into another store, by way of f32, since results need not begin with a block of that. */
static pith_status repack_results(const pith_state *state, pith_state *next) {
  size_t first = state->result_first / PITH_STORE_BLOCK * PITH_STORE_BLOCK, skipped = state->result_first - first,
         n = skipped + state->result_n, base = state->space ? first : 0;
  pith_state wide = {.space = state->space, .store = PITH_STORE_F32};
  PITH_TRY(make_values(state->space, PITH_STORE_F32, n, &wide.residual));
  pith_status status =
      repack(results_of(state), state->store, &wide, (float *)wide.residual + skipped, 0, state->result_n, 1.0f, 0);
  if (status == PITH_OK) {
    status = make_values(state->space, next->store, state->space ? n : state->n, &next->result);
  }
  next->result_first = first;
  next->result_n = n;
  next->result_base = base;
  if (status == PITH_OK) {
    status = repack(wide.residual, PITH_STORE_F32, next, results_of(next), first, n, 1.0f, 0);
  }
  release(&wide);
  return status;
}

/* What both keep as a residual goes into the store of the next. Can fail, and leaves the state as it was. */
static pith_status convert_residuals(const pith_state *state, pith_state *next) {
  if (!state->residual || !next->residual || state->store == next->store) {
    return PITH_OK;
  }
  PITH_TRY(repack(state->residual, state->store, next, next->residual, 0, state->n, 1.0f, 0));
  return state->result_n ? repack_results(state, next) : PITH_OK;
}

/* What both keep in the same way changes hands. */
static void hand_over(pith_state *state, pith_state *next) {
  if (state->residual && next->residual && state->store == next->store) {
    exchange(&state->residual, &next->residual);
    exchange(&state->result, &next->result);
    next->result_first = state->result_first;
    next->result_n = state->result_n;
    next->result_base = state->result_base;
  }
  if (state->momentum && next->momentum) {
    float *fresh = next->momentum;
    next->momentum = state->momentum;
    state->momentum = fresh;
  }
}

/* Low rank of another rank goes on with the columns that both have; new ones are zero, and the codec draws them. */
static pith_status keep_columns(const pith_state *state, pith_state *next) {
  size_t both = state->columns < next->columns ? state->columns : next->columns;
  return state->nested == next->nested ? pith__space_copy(state->space, next->part, state->part, both) : PITH_OK;
}

pith_status pith_state_adapt(pith_state *state, const pith_codec *codec) {
  PITH_REQUIRE(state && codec, PITH_ERR_ARGUMENT, "pith_state_adapt: state and codec must not be NULL");
  pith_state next;
  pith_status status = fill(state->space, codec, state->n, state->rows, &next);
  next.rank = state->rank;
  next.ranks = state->ranks;
  next.loaded = state->loaded;
  next.draws_as = state->draws_as;
  next.changes = next.store == PITH_STORE_F32 ? 0 : state->changes;
  if (status == PITH_OK) {
    status = keep_columns(state, &next);
  }
  if (status == PITH_OK) {
    status = convert_residuals(state, &next);
  }
  if (status != PITH_OK) {
    release(&next);
    return status;
  }
  hand_over(state, &next);
  release(state);
  *state = next;
  return PITH_OK;
}

/* ---- Arrays of the caller ---------------------------------------------------------------------------------------- */

void pith__state_array_sizes(const pith_codec *codec, const pith_state *state, size_t bytes[PITH_STATE_ARRAYS]) {
  size_t values = pith__store_size(state->store, state->n), floats = pith__store_size(PITH_STORE_F32, state->n);
  bytes[PITH_STATE_RESIDUAL] = state->keeps & PITH_KEEPS_RESIDUAL ? values : 0;
  bytes[PITH_STATE_MOMENTUM] = state->keeps & PITH_KEEPS_MOMENTUM ? floats : 0;
  bytes[PITH_STATE_RESULT] = pith__memory_keeps_results(codec, state) ? values : 0;
  bytes[PITH_STATE_CODEC] = state->part_size;
}

/* Results have room for the whole layer: which of them this rank encodes is found when they are. */
void pith__state_lend(pith_state *state, void *const arrays[PITH_STATE_ARRAYS]) {
  static void *const none[PITH_STATE_ARRAYS];
  void *const *from = arrays ? arrays : none;
  state->residual = from[PITH_STATE_RESIDUAL];
  state->momentum = from[PITH_STATE_MOMENTUM];
  state->result = from[PITH_STATE_RESULT];
  state->result_first = state->result_base = 0;
  state->result_n = state->result ? state->n : 0;
  state->part = from[PITH_STATE_CODEC];
  state->round = 0;
  state->produced = 0;
}

/* ---- Owners ------------------------------------------------------------------------------------------------------ */

pith_status pith__check_owner(const char *what, uint32_t saved_rank, uint32_t saved_ranks, uint32_t rank,
                              uint32_t ranks) {
  PITH_REQUIRE(saved_ranks == ranks, PITH_ERR_STATE,
               "%s was saved by rank %u of %u, and this is rank %u of %u: with another number of ranks, go on without "
               "it; residuals then start at zero",
               what, saved_rank, saved_ranks, rank, ranks);
  PITH_REQUIRE(saved_rank == rank, PITH_ERR_STATE,
               "%s was saved by rank %u of %u, and this is rank %u: residuals differ from rank to rank, so each rank "
               "loads what it saved itself",
               what, saved_rank, saved_ranks, rank);
  return PITH_OK;
}

pith_status pith__state_claim(pith_state *state, int rank, int ranks) {
  if (state->loaded && state->ranks) {
    PITH_TRY(pith__check_owner("the state", state->rank, state->ranks, (uint32_t)rank, (uint32_t)ranks));
  }
  state->rank = (uint16_t)rank;
  state->ranks = (uint16_t)ranks;
  state->loaded = 0;
  return PITH_OK;
}

/* Room for exactly these, with what is known of them: memory of a device is dear. */
static pith_status move_results(pith_state *state, size_t first, size_t n) {
  void *fresh = NULL;
  size_t end = state->result_first + state->result_n, from = first > state->result_first ? first : state->result_first,
         to = first + n < end ? first + n : end;
  PITH_TRY(make_values(state->space, state->store, n, &fresh));
  if (state->result && to > from) {
    pith_status status = pith__space_copy(state->space, pith__store_at(state->store, fresh, from - first),
                                          pith__store_at(state->store, state->result, from - state->result_base),
                                          pith__store_size(state->store, to - from));
    if (status != PITH_OK) {
      pith__space_release(state->space, fresh);
      return status;
    }
  }
  pith__space_release(state->space, state->result);
  state->result = fresh;
  state->result_first = state->result_base = first;
  state->result_n = n;
  return PITH_OK;
}

pith_status pith__state_own_results(pith_state *state, size_t first, size_t n) {
  size_t end = state->result_first + state->result_n;
  if (state->result && first >= state->result_first && first + n <= end) {
    return PITH_OK; /* nothing is written: threads may ask for their parts of what one has asked for */
  }
  if (state->space) {
    return move_results(state, first, n);
  }
  if (!state->result) {
    PITH_TRY(make_values(NULL, state->store, state->n, &state->result)); /* pages never touched cost nothing */
    end = first;
    state->result_first = first;
  }
  state->result_first = first < state->result_first ? first : state->result_first;
  end = first + n > end ? first + n : end;
  state->result_n = end - state->result_first;
  return PITH_OK;
}

pith_status pith__state_fits(const pith_codec *codec, const pith_state *state, size_t n, const pith_ctx *ctx) {
  if (!state) {
    PITH_REQUIRE(!codec->memory, PITH_ERR_STATE, "%s has a memory and needs a state: pith_state_create()", codec->spec);
    return PITH_OK;
  }
  PITH_REQUIRE((state->keeps & keeps_of(codec)) == keeps_of(codec) &&
                   (!codec->memory || state->store == pith__codec_store(codec)) &&
                   state->part_size == part_size_of(codec, state->n, state->rows),
               PITH_ERR_STATE, "the state was made for another spec than %s: pith_state_adapt()", codec->spec);
  if (codec->caps & PITH_CAP_CHUNKED) {
    PITH_REQUIRE(ctx->offset <= state->n && n <= state->n - ctx->offset, PITH_ERR_STATE,
                 "values %llu to %llu are not in a state of %zu values", (unsigned long long)ctx->offset,
                 (unsigned long long)(ctx->offset + n), state->n);
  } else {
    PITH_REQUIRE(ctx->offset == 0 && n == state->n, PITH_ERR_STATE, "the state is for %zu values, not %zu", state->n,
                 n);
  }
  return PITH_OK;
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

#define PIECES_MOST 4

/* The buffers in the order in which they are saved. */
static size_t pieces_of(const pith_state *state, pith_span piece[PIECES_MOST]) {
  size_t count = 0;
  if (state->residual) {
    piece[count++] = (pith_span){state->residual, pith__store_size(state->store, state->n), PITH_I8};
  }
  if (state->momentum) {
    piece[count++] = (pith_span){state->momentum, state->n * sizeof(float), PITH_I8};
  }
  if (state->result_n) {
    piece[count++] = (pith_span){results_of(state), pith__store_size(state->store, state->result_n), PITH_I8};
  }
  if (state->part) {
    piece[count++] = (pith_span){state->part, state->part_size, PITH_I8};
  }
  return count;
}

static size_t head_size(const pith_state *state) {
  return sizeof(state_header) + (state->store == PITH_STORE_F32 ? 0 : sizeof(store_header));
}

size_t pith_state_save_size(const pith_state *state) {
  pith_span piece[PIECES_MOST];
  size_t size = head_size(state);
  for (size_t i = 0, count = pieces_of(state, piece); i < count; i++) {
    size = pith__sat_add(size, piece[i].n);
  }
  return size;
}

/* Of all that follows the first header, and of the owner, which that has. */
static uint64_t checksum_of(const state_header *header, const uint8_t *bytes, size_t size) {
  return pith__hash64(bytes + sizeof *header, size - sizeof *header, header->rank | (uint64_t)header->ranks << 16);
}

pith_status pith_state_save(const pith_state *state, pith_out *out) {
  PITH_REQUIRE(state && out && out->data, PITH_ERR_ARGUMENT, "pith_state_save: state and out must not be NULL");
  size_t size = pith_state_save_size(state), at = head_size(state);
  PITH_REQUIRE(out->capacity >= size, PITH_ERR_BUFFER, "the state takes %zu bytes, the buffer has %zu", size,
               out->capacity);
  uint8_t *bytes = out->data;
  pith_span piece[PIECES_MOST];
  for (size_t i = 0, count = pieces_of(state, piece); i < count; i++) {
    PITH_TRY(pith__space_copy(state->space, bytes + at, piece[i].data, piece[i].n));
    at += piece[i].n;
  }
  if (state->store != PITH_STORE_F32) {
    store_header store = {.changes = state->changes, .store = (uint32_t)state->store};
    memcpy(bytes + sizeof(state_header), &store, sizeof store);
  }
  state_header header = {.magic = STATE_MAGIC,
                         .version = state->store != PITH_STORE_F32 ? PACKED
                                    : state->ranks                 ? WITH_OWNER
                                                                   : WITHOUT_OWNER,
                         .n = state->n,
                         .rows = state->rows,
                         .part_size = state->part_size,
                         .result_first = state->result_n ? state->result_first : 0,
                         .result_n = state->result_n,
                         .keeps = state->keeps,
                         .rank = state->rank,
                         .ranks = state->ranks};
  header.checksum = checksum_of(&header, bytes, size);
  memcpy(bytes, &header, sizeof header);
  out->size = size;
  return PITH_OK;
}

/* Fresh room for the results of a saved state; those there are now are forgotten. */
static pith_status replace_results(pith_state *state, size_t first, size_t n) {
  void *fresh = NULL;
  PITH_TRY(n ? make_values(state->space, state->store, state->space ? n : state->n, &fresh) : PITH_OK);
  pith__space_release(state->space, state->result);
  state->result = fresh;
  state->result_base = state->space ? first : 0;
  state->result_first = first;
  state->result_n = n;
  return PITH_OK;
}

/* The version says that a residual is packed, and the second header how. */
static pith_status check_store(const pith_state *state, const state_header *header, pith_bytes in,
                               store_header *store) {
  *store = (store_header){0};
  if (header->version == PACKED) {
    PITH_REQUIRE(in.size >= sizeof *header + sizeof *store, PITH_ERR_CORRUPT, "the saved state ends within its head");
    memcpy(store, (const uint8_t *)in.data + sizeof *header, sizeof *store);
    PITH_REQUIRE((store->store == PITH_STORE_BF16 || store->store == PITH_STORE_8) && !store->unused, PITH_ERR_CORRUPT,
                 "the saved state is damaged: it has a residual of kind %u", store->store);
  }
  PITH_REQUIRE(store->store == (uint32_t)state->store, PITH_ERR_STATE,
               "the saved state keeps its residual in %s, and this one in %s: load it with the spec that it was saved "
               "with, then move to the other (pith_state_adapt)",
               pith__store_name((pith_store)store->store), pith__store_name(state->store));
  PITH_REQUIRE(store->store != PITH_STORE_8 || header->result_first % PITH_STORE_BLOCK == 0, PITH_ERR_CORRUPT,
               "the saved state is damaged: its results begin within a block, at value %llu",
               (unsigned long long)header->result_first);
  return PITH_OK;
}

pith_status pith_state_load(pith_state *state, pith_bytes in) {
  PITH_REQUIRE(state && in.data, PITH_ERR_ARGUMENT, "pith_state_load: state and bytes must not be NULL");
  state_header header;
  PITH_REQUIRE(in.size >= sizeof header, PITH_ERR_CORRUPT, "a saved state has at least %zu bytes, not %zu",
               sizeof header, in.size);
  memcpy(&header, in.data, sizeof header);
  PITH_REQUIRE(header.magic == STATE_MAGIC, PITH_ERR_CORRUPT, "these bytes are not a saved state");
  PITH_REQUIRE(header.version >= WITHOUT_OWNER && header.version <= PACKED, PITH_ERR_CORRUPT,
               "the state was saved by version %u of the format, and this library reads %u to %u", header.version,
               WITHOUT_OWNER, PACKED);
  int has_owner = header.version == PACKED ? header.ranks != 0 : header.version == WITH_OWNER;
  PITH_REQUIRE(has_owner ? header.rank < header.ranks : !header.rank && !header.ranks, PITH_ERR_CORRUPT,
               "the saved state is damaged: it has rank %u of %u in version %u", header.rank, header.ranks,
               header.version);
  PITH_REQUIRE(
      header.n == state->n && header.rows == state->rows && header.keeps == state->keeps &&
          header.part_size == state->part_size,
      PITH_ERR_STATE, "the saved state is for another layer or spec: %llu values in %llu rows, here %zu in %llu",
      (unsigned long long)header.n, (unsigned long long)header.rows, state->n, (unsigned long long)state->rows);
  PITH_REQUIRE(header.result_n
                   ? state->residual && header.result_n <= state->n && header.result_first <= state->n - header.result_n
                   : header.result_first == 0,
               PITH_ERR_CORRUPT, "the saved state has results %llu to %llu of %zu values",
               (unsigned long long)header.result_first, (unsigned long long)(header.result_first + header.result_n),
               state->n);
  store_header store;
  PITH_TRY(check_store(state, &header, in, &store));
  const uint8_t *bytes = in.data;
  size_t size = pith_state_save_size(state) + pith__store_size(state->store, (size_t)header.result_n) -
                pith__store_size(state->store, state->result_n);
  PITH_REQUIRE(in.size == size, PITH_ERR_CORRUPT, "the saved state has %zu bytes instead of %zu", in.size, size);
  PITH_REQUIRE(header.checksum == checksum_of(&header, bytes, in.size), PITH_ERR_CORRUPT,
               "the saved state is damaged: its checksum does not match");
  if (header.ranks && state->ranks) {
    PITH_TRY(pith__check_owner("the state", header.rank, header.ranks, state->rank, state->ranks));
  }
  PITH_TRY(replace_results(state, (size_t)header.result_first, (size_t)header.result_n));
  pith_span piece[PIECES_MOST];
  size_t at = head_size(state);
  for (size_t i = 0, count = pieces_of(state, piece); i < count; i++) {
    PITH_TRY(pith__space_copy(state->space, piece[i].data, bytes + at, piece[i].n));
    at += piece[i].n;
  }
  state->round = 0;
  state->produced = 0;
  state->changes = store.changes;
  if (header.ranks) {
    state->rank = header.rank;
    state->ranks = header.ranks;
    state->loaded = 1;
  }
  return PITH_OK;
}
