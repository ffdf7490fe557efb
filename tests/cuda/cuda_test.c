/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA kernels against the CPU: the same bytes, the same residuals, the same decoded values, for every codec, type
 * and kind of input. All specs of a round go in one batch, at even and at odd addresses. Skipped, with the reason,
 * where there is no GPU.
 */
#include <time.h>

#include "inputs.h"
#include "memory/memory.h"

static const char *const all_specs[] = {
    "ef,store=8/q:4",
    "ef,store=bf16/q:2,bucket=96",
    "ef,store=8/q:3,bucket=32,tail=exact",
    "ef,store=8/topk:0.05",
    "ef,store=bf16/topk:0.01,values=fp16",
    "moment,store=8/efsignsgd",
    "moment,store=bf16/onebit",
    "ef,store=8/hadamard/q:2",
    "none",
    "fp16",
    "bf16",
    "q:1",
    "q:2",
    "q:3",
    "q:4",
    "q:5",
    "q:6",
    "q:7",
    "q:8",
    "q:4,bucket=32",
    "q:3,bucket=96",
    "q:4,tail=exact",
    "q:5,bucket=96,tail=exact,round=stochastic",
    "q:4,bucket=64",
    "q:3,bucket=192",
    "q:4,bucket=1024",
    "q:8,bucket=4096",
    "q:1,round=stochastic",
    "q:2,round=stochastic",
    "q:4,round=stochastic",
    "q:5,round=stochastic,bucket=704",
    "q:8,round=stochastic",
    "qsgd:1",
    "qsgd:7",
    "qsgd:64",
    "qsgd:127,norm=linf",
    "qsgd:4,norm=linf,bucket=64",
    "qsgd:64,bucket=1024",
    "nuq:2",
    "nuq:3,norm=l2",
    "nuq:4,round=nearest",
    "nuq:5,bucket=96",
    "nuq:8,norm=l2,round=nearest",
    "nuq:4,bucket=1024",
    "ef/nuq:4",
    "hadamard/nuq:4",
    "terngrad",
    "terngrad:0",
    "terngrad:1,bucket=64",
    "terngrad:2.5,bucket=512",
    "terngrad,bucket=4096",
    "natural",
    "natural,bucket=64",
    "natural,bucket=2048",
    "sign",
    "sign,scale=mean",
    "sign,scale=unbiased",
    "sign,scale=mean,bucket=64",
    "sign,scale=unbiased,bucket=512",
    "signmean",
    "signmean,bucket=64",
    "signmean,bucket=4096",
    "tree8",
    "tree8,bucket=64",
    "tree8,bucket=1024",
    "fp8",
    "fp8:e5m2",
    "fp8,bucket=64",
    "fp8:e5m2,bucket=1024",
    "mxfp8",
    "mxfp8:e5m2",
    "mxfp6",
    "mxfp6:e3m2",
    "mxfp4",
    "nvfp4",
    "hadamard/fp8",
    "hadamard:512/mxfp6",
    "hadamard:256/mxfp4",
    "hadamard/nvfp4",
    "ef/fp8",
    "ef/mxfp8",
    "ef/mxfp6",
    "ef/mxfp6:e3m2",
    "ef/mxfp4",
    "ef/nvfp4",
    "ef/fp8:e5m2,bucket=96",
    "ef/hadamard/mxfp4",
    "lloyd:1",
    "lloyd:2",
    "lloyd:3,bucket=512",
    "lloyd:4",
    "lloyd:4,bucket=64",
    "gq:4",
    "gq:8",
    "gq:8,bucket=64",
    "hadamard/q:4",
    "hadamard/q:2",
    "hadamard:64/q:8",
    "hadamard:512/q:4,round=stochastic",
    "hadamard:256/q:3,bucket=1024",
    "hadamard:4096/tree8",
    "hadamard/none",
    "hadamard/fp16",
    "hadamard/terngrad",
    "hadamard:2048/natural",
    "hadamard/qsgd",
    "hadamard/signmean",
    "drive",
    "eden",
    "eden:1",
    "eden:4",
    "ef/q:4",
    "ef/q:2,round=stochastic",
    "ef/q:8,bucket=64",
    "ef/q:4,bucket=32",
    "ef/q:2,tail=exact",
    "natural,bucket=32",
    "sign,scale=mean,bucket=32",
    "signmean,bucket=96",
    "lloyd:3,bucket=32",
    "hadamard:64/q:4,bucket=32",
    "ef:0.5/q:3",
    "ef/q:4,bucket=1024",
    "ef/qsgd",
    "ef/terngrad",
    "ef/natural",
    "efsignsgd",
    "onebit",
    "u8",
    "ef/lloyd:2",
    "ef/gq:8",
    "ef/hadamard/q:4",
    "ef/drive",
    "ef/eden:2",
    "ef/hadamard/terngrad",
    "ef/hadamard/tree8",
    "signum:0.9",
    "momentum:0.9/q:4",
    "momentum:0.5/hadamard/q:4",
    "ef/bf16",
    "ef/none",
    /* whole tensors */
    "lossless",
    "topk",
    "topk:0.1",
    "topk:0.5",
    "topk:1",
    "topk:0.3,values=fp16",
    "topk:0.05,values=bf16",
    "topk:0.2,values=q8",
    "topk:0.01,select=sampled",
    "topk:0.2,select=sampled,values=q8",
    "topk:0.01,warmup=10",
    "threshold:0.001",
    "threshold:1",
    "threshold:2.5,values=fp16",
    "threshold:1,values=q8",
    "threshold:0.2,values=bf16",
    "threshold:0.02,values=q8",
    "threshold:1e30",
    "randomk",
    "randomk:0.3,unbiased=1",
    "randomk:0.1,values=fp16",
    "randomk:0.2,values=q8",
    "adaptive",
    "adaptive:0.2",
    "adaptive:1",
    "ef/topk:0.05",
    "ef/topk:0.1,values=q8",
    "ef/topk:0.1,values=fp16",
    "ef/threshold:1",
    "ef/threshold:0.01,values=bf16",
    "ef/randomk:0.2",
    "ef/randomk:0.1,unbiased=1,values=q8",
    "ef/adaptive:0.1",
    "momentum:0.9/topk:0.1",
    "momentum:0.5/adaptive",
    "momentum:0.9/randomk",
    "dgc:0.05",
    "dgc:0.1,clip=2",
    "dgc:0.05,values=fp16,warmup=4",
};
enum { SPECS = sizeof all_specs / sizeof *all_specs, GUARD = 64, STEPS = 2 };

/* Those that are tried: all, or with PITH_CUDA_SPECS="mx lossless" those in which one of these words occurs. */
static const char *specs[SPECS];
static int spec_count;

static int is_wanted(const char *spec, const char *words) {
  int found = 0;
  while (*words && !found) {
    size_t size = strcspn(words, " ");
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)size, words);
    found = size > 0 && strstr(spec, word) != NULL;
    words += size + (words[size] == ' ');
  }
  return found;
}

static void choose_specs(void) {
  const char *words = getenv("PITH_CUDA_SPECS");
  spec_count = 0;
  for (int i = 0; i < SPECS; i++) {
    if (!words || is_wanted(all_specs[i], words)) {
      specs[spec_count++] = all_specs[i];
    }
  }
  CHECK_MSG(spec_count > 0, "no spec is wanted");
}

/* ---- A batch ----------------------------------------------------------------------------------------------------- */

typedef struct layer {
  pith_codec *codec;
  pith_state *state;
  size_t size, at;          /* of its payload, among all: at most, and where codecs vary, … */
  size_t sent;              /* … what it was */
  float *memory, *momentum; /* on the device */
} layer;

typedef struct round_of {
  pith_dtype dtype;
  pattern kind;
  size_t n, bytes;
  layer layers[SPECS];
  void *input, *values, *payload, *workspace; /* all but the input on the device */
  uint64_t *sizes;
  size_t workspace_size;
  float *clear;
  double device_seconds; /* of encoding */
} round_of;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Casts and exact tails show single values: with a memory before them, which NaN they show is left open. */
static int leaves_open(const char *spec, pattern kind) {
  static const char *const shows[] = {"ef/bf16", "ef/none", "ef/q:2,tail=exact"};
  int is_open = 0;
  for (size_t i = 0; i < sizeof shows / sizeof *shows; i++) {
    is_open |= strcmp(spec, shows[i]) == 0;
  }
  return is_open && (kind >= WITH_NAN || kind == HUGE_ONES);
}

static pith_ctx ctx_of(int i, int step) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = 77;
  ctx.layer = (uint64_t)i;
  ctx.step = (uint64_t)step;
  ctx.rank = 3;
  ctx.gamma = step ? 0.75f : 0;
  return ctx;
}

static void make_items(const round_of *r, int step, pith_cuda_item *items) {
  for (int i = 0; i < spec_count; i++) {
    const layer *l = &r->layers[i];
    items[i] = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                                .codec = l->codec,
                                .dtype = r->dtype,
                                .n = r->n,
                                .values = r->values,
                                .payload = (uint8_t *)r->payload + l->at,
                                .memory = l->memory,
                                .momentum = l->momentum,
                                .payload_size = r->sizes + i,
                                CTX_FIELDS(ctx_of(i, step))};
  }
}

static void open_round(round_of *r, pith_dtype dtype, pattern kind, size_t n, size_t odd) {
  pith_cuda_item items[SPECS];
  *r = (round_of){.dtype = dtype, .kind = kind, .n = n, .bytes = GUARD};
  r->input = malloc(4 * n + 4);
  r->clear = calloc(n + 1, sizeof(float));
  r->values = gpu_memory(4 * n);
  for (int i = 0; i < spec_count; i++) {
    layer *l = &r->layers[i];
    CHECK_MSG(pith_codec_create(specs[i], &l->codec) == PITH_OK, "%s: %s", specs[i], pith_error());
    CHECK(pith_state_create(l->codec, n, 0, &l->state) == PITH_OK);
    l->size = pith_codec_bound(l->codec, n);
    l->at = r->bytes + odd;
    r->bytes = (l->at + l->size + GUARD + 15) / 16 * 16;
    l->memory = gpu_memory(8 * n);
    l->momentum = l->memory + n;
    gpu_put(l->memory, r->clear, 4 * n);
    gpu_put(l->momentum, r->clear, 4 * n);
  }
  r->payload = gpu_memory(r->bytes);
  r->sizes = gpu_memory(SPECS * sizeof *r->sizes);
  make_items(r, 0, items);
  r->workspace_size = pith_cuda_workspace(items, (size_t)spec_count);
  r->workspace = gpu_memory(r->workspace_size);
  gpu_fill(r->workspace, 0xee, r->workspace_size);
}

static void close_round(round_of *r) {
  for (int i = 0; i < spec_count; i++) {
    pith_codec_destroy(r->layers[i].codec);
    pith_state_destroy(r->layers[i].state);
    gpu_free(r->layers[i].memory);
  }
  gpu_free(r->payload);
  gpu_free(r->values);
  gpu_free(r->sizes);
  gpu_free(r->workspace);
  free(r->input);
  free(r->clear);
}

static void check_payload(const round_of *r, int i, const uint8_t *expected, const uint8_t *found) {
  const layer *l = &r->layers[i];
  for (size_t b = 0; b < l->sent && !leaves_open(specs[i], r->kind); b++) {
    CHECK_MSG(expected[b] == found[l->at + b], "%s, %zu %s values (%s): byte %zu of %zu is 0x%02x, not 0x%02x",
              specs[i], r->n, pith_dtype_name(r->dtype), pattern_names[r->kind], b, l->sent, found[l->at + b],
              expected[b]);
  }
  for (size_t b = 0; b < GUARD; b++) {
    CHECK_MSG(found[l->at + l->size + b] == 0xa5 || (i + 1 < spec_count && l->at + l->size + b >= r->layers[i + 1].at),
              "%s, %zu values: byte %zu behind the payload was written", specs[i], r->n, b);
  }
}

static void check_memory(const round_of *r, int i, float *buffer) {
  const pith_state *state = r->layers[i].state;
  if (state->residual) {
    size_t size = pith_codec_residual_size(r->layers[i].codec, r->n);
    uint8_t *packed = malloc(size + 1);
    float *expected = malloc(4 * r->n + 4);
    gpu_get(packed, r->layers[i].memory, size);
    pith__store_widen(state->store, packed, r->n, buffer);
    pith_state_copy_residual(state, expected);
    check_values(expected, buffer, r->n, PITH_F32, "the residual", specs[i], r->kind);
    free(packed);
    free(expected);
  }
  if (state->momentum) {
    gpu_get(buffer, state->residual ? r->layers[i].momentum : r->layers[i].memory, 4 * r->n);
    check_values(state->momentum, buffer, r->n, PITH_F32, "the momentum", specs[i], r->kind);
  }
}

static void check_size(const round_of *r, int i, const uint64_t *sizes) {
  if (!(pith_codec_caps(r->layers[i].codec) & PITH_CAP_FIXED)) {
    CHECK_MSG(sizes[i] == r->layers[i].sent, "%s, %zu %s values (%s): %llu bytes, not %zu", specs[i], r->n,
              pith_dtype_name(r->dtype), pattern_names[r->kind], (unsigned long long)sizes[i], r->layers[i].sent);
  }
}

static void check_encode(round_of *r, int step, uint8_t *cpu, uint8_t *found) {
  pith_cuda_item items[SPECS];
  uint64_t sizes[SPECS];
  float *x = malloc(4 * r->n + 4);
  fill(x, r->n, r->kind);
  narrow(x, r->n, r->dtype, r->input);
  gpu_put(r->values, r->input, r->n * pith_dtype_size(r->dtype));
  gpu_fill(r->payload, 0xa5, r->bytes);
  make_items(r, step, items);
  double begun = now();
  CHECK_MSG(pith_cuda_encode(items, (size_t)spec_count, r->workspace, r->workspace_size, NULL) == PITH_OK, "%s",
            pith_error());
  GPU_CHECK(gpu.wait());
  r->device_seconds += now() - begun;
  gpu_get(found, r->payload, r->bytes);
  gpu_get(sizes, r->sizes, sizeof sizes);
  for (int i = 0; i < spec_count; i++) {
    pith_ctx ctx = ctx_of(i, step);
    pith_out out = {cpu + r->layers[i].at, r->layers[i].size, 0};
    CHECK(pith_encode(r->layers[i].codec, r->layers[i].state, (pith_cspan){r->input, r->n, r->dtype}, &out, &ctx) ==
          PITH_OK);
    r->layers[i].sent = out.size;
    check_size(r, i, sizes);
    check_payload(r, i, out.data, found);
    check_memory(r, i, x);
  }
  free(x);
}

/* Each payload by itself, set over garbage and added to what was there. */
static void check_decode(round_of *r, const uint8_t *cpu) {
  size_t size = r->n * pith_dtype_size(r->dtype);
  void *expected = malloc(size + 1), *found = malloc(size + 1);
  pith_cuda_item items[SPECS];
  make_items(r, STEPS - 1, items);
  for (int i = 0; i < spec_count; i++) {
    if (leaves_open(specs[i], r->kind)) {
      continue;
    }
    for (int mode = PITH_SET; mode <= PITH_ADD; mode++) {
      pith_ctx ctx = ctx_of(i, STEPS - 1);
      pith_bytes in = {cpu + r->layers[i].at, r->layers[i].sent};
      memcpy(expected, r->input, size);
      gpu_put(r->values, r->input, size);
      CHECK_MSG(
          pith_decode(r->layers[i].codec, in, (pith_span){expected, r->n, r->dtype}, (pith_mode)mode, &ctx) == PITH_OK,
          "%s: %s", specs[i], pith_error());
      CHECK_MSG(pith_cuda_decode(&items[i], 1, (pith_mode)mode, r->workspace, r->workspace_size, NULL) == PITH_OK, "%s",
                pith_error());
      GPU_CHECK(gpu.wait());
      gpu_get(found, r->values, size);
      check_values(expected, found, r->n, r->dtype, mode == PITH_ADD ? "adding" : "decoding", specs[i], r->kind);
    }
  }
  free(expected);
  free(found);
}

/* Says (with -v, or where a test runs out of time) what it took. */
static void check_round(pith_dtype dtype, pattern kind, size_t n, size_t odd) {
  round_of r;
  choose_specs();
  double begun = now();
  open_round(&r, dtype, kind, n, odd);
  uint8_t *cpu = malloc(r.bytes), *found = malloc(r.bytes);
  double opened = now();
  for (int step = 0; step < STEPS; step++) {
    check_encode(&r, step, cpu, found);
  }
  double encoded = now();
  check_decode(&r, cpu);
  printf("%zu values, %s: %.2f s to prepare, %.2f to encode (the device %.2f), %.2f to decode\n", n,
         pattern_names[kind], opened - begun, encoded - opened, r.device_seconds, now() - encoded);
  fflush(stdout);
  free(cpu);
  free(found);
  close_round(&r);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static void check_lengths(pith_dtype dtype) {
  static const size_t lengths[] = {1,   2,   3,   7,   15,   16,   17,   63,   64,   65,   79,   81,   100,
                                   160, 511, 512, 513, 1023, 1025, 1279, 1281, 2500, 4095, 4097, 9999, 70001};
  static const size_t few[] = {1, 17, 513, 1281, 9999};
  const size_t *list = quick() ? few : lengths;
  size_t count = quick() ? sizeof few / sizeof *few : sizeof lengths / sizeof *lengths;
  for (size_t i = 0; i < count; i++) {
    check_round(dtype, NORMAL, list[i], i % 3 == 2);
  }
}

static void check_patterns(pith_dtype dtype) {
  for (int kind = 0; kind < PATTERNS; kind++) {
    for (size_t odd = 0; odd < (quick() ? 1 : 2); odd++) {
      check_round(dtype, (pattern)kind, 9000 + 3 * odd, odd);
      check_round(dtype, (pattern)kind, 333, odd);
    }
  }
}

TEST_WITHIN(every_length_of_f32_gives_the_bytes_of_the_cpu, 900) { need_gpu(), check_lengths(PITH_F32); }
TEST_WITHIN(every_length_of_f16_gives_the_bytes_of_the_cpu, 900) { need_gpu(), check_lengths(PITH_F16); }
TEST_WITHIN(every_length_of_bf16_gives_the_bytes_of_the_cpu, 900) { need_gpu(), check_lengths(PITH_BF16); }
TEST_WITHIN(extreme_values_in_f32_give_the_bytes_of_the_cpu, 900) { need_gpu(), check_patterns(PITH_F32); }
TEST_WITHIN(extreme_values_in_f16_give_the_bytes_of_the_cpu, 900) { need_gpu(), check_patterns(PITH_F16); }
TEST_WITHIN(extreme_values_in_bf16_give_the_bytes_of_the_cpu, 900) { need_gpu(), check_patterns(PITH_BF16); }

/* One round alone: what a checker of races, which takes minutes for all of them, can be run over. */
TEST_WITHIN(one_round_of_every_spec_gives_the_bytes_of_the_cpu, 600) {
  need_gpu(), check_round(PITH_F32, NORMAL, 9000, 0);
}

/* Random numbers of a value do not depend on the piece it is in, beyond 2^32 values too. */
TEST(pieces_at_large_offsets_give_the_bytes_of_the_cpu) {
  need_gpu();
  static const char *const seeded[] = {"q:4,round=stochastic", "hadamard/q:4", "terngrad", "natural",
                                       "qsgd:7,bucket=704"};
  enum { N = 20000 };
  float x[N];
  fill(x, N, NORMAL);
  void *values = gpu_memory(sizeof x);
  gpu_put(values, x, sizeof x);
  for (size_t i = 0; i < sizeof seeded / sizeof *seeded; i++) {
    pith_codec *codec;
    CHECK(pith_codec_create(seeded[i], &codec) == PITH_OK);
    size_t size = pith_codec_bound(codec, N), granule = pith_codec_granule(codec);
    uint8_t *expected = malloc(size), *found = malloc(size);
    void *payload = gpu_memory(size);
    pith_ctx ctx = PITH_CTX_INIT;
    ctx.offset = (((uint64_t)3 << 32) - N / 2) / granule * granule;
    pith_out out = {expected, size, 0};
    CHECK(pith_encode(codec, NULL, (pith_cspan){x, N, PITH_F32}, &out, &ctx) == PITH_OK);
    pith_cuda_item item = {
        .size = sizeof(pith_cuda_item), .codec = codec, .n = N, .values = values, .payload = payload, CTX_FIELDS(ctx)};
    CHECK(pith_cuda_encode(&item, 1, NULL, 0, NULL) == PITH_OK);
    GPU_CHECK(gpu.wait());
    gpu_get(found, payload, size);
    CHECK_MSG(memcmp(expected, found, size) == 0, "%s differs", seeded[i]);
    gpu_free(payload);
    pith_codec_destroy(codec);
    free(expected);
    free(found);
  }
}

/* More items than fit one launch, of different sizes, some empty. */
TEST(many_layers_go_in_one_call) {
  need_gpu();
  enum { LAYERS = 150, MOST = 3000 };
  static float x[LAYERS * MOST];
  fill(x, LAYERS * MOST, NORMAL);
  void *values = gpu_memory(sizeof x), *payload = gpu_memory(sizeof x * 2);
  gpu_put(values, x, sizeof x);
  pith_cuda_item items[LAYERS];
  size_t at[LAYERS + 1] = {0};
  pith_codec *codecs[LAYERS];
  for (int i = 0; i < LAYERS; i++) {
    size_t n = i % 10 == 9 ? 0 : (size_t)(uniform() * MOST);
    const char *spec = strchr("emo", all_specs[i % 68][0]) ? "q:4" : all_specs[i % 68];
    CHECK(pith_codec_create(spec, &codecs[i]) == PITH_OK);
    items[i] = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                                .codec = codecs[i],
                                .n = n,
                                .values = (float *)values + i * MOST,
                                .payload = (uint8_t *)payload + at[i],
                                CTX_FIELDS(ctx_of(i, 0))};
    at[i + 1] = at[i] + pith_codec_bound(codecs[i], n);
  }
  float *memory = gpu_memory(MOST * 4);
  for (int i = 0; i < LAYERS; i++) {
    items[i].memory = memory; /* drive and eden have none, and none of the others */
  }
  CHECK_MSG(pith_cuda_encode(items, LAYERS, NULL, 0, NULL) == PITH_OK, "%s", pith_error());
  GPU_CHECK(gpu.wait());
  uint8_t *found = malloc(at[LAYERS] + 1), *expected = malloc(8 * MOST);
  gpu_get(found, payload, at[LAYERS]);
  for (int i = 0; i < LAYERS; i++) {
    pith_out out = {expected, 8 * MOST, 0};
    CHECK(pith_encode(codecs[i], NULL, (pith_cspan){x + i * MOST, items[i].n, PITH_F32}, &out, ITEM_CTX(items[i])) ==
          PITH_OK);
    CHECK_MSG(memcmp(expected, found + at[i], out.size) == 0, "layer %d (%s) differs", i, pith_codec_spec(codecs[i]));
  }
}

/* A captured graph replays encode and decode without the host. */
TEST(calls_can_be_captured_in_a_graph) {
  need_gpu();
  enum { N = 10000 };
  float x[N], y[N];
  void *stream, *graph, *program;
  pith_codec *codec;
  fill(x, N, NORMAL);
  CHECK(pith_codec_create("q:8", &codec) == PITH_OK);
  void *values = gpu_memory(sizeof x), *payload = gpu_memory(pith_codec_bound(codec, N));
  pith_cuda_item item = {.size = sizeof(pith_cuda_item), .codec = codec, .n = N, .values = values, .payload = payload};
  GPU_CHECK(gpu.stream_create(&stream, 1));
  GPU_CHECK(gpu.capture_begin(stream, 2));
  CHECK(pith_cuda_encode(&item, 1, NULL, 0, stream) == PITH_OK);
  CHECK(pith_cuda_decode(&item, 1, PITH_SET, NULL, 0, stream) == PITH_OK);
  GPU_CHECK(gpu.capture_end(stream, &graph));
  GPU_CHECK(gpu.graph_make(&program, graph, 0));
  gpu_put(values, x, sizeof x);
  GPU_CHECK(gpu.graph_launch(program, stream));
  GPU_CHECK(gpu.wait());
  gpu_get(y, values, sizeof y);
  for (int i = 0; i < N; i++) {
    CHECK_NEAR(y[i], x[i], 0.02);
  }
}

/* These need no device: the answers are the same everywhere. */
TEST(codecs_without_kernels_are_named) {
  pith_codec *codec;
  CHECK(pith_codec_create("sketchml", &codec) == PITH_OK);
  CHECK_EQ(pith_cuda_supports(codec), PITH_ERR_UNSUPPORTED);
  CHECK(strstr(pith_error(), "sketchml") != NULL);
  pith_codec_destroy(codec);
  for (int i = 0; i < SPECS; i++) {
    CHECK(pith_codec_create(all_specs[i], &codec) == PITH_OK);
    CHECK_MSG(pith_cuda_supports(codec) == PITH_OK, "%s: %s", all_specs[i], pith_error());
    pith_codec_destroy(codec);
  }
}

TEST(bad_arguments_are_refused_before_anything_runs) {
  pith_codec *codec;
  char bytes[64];
  CHECK(pith_codec_create("ef/q:4", &codec) == PITH_OK);
  pith_cuda_item item = {.size = sizeof(pith_cuda_item), .codec = codec, .n = 8, .values = bytes, .payload = bytes};
  CHECK_EQ(pith_cuda_encode(&item, 1, NULL, 0, NULL), PITH_ERR_STATE);
  item.memory = (float *)(void *)bytes;
  item.offset = 5;
  CHECK_EQ(pith_cuda_encode(&item, 1, NULL, 0, NULL), PITH_ERR_ARGUMENT);
  item.offset = 0;
  item.dtype = PITH_I32;
  CHECK_EQ(pith_cuda_encode(&item, 1, NULL, 0, NULL), PITH_ERR_ARGUMENT);
  item.dtype = PITH_F32;
  item.values = NULL;
  CHECK_EQ(pith_cuda_decode(&item, 1, PITH_SET, NULL, 0, NULL), PITH_ERR_ARGUMENT);
  pith_codec_destroy(codec);
}
