/* SPDX-License-Identifier: Apache-2.0 */
/* The payload of sparsifiers: see sparse.h. */
#include "codec/sparse.h"

#include "base/saturate.h"

/* ---- Writing --------------------------------------------------------------------------------------------------- */

size_t pith__sparse_bound(pith_value_format format, size_t n, size_t count) {
  size_t body = pith__sat_add(pith__values_size(format, count), pith__index_bound(n, count));
  return pith__sat_add(body, PITH_SPARSE_HEAD);
}

double pith__sparse_expected(pith_value_format format, size_t n, size_t count) {
  return PITH_SPARSE_HEAD + (double)pith__values_size(format, count) + pith__index_expected(n, count);
}

uint8_t *pith__sparse_put_head(uint8_t *out, pith_index_plan plan, pith_value_format format, uint64_t count) {
  uint8_t head[PITH_SPARSE_HEAD] = {(uint8_t)plan.coding, (uint8_t)format.coding, (uint8_t)plan.rice};
  uint16_t levels = (uint16_t)format.levels;
  memcpy(head + 4, &levels, sizeof levels);
  memcpy(head + 8, &count, sizeof count);
  memcpy(out, head, sizeof head);
  return out + sizeof head;
}

uint8_t *pith__sparse_put_indices(uint8_t *out, pith_index_plan plan, pith_picker *picker) {
  pith_index_writer indices;
  pith__index_writer_init(&indices, plan, out);
  pith__picker_rewind(picker);
  while (pith__picker_next(picker)) {
    pith__index_write(&indices, picker->base, picker->tile.place, picker->count);
  }
  pith__index_writer_finish(&indices);
  return out + plan.bytes;
}

size_t pith__sparse_encode(uint8_t *out, pith_value_coding coding, pith_picker *picker, size_t n) {
  pith_gaps gaps = {.count = 0};
  pith_value_writer values;
  pith__value_writer_init(&values, coding, out + PITH_SPARSE_HEAD);
  pith__picker_rewind(picker);
  while (pith__picker_next(picker)) {
    pith__values_write(&values, picker->tile.value, picker->count);
    pith__gaps_add(&gaps, picker->base, picker->tile.place, picker->count);
  }
  uint8_t *end = pith__value_writer_finish(&values);
  pith_index_plan plan = pith__index_choose(&gaps, n);
  pith__sparse_put_head(out, plan, (pith_value_format){coding, 0}, gaps.count);
  return (size_t)(pith__sparse_put_indices(end, plan, picker) - out);
}

size_t pith__sparse_encode_dense(uint8_t *out, pith_value_coding coding, pith_cspan src, float *buffer) {
  pith_value_writer values;
  pith_index_plan plan = {PITH_INDEX_DENSE, 0, 0};
  pith__value_writer_init(&values, coding, pith__sparse_put_head(out, plan, (pith_value_format){coding, 0}, src.n));
  for (size_t at = 0; at < src.n; at += PITH_TILE) {
    size_t n = pith__least(PITH_TILE, src.n - at);
    pith__values_write(&values, pith__span_load(src, at, n, buffer), n);
  }
  return (size_t)(pith__value_writer_finish(&values) - out);
}

/* ---- Checking -------------------------------------------------------------------------------------------------- */

static int read_head(const uint8_t *head, size_t n, pith_value_format format, pith_sparse *view) {
  uint16_t levels, reserved;
  uint64_t count;
  memcpy(&levels, head + 4, sizeof levels);
  memcpy(&reserved, head + 6, sizeof reserved);
  memcpy(&count, head + 8, sizeof count);
  *view = (pith_sparse){format, head[0], head[2], (size_t)count, head + PITH_SPARSE_HEAD, NULL, NULL};
  return head[1] == format.coding && head[3] == 0 && levels == format.levels && reserved == 0 && count <= n;
}

static int start_indices(const pith_sparse *view, size_t n, const uint8_t *end, pith_index_reader *r) {
  return pith__index_reader_init(r, view->index_coding, view->rice, n, view->indices, end);
}

/* Walks through all indices once: increasing, below n, as many as there should be. */
static const uint8_t *check_indices(const pith_sparse *view, size_t n, const uint8_t *end) {
  pith_index_reader r;
  uint64_t place[PITH_VALUES_BLOCK];
  if (!start_indices(view, n, end, &r)) {
    return NULL;
  }
  if (view->index_coding == PITH_INDEX_DENSE) {
    return view->count == n ? view->indices : NULL;
  }
  for (size_t left = view->count; left > 0;) {
    size_t part = pith__least(PITH_VALUES_BLOCK, left);
    if (!pith__index_read(&r, place, part)) {
      return NULL;
    }
    left -= part;
  }
  return pith__index_reader_end(&r);
}

pith_status pith__sparse_open(pith_bytes in, size_t n, pith_value_format format, pith_sparse *view) {
  PITH_REQUIRE(in.size >= PITH_SPARSE_HEAD, PITH_ERR_CORRUPT, "sparse payload of %zu bytes has no head", in.size);
  const uint8_t *start = in.data, *end = start + in.size;
  PITH_REQUIRE(read_head(start, n, format, view), PITH_ERR_CORRUPT, "head of a sparse payload does not fit %zu values",
               n);
  size_t size = pith__values_size(format, view->count);
  PITH_REQUIRE(size <= in.size - PITH_SPARSE_HEAD, PITH_ERR_CORRUPT, "sparse payload ends within its values");
  PITH_REQUIRE(pith__values_valid(format, view->values, view->count), PITH_ERR_CORRUPT,
               "sparse payload with bad values");
  view->indices = view->values + size;
  view->end = check_indices(view, n, end);
  PITH_REQUIRE(view->end, PITH_ERR_CORRUPT, "sparse payload with bad indices");
  return PITH_OK;
}

/* ---- Applying -------------------------------------------------------------------------------------------------- */

void pith__span_clear(pith_span dst) {
  if (dst.n > 0) {
    memset(dst.data, 0, dst.n * pith_dtype_size(dst.dtype));
  }
}

static void scatter_f32(float *dst, const uint64_t *place, const float *values, size_t n, pith_apply apply) {
  switch (apply) {
    case PITH_APPLY_SET:
      for (size_t i = 0; i < n; i++) {
        dst[place[i]] = values[i];
      }
      break;
    case PITH_APPLY_ADD:
      for (size_t i = 0; i < n; i++) {
        dst[place[i]] += values[i];
      }
      break;
    case PITH_APPLY_SUB:
      for (size_t i = 0; i < n; i++) {
        dst[place[i]] -= values[i];
      }
      break;
    case PITH_APPLY_CLEAR:
      for (size_t i = 0; i < n; i++) {
        dst[place[i]] = 0;
      }
      break;
  }
}

static float applied(float before, float value, pith_apply apply) {
  scatter_f32(&before, &(uint64_t){0}, &value, 1, apply);
  return before;
}

void pith__span_scatter(pith_span dst, const uint64_t *place, const float *values, size_t n, pith_apply apply) {
  if (dst.dtype == PITH_F32) {
    scatter_f32(dst.data, place, values, n, apply);
    return;
  }
  pith_cspan before = {dst.data, dst.n, dst.dtype};
  for (size_t i = 0; i < n; i++) {
    pith__span_put(dst, place[i], applied(pith__span_get(before, place[i]), values[i], apply));
  }
}

static void apply_indexed(const pith_sparse *view, pith_span dst, pith_apply apply) {
  pith_index_reader r;
  uint64_t place[PITH_VALUES_BLOCK];
  float values[PITH_VALUES_BLOCK];
  start_indices(view, dst.n, view->end, &r);
  for (size_t first = 0; first < view->count; first += PITH_VALUES_BLOCK) {
    size_t n = pith__least(PITH_VALUES_BLOCK, view->count - first);
    pith__index_read(&r, place, n);
    pith__values_read(view->format, view->values, first, n, values);
    pith__span_scatter(dst, place, values, n, apply);
  }
}

/* All values in a row; to subtract is to add the opposite. */
static void apply_dense(const pith_sparse *view, pith_span dst, pith_apply apply) {
  float values[PITH_VALUES_BLOCK], buffer[PITH_VALUES_BLOCK];
  pith_mode mode = apply == PITH_APPLY_SET ? PITH_SET : PITH_ADD;
  for (size_t first = 0; first < view->count; first += PITH_VALUES_BLOCK) {
    size_t n = pith__least(PITH_VALUES_BLOCK, view->count - first);
    pith__values_read(view->format, view->values, first, n, values);
    if (apply == PITH_APPLY_SUB) {
      pith__kernels()->scale(-1.0f, values, n);
    }
    pith__span_store(dst, first, n, values, mode, buffer);
  }
}

void pith__sparse_apply(const pith_sparse *view, pith_span dst, pith_apply apply) {
  if (view->index_coding != PITH_INDEX_DENSE) {
    apply_indexed(view, dst, apply);
  } else if (apply == PITH_APPLY_CLEAR) {
    pith__span_clear(dst);
  } else {
    apply_dense(view, dst, apply);
  }
}

pith_status pith__sparse_decode(pith_bytes in, pith_span dst, pith_value_format format, pith_apply apply) {
  pith_sparse view;
  PITH_TRY(pith__sparse_open(in, dst.n, format, &view));
  size_t size = (size_t)(view.end - (const uint8_t *)in.data);
  PITH_REQUIRE(size == in.size, PITH_ERR_CORRUPT, "%zu bytes after a sparse payload", in.size - size);
  if (apply == PITH_APPLY_SET) {
    pith__span_clear(dst);
  }
  pith__sparse_apply(&view, dst, apply);
  return PITH_OK;
}
