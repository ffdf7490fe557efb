/*
 * Writes the seeds of the fuzz corpora: for each spec a few valid inputs, from which mutations and fuzzers start.
 *
 *   make_corpus FOLDER        writes FOLDER/quantize/…, FOLDER/sparse/…, …
 *
 * Run it again when a payload format changes or a method is added, and commit what it writes.
 */
#include <sys/stat.h>

#include "fuzz/fuzz.h"

static const char *folder_root;
static unsigned written;

static float wave(size_t i) { return ((float)(i * 2654435761u % 1000) - 500.0f) / (float)(1 + i % 7 * 40); }

static void write_file(const char *target, const void *head, size_t head_size, const void *body, size_t body_size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder_root, target);
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%s/%s/%04u", folder_root, target, written++);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(head, 1, head_size, file) != head_size || fwrite(body, 1, body_size, file) != body_size ||
      fclose(file)) {
    perror(path);
    exit(1);
  }
}

static pith_out payload_of(const char *spec, size_t n, pith_state **state) {
  pith_codec *codec;
  float *x = malloc((n + 1) * sizeof *x);
  pith_ctx ctx = PITH_CTX_INIT;
  for (size_t i = 0; i < n; i++) {
    x[i] = wave(i);
  }
  FUZZ_REQUIRE(pith_codec_create(spec, &codec) == PITH_OK && pith_state_create(codec, n, 0, state) == PITH_OK);
  pith_out out = {malloc(pith_codec_bound(codec, n) + 1), pith_codec_bound(codec, n), 0};
  FUZZ_REQUIRE(pith_encode(codec, *state, (pith_cspan){x, n, PITH_F32}, &out, &ctx) == PITH_OK);
  pith_codec_destroy(codec);
  free(x);
  return out;
}

/* The specs of each target, in its order: the number of a spec is the first byte of an input. */
static const char *const quantize_specs[] = {
#include "fuzz/specs_quantize.inc"
};
static const char *const sparse_specs[] = {
#include "fuzz/specs_sparse.inc"
};
static const char *const lowrank_specs[] = {
#include "fuzz/specs_lowrank.inc"
};
static const char *const encode_specs[] = {
#include "fuzz/specs_encode.inc"
};
static const char *const state_specs[] = {
#include "fuzz/specs_state.inc"
};

static void write_payloads(const char *target, const char *const *specs, size_t count, size_t n) {
  for (size_t i = 0; i < count; i++) {
    pith_state *state;
    pith_out out = payload_of(specs[i], n, &state);
    uint8_t head[4] = {(uint8_t)i, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(written % 8)};
    write_file(target, head, sizeof head, out.data, out.size);
    pith_state_destroy(state);
    free(out.data);
  }
}

static void write_states(size_t n) {
  for (size_t i = 0; i < FUZZ_COUNT(state_specs); i++) {
    pith_state *state;
    free(payload_of(state_specs[i], n, &state).data);
    pith_out out = {malloc(pith_state_size(state)), pith_state_size(state), 0};
    FUZZ_REQUIRE(pith_state_save(state, &out) == PITH_OK);
    uint8_t head[4] = {(uint8_t)i, (uint8_t)n, (uint8_t)(n >> 8), 0};
    write_file("state", head, sizeof head, out.data, out.size);
    pith_state_destroy(state);
    free(out.data);
  }
}

static void write_values(size_t n) {
  for (size_t i = 0; i < FUZZ_COUNT(encode_specs); i++) {
    float x[512];
    pith_codec *codec;
    FUZZ_REQUIRE(pith_codec_create(encode_specs[i], &codec) == PITH_OK);
    pith_codec_destroy(codec);
    for (size_t j = 0; j < n; j++) {
      x[j] = j == 5 && i % 3 == 0 ? 1.0f / 0.0f : wave(j + i);
    }
    uint8_t head[4] = {(uint8_t)i, 0, 0, (uint8_t)(written % 32)};
    write_file("encode", head, sizeof head, x, n * sizeof *x);
  }
}

static void write_texts(const char *target, const char *const *texts, size_t count) {
  for (size_t i = 0; i < count; i++) {
    write_file(target, texts[i], strlen(texts[i]), "", 0);
  }
}

/* Plans and statistics, good and almost good. */
static const char *const plan_texts[] = {
    "{\n  \"pith_plan\": 1,\n  \"note\": \"made by hand\",\n  \"default\": \"none\",\n  \"layers\": [\n"
    "    {\"name\": \"embed.weight\", \"spec\": \"ef/topk:0.01\", \"shape\": [50257, 768]},\n"
    "    {\"name\": \"fc1.weight\", \"spec\": \"q:4\", \"shape\": [512, 784], \"bytes\": 207000, \"share\": 0.25}\n  "
    "]\n}\n",
    "{\"pith_plan\": 1, \"method\": \"lgreco\", \"objective\": \"time\", \"reference\": \"q:4\", \"budget\": 1.5e-3, "
    "\"layers\": []}",
    "{\"pith_plan\":1,\"note\":\"\\u00e9\\ud83d\\ude00\\n\\\"\\\\\",\"layers\":[{\"name\":\"a\",\"spec\":\"q\"}]}",
    "{\"pith_plan\": 1, \"layers\": [{\"name\": \"a\", \"spec\": \"q\"}, {\"name\": \"a\", \"spec\": \"q\"}]}",
    "{\"pith_statistics\": 1, \"candidates\": [\"q:2\", \"q:4\", \"ef/topk:0.01\", \"powersgd:2\", \"none\"], "
    "\"layers\": [\n"
    "{\"name\": \"a\", \"shape\": [64, 64], \"samples\": 2, \"skipped\": 1, \"norm\": 8, \"top\": 1, "
    "\"bytes\": [2300, 4400, 400, 2048, 32768], \"errors\": [3, 0.5, 6, 5, 0]},\n"
    "{\"name\": \"b\", \"shape\": [128, 64], \"samples\": 2, \"norm\": 80, \"top\": 10, "
    "\"bytes\": [4600, 8800, 800, 3072, 65536], \"errors\": [20, 4, 60, 50.5, 0]},\n"
    "{\"name\": \"c\", \"shape\": [64], \"samples\": 0, \"skipped\": 0}]}",
    "{\"pith_statistics\": 1, \"candidates\": [\"q:2\"], \"layers\": [{\"name\": \"a\", \"shape\": [64, 64], "
    "\"samples\": 0}]}",
};

int main(int argc, char **argv) {
  static const char *const spec_texts[] = {"q",
                                           "q:4",
                                           "q:4,bucket=256,round=stochastic",
                                           "ef/topk:0.01,values=fp16",
                                           "ef/hadamard/q:2",
                                           "ef/powersgd:4",
                                           "dgc:0.001,momentum=0.5",
                                           "signum:0.9",
                                           "terngrad",
                                           "onebit",
                                           "eden:4,block=64",
                                           "hadamard:64/sign,scale=unbiased,bucket=64",
                                           "ef:0.5/randomk:0.1,unbiased=1",
                                           "q:9",
                                           "topk:1e-3",
                                           "topk:0x1p-4",
                                           "momentum/sign",
                                           "ef//q",
                                           "q:4,",
                                           "/q",
                                           "q:4,bucket=",
                                           "inceptionn:1e-30",
                                           "dgc/topk:0.01",
                                           "none"};
  static const char *const rule_texts[] = {"*.bias=none;*norm*=none;embed*=ef/topk:0.01;*=q:4\nembed.weight",
                                           "q:4",
                                           "q:4,bucket=64",
                                           "a*b?c=fp16; *=none ;",
                                           "dense/kernel=q:2;*=bf16\ndense/kernel",
                                           "=q",
                                           ";",
                                           "*a*a*a*a*a*a*b=q:1;*=none\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                           "x=q:4=2",
                                           "*=unknown"};
  if (argc != 2) {
    fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  folder_root = argv[1];
  mkdir(folder_root, 0777);
  write_payloads("quantize", quantize_specs, FUZZ_COUNT(quantize_specs), 130);
  write_payloads("quantize", quantize_specs, FUZZ_COUNT(quantize_specs), 700);
  write_payloads("sparse", sparse_specs, FUZZ_COUNT(sparse_specs), 90);
  write_payloads("sparse", sparse_specs, FUZZ_COUNT(sparse_specs), 1500);
  write_payloads("lowrank", lowrank_specs, FUZZ_COUNT(lowrank_specs), 60);
  write_payloads("lowrank", lowrank_specs, FUZZ_COUNT(lowrank_specs), 900);
  write_states(40);
  write_states(300);
  write_values(150);
  write_values(3);
  write_texts("spec", spec_texts, FUZZ_COUNT(spec_texts));
  write_texts("rules", rule_texts, FUZZ_COUNT(rule_texts));
  write_texts("plan", plan_texts, FUZZ_COUNT(plan_texts));
  return 0;
}
