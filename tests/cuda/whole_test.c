/* SPDX-License-Identifier: Apache-2.0 */
/* Codecs of whole tensors on the GPU: large selections, payloads of several ranks, and bytes that are no payload. */
#include "inputs.h"

/* ---- One tensor there and back ----------------------------------------------------------------------------------- */

typedef struct bench {
  pith_codec *codec;
  pith_cuda_item item;
  size_t bound, space;
  void *workspace;
} bench;

static void bench_open(bench *b, const char *spec, size_t n, pith_dtype dtype) {
  CHECK_MSG(pith_codec_create(spec, &b->codec) == PITH_OK, "%s: %s", spec, pith_error());
  b->bound = pith_codec_bound(b->codec, n);
  b->item = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                             .codec = b->codec,
                             .dtype = dtype,
                             .n = n,
                             .values = gpu_memory(4 * n),
                             .payload = gpu_memory(b->bound),
                             .payload_size = gpu_memory(8)};
  b->item.seed = 5;
  b->space = pith_cuda_workspace(&b->item, 1);
  b->workspace = gpu_memory(b->space);
}

static void bench_close(bench *b) {
  gpu_free(b->item.values);
  gpu_free(b->item.payload);
  gpu_free(b->item.payload_size);
  gpu_free(b->workspace);
  pith_codec_destroy(b->codec);
}

/* Encodes on both, compares bytes and what they decode to. */
static void check_tensor(const char *spec, const void *x, size_t n, pith_dtype dtype, const char *what) {
  bench b;
  bench_open(&b, spec, n, dtype);
  size_t bytes = n * pith_dtype_size(dtype);
  uint8_t *expected = malloc(b.bound), *found = malloc(b.bound);
  void *decoded = malloc(bytes + 4), *back = malloc(bytes + 4);
  uint64_t size = 0;
  pith_out out = {expected, b.bound, 0};
  gpu_put(b.item.values, x, bytes);
  gpu_fill(b.workspace, 0xee, b.space);
  CHECK(pith_encode(b.codec, NULL, (pith_cspan){x, n, dtype}, &out, ITEM_CTX(b.item)) == PITH_OK);
  CHECK_MSG(pith_cuda_encode(&b.item, 1, b.workspace, b.space, NULL) == PITH_OK, "%s", pith_error());
  GPU_CHECK(gpu.wait());
  gpu_get(found, b.item.payload, b.bound);
  gpu_get(&size, b.item.payload_size, 8);
  CHECK_MSG(size == out.size, "%s of %s: %llu bytes, not %zu", spec, what, (unsigned long long)size, out.size);
  for (size_t i = 0; i < out.size; i++) {
    CHECK_MSG(found[i] == expected[i], "%s of %s: byte %zu of %zu is 0x%02x, not 0x%02x (head %d %d %d)", spec, what, i,
              out.size, found[i], expected[i], expected[0], expected[1], expected[2]);
  }
  gpu_put(b.item.payload, expected, out.size);
  CHECK(pith_cuda_decode(&b.item, 1, PITH_SET, b.workspace, b.space, NULL) == PITH_OK);
  CHECK(pith_decode(b.codec, (pith_bytes){expected, out.size}, (pith_span){decoded, n, dtype}, PITH_SET,
                    ITEM_CTX(b.item)) == PITH_OK);
  GPU_CHECK(gpu.wait());
  gpu_get(back, b.item.values, bytes);
  check_values(decoded, back, n, dtype, "decoding", spec, NORMAL);
  free(expected);
  free(found);
  free(decoded);
  free(back);
  bench_close(&b);
}

/* ---- Selections -------------------------------------------------------------------------------------------------- */

/* All large values in one place that samples miss, with the indices far apart. */
static void cluster(float *x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    x[i] = (float)(normal() * (i > n / 3 && i < n / 3 + n / 50 ? 100 : 1e-3));
  }
}

static void steps(float *x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    x[i] = (float)((i * 7919) % 16) - 8;
  }
}

static void check_selections(pith_dtype dtype) {
  static const char *const list[] = {"topk:0.01",          "topk:0.001,values=fp16",
                                     "topk:0.3,values=q8", "topk:0.9",
                                     "topk:0.00001",       "topk:0.02,select=sampled",
                                     "threshold:2",        "threshold:0.5,values=bf16",
                                     "threshold:0.05",     "adaptive:0.01",
                                     "adaptive:0.5"};
  static const char *const names[] = {"a normal distribution", "mostly zeros", "one number", "a cluster", "steps",
                                      "all magnitudes"};
  size_t n = quick() ? 40007 : 1000003;
  float *x = malloc(4 * n);
  void *narrowed = malloc(4 * n);
  for (int kind = 0; kind < 6; kind++) {
    switch (kind) {
      case 3:
        cluster(x, n);
        break;
      case 4:
        steps(x, n);
        break;
      default:
        fill(x, n, kind == 0 ? NORMAL : kind == 1 ? SPARSE : kind == 2 ? CONSTANT : WIDE);
    }
    narrow(x, n, dtype, narrowed);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
      check_tensor(list[i], narrowed, n, dtype, names[kind]);
    }
  }
  free(x);
  free(narrowed);
}

TEST_WITHIN(large_tensors_of_f32_are_selected_from_as_on_the_cpu, 600) { need_gpu(), check_selections(PITH_F32); }
TEST_WITHIN(large_tensors_of_bf16_are_selected_from_as_on_the_cpu, 600) { need_gpu(), check_selections(PITH_BF16); }

TEST(no_values_at_all_make_the_payload_of_the_cpu) {
  need_gpu();
  float nothing[1] = {0};
  check_tensor("topk", nothing, 0, PITH_F32, "nothing");
  check_tensor("threshold", nothing, 0, PITH_F32, "nothing");
  check_tensor("adaptive", nothing, 0, PITH_F32, "nothing");
}

/* ---- Several ranks ----------------------------------------------------------------------------------------------- */

TEST(payloads_of_several_ranks_add_up_in_their_order) {
  need_gpu();
  enum { RANKS = 5, N = 30000 };
  static const char *const list[] = {"topk:0.2", "threshold:1,values=fp16", "randomk:0.3", "adaptive:0.1"};
  float *x = malloc(4 * N), *expected = malloc(4 * N), *found = malloc(4 * N);
  for (size_t s = 0; s < sizeof list / sizeof *list; s++) {
    bench b[RANKS];
    pith_cuda_item items[RANKS];
    size_t space = 0;
    memset(expected, 0, 4 * N);
    for (int rank = 0; rank < RANKS; rank++) {
      bench_open(&b[rank], list[s], N, PITH_F32);
      b[rank].item.rank = (uint32_t)rank;
      fill(x, N, WIDE); /* sums in another order would differ */
      uint8_t *payload = malloc(b[rank].bound);
      pith_out out = {payload, b[rank].bound, 0};
      CHECK(pith_encode(b[rank].codec, NULL, (pith_cspan){x, N, PITH_F32}, &out, ITEM_CTX(b[rank].item)) == PITH_OK);
      CHECK(pith_decode(b[rank].codec, (pith_bytes){payload, out.size}, (pith_span){expected, N, PITH_F32}, PITH_ADD,
                        ITEM_CTX(b[rank].item)) == PITH_OK);
      uint64_t size = out.size;
      gpu_put(b[rank].item.payload, payload, out.size);
      gpu_put(b[rank].item.payload_size, &size, 8);
      items[rank] = b[rank].item;
      items[rank].values = b[0].item.values;
      space += b[rank].space;
      free(payload);
    }
    void *workspace = gpu_memory(space);
    gpu_fill(b[0].item.values, 0, 4 * N);
    CHECK_MSG(pith_cuda_decode(items, RANKS, PITH_ADD, workspace, space, NULL) == PITH_OK, "%s", pith_error());
    GPU_CHECK(gpu.wait());
    gpu_get(found, b[0].item.values, 4 * N);
    check_values(expected, found, N, PITH_F32, "adding up", list[s], WIDE);
    gpu_free(workspace);
    for (int rank = 0; rank < RANKS; rank++) {
      bench_close(&b[rank]);
    }
  }
  free(x);
  free(expected);
  free(found);
}

/* ---- Many layers, and graphs ------------------------------------------------------------------------------------- */

/* More than fit one launch, of all codecs and sizes, beside block codecs. */
TEST(many_whole_layers_go_in_one_call) {
  need_gpu();
  enum { LAYERS = 50, MOST = 60000 };
  static const char *const list[] = {"topk:0.02",
                                     "adaptive:0.05",
                                     "threshold:1.5",
                                     "q:4",
                                     "randomk:0.1",
                                     "topk:0.1,values=q8",
                                     "topk:0.03,select=sampled",
                                     "powersgd:2",
                                     "threshold:0.1,values=fp16"};
  pith_cuda_item items[LAYERS];
  float *x[LAYERS];
  uint64_t *sizes = gpu_memory(8 * LAYERS), found[LAYERS];
  for (int i = 0; i < LAYERS; i++) {
    pith_codec *codec;
    size_t n = i % 10 == 9 ? (size_t)(i % 3) : (size_t)(1 + uniform() * (MOST - 1));
    CHECK(pith_codec_create(list[i % 9], &codec) == PITH_OK);
    x[i] = malloc(4 * MOST);
    fill(x[i], n, i % 4 == 3 ? SPARSE : NORMAL);
    items[i] = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                                .codec = codec,
                                .n = n,
                                .values = gpu_memory(4 * MOST),
                                .payload = gpu_memory(pith_codec_bound(codec, n)),
                                .payload_size = sizes + i};
    items[i].layer = (uint64_t)i;
    gpu_put(items[i].values, x[i], 4 * n);
  }
  size_t space = pith_cuda_workspace(items, LAYERS);
  void *workspace = gpu_memory(space);
  CHECK_MSG(pith_cuda_encode(items, LAYERS, workspace, space, NULL) == PITH_OK, "%s", pith_error());
  GPU_CHECK(gpu.wait());
  gpu_get(found, sizes, sizeof found);
  for (int i = 0; i < LAYERS; i++) {
    size_t bound = pith_codec_bound(items[i].codec, items[i].n);
    uint8_t *expected = malloc(bound + 1), *bytes = malloc(bound + 1);
    pith_out out = {expected, bound, 0};
    CHECK(pith_encode(items[i].codec, NULL, (pith_cspan){x[i], items[i].n, PITH_F32}, &out, ITEM_CTX(items[i])) ==
          PITH_OK);
    gpu_get(bytes, items[i].payload, out.size);
    int fixed = (pith_codec_caps(items[i].codec) & PITH_CAP_FIXED) != 0;
    CHECK_MSG(fixed || found[i] == out.size, "layer %d (%s): %llu bytes, not %zu", i, pith_codec_spec(items[i].codec),
              (unsigned long long)found[i], out.size);
    CHECK_MSG(strncmp(pith_codec_spec(items[i].codec), "powersgd", 8) == 0 || memcmp(expected, bytes, out.size) == 0,
              "layer %d (%s) differs", i, pith_codec_spec(items[i].codec));
    free(expected);
    free(bytes);
    free(x[i]);
    gpu_free(items[i].values);
    gpu_free(items[i].payload);
  }
  gpu_free(workspace);
  gpu_free(sizes);
}

/* A captured graph selects anew each time it runs: sizes and cuts are known on the device only. */
TEST(selections_can_be_captured_in_a_graph) {
  need_gpu();
  enum { N = 50000 };
  bench b;
  void *stream, *graph, *program;
  float *x = malloc(4 * N), *expected = malloc(4 * N), *found = malloc(4 * N);
  bench_open(&b, "topk:0.03", N, PITH_F32);
  uint8_t *payload = malloc(b.bound);
  GPU_CHECK(gpu.stream_create(&stream, 1));
  GPU_CHECK(gpu.capture_begin(stream, 2));
  CHECK_MSG(pith_cuda_encode(&b.item, 1, b.workspace, b.space, stream) == PITH_OK, "%s", pith_error());
  CHECK_MSG(pith_cuda_decode(&b.item, 1, PITH_SET, b.workspace, b.space, stream) == PITH_OK, "%s", pith_error());
  GPU_CHECK(gpu.capture_end(stream, &graph));
  GPU_CHECK(gpu.graph_make(&program, graph, 0));
  for (int i = 0; i < 3; i++) {
    fill(x, N, i == 1 ? SPARSE : NORMAL);
    gpu_put(b.item.values, x, 4 * N);
    GPU_CHECK(gpu.graph_launch(program, stream));
    GPU_CHECK(gpu.wait());
    pith_out out = {payload, b.bound, 0};
    CHECK(pith_encode(b.codec, NULL, (pith_cspan){x, N, PITH_F32}, &out, ITEM_CTX(b.item)) == PITH_OK);
    CHECK(pith_decode(b.codec, (pith_bytes){payload, out.size}, (pith_span){expected, N, PITH_F32}, PITH_SET,
                      ITEM_CTX(b.item)) == PITH_OK);
    gpu_get(found, b.item.values, 4 * N);
    check_values(expected, found, N, PITH_F32, "a graph", "topk:0.03", NORMAL);
  }
  free(x);
  free(expected);
  free(found);
  free(payload);
  bench_close(&b);
}

/* ---- Bytes that are no payload ----------------------------------------------------------------------------------- */

TEST(damaged_payloads_touch_nothing_else) {
  need_gpu();
  enum { N = 20000, GUARD = 256, TIMES = 40 };
  static const char *const list[] = {"topk:0.05", "topk:0.4", "threshold:1,values=q8", "adaptive:0.1"};
  float *x = malloc(4 * N);
  uint8_t *found = malloc(4 * N + 2 * GUARD);
  fill(x, N, NORMAL);
  for (size_t s = 0; s < sizeof list / sizeof *list; s++) {
    bench b;
    bench_open(&b, list[s], N, PITH_F32);
    uint8_t *payload = malloc(b.bound), *target = gpu_memory(4 * N + 2 * GUARD);
    pith_out out = {payload, b.bound, 0};
    CHECK(pith_encode(b.codec, NULL, (pith_cspan){x, N, PITH_F32}, &out, ITEM_CTX(b.item)) == PITH_OK);
    b.item.values = target + GUARD;
    for (int i = 0; i < (quick() ? 6 : TIMES); i++) {
      uint64_t size = i % 4 == 0 ? (uint64_t)(uniform() * (double)out.size) : i % 4 == 1 ? ~0ull : out.size;
      for (int flips = 0; flips < 3; flips++) {
        payload[(size_t)(uniform() * (i % 2 ? 16 : (double)out.size))] ^= (uint8_t)(uniform() * 256);
      }
      gpu_put(b.item.payload, payload, out.size);
      gpu_put(b.item.payload_size, &size, 8);
      gpu_fill(target, 0xa5, 4 * N + 2 * GUARD);
      CHECK(pith_cuda_decode(&b.item, 1, i % 3 ? PITH_ADD : PITH_SET, b.workspace, b.space, NULL) == PITH_OK);
      GPU_CHECK(gpu.wait());
      gpu_get(found, target, 4 * N + 2 * GUARD);
      for (size_t g = 0; g < GUARD; g++) {
        CHECK(found[g] == 0xa5 && found[GUARD + 4 * N + g] == 0xa5);
      }
    }
    free(payload);
    gpu_free(target);
  }
  free(x);
  free(found);
}

/* ---- Arguments: these need no device ----------------------------------------------------------------------------- */

TEST(whole_tensors_are_refused_in_pieces_and_without_a_size) {
  pith_codec *codec;
  char bytes[64];
  CHECK(pith_codec_create("topk", &codec) == PITH_OK);
  pith_cuda_item item = {.size = sizeof(pith_cuda_item), .codec = codec, .n = 8, .values = bytes, .payload = bytes};
  CHECK_EQ(pith_cuda_encode(&item, 1, NULL, 0, NULL), PITH_ERR_ARGUMENT);
  CHECK(strstr(pith_error(), "size") != NULL);
  item.payload_size = (uint64_t *)(void *)bytes;
  item.offset = 64;
  CHECK_EQ(pith_cuda_encode(&item, 1, NULL, 0, NULL), PITH_ERR_ARGUMENT);
  pith_codec_destroy(codec);
  CHECK(pith_codec_create("topk,select=fit", &codec) == PITH_OK);
  CHECK_EQ(pith_cuda_supports(codec), PITH_ERR_UNSUPPORTED);
  pith_codec_destroy(codec);
  CHECK(pith_codec_create("dgc", &codec) == PITH_OK);
  item = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                          .codec = codec,
                          .n = 8,
                          .values = bytes,
                          .payload = bytes,
                          .memory = (float *)(void *)bytes,
                          .payload_size = (uint64_t *)(void *)bytes};
  CHECK_EQ(pith_cuda_encode(&item, 1, NULL, 0, NULL), PITH_ERR_STATE);
  pith_codec_destroy(codec);
}
