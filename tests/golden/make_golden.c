/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes tests/golden/payloads.txt to standard output. Its lines freeze the formats:
 *
 *   decode SPEC N BYTES HASH     this is what the golden input encodes to, and the hash of what that decodes to
 *   refuse SPEC N BYTES          no decoder may accept this
 *
 * Run it again only when docs/format.md changes on purpose: payloads of older versions stop being readable then.
 */
#include <stdio.h>
#include <stdlib.h>

#include "golden/golden.h"

#define VALUES_MOST 4000

static uint8_t payload[VALUES_MOST * 8];

static void require(pith_status status, const char *spec) {
  if (status != PITH_OK) {
    fprintf(stderr, "%s: %s\n", spec, pith_error());
    exit(1);
  }
}

static size_t encode(const char *spec, size_t n) {
  static float x[VALUES_MOST];
  pith_codec *codec;
  pith_state *state;
  pith_ctx ctx = golden_ctx();
  pith_out out = {payload, sizeof payload, 0};
  golden_fill(x, n);
  require(pith_codec_create(spec, &codec), spec);
  require(pith_state_create(codec, n, 0, &state), spec);
  require(pith_encode(codec, state, (pith_cspan){x, n, PITH_F32}, &out, &ctx), spec);
  pith_state_destroy(state);
  pith_codec_destroy(codec);
  return out.size;
}

static void print_bytes(size_t size) {
  for (size_t i = 0; i < size; i++) {
    printf("%02x", payload[i]);
  }
  printf("%s", size ? "" : "-");
}

static void print_decode(const char *spec, size_t n) {
  static float x[VALUES_MOST];
  pith_codec *codec;
  pith_ctx ctx = golden_ctx();
  size_t size = encode(spec, n);
  require(pith_codec_create(spec, &codec), spec);
  require(pith_decode(codec, (pith_bytes){payload, size}, (pith_span){x, n, PITH_F32}, PITH_SET, &ctx), spec);
  pith_codec_destroy(codec);
  printf("decode %s %zu ", spec, n);
  print_bytes(size);
  printf(" %016llx\n", (unsigned long long)golden_hash(x, n));
}

static void print_refuse(const char *spec, size_t n, size_t size) {
  printf("refuse %s %zu ", spec, n);
  print_bytes(size);
  printf("\n");
}

/* One byte too few, one too many, none at all. */
static void print_wrong_sizes(const char *spec, size_t n) {
  size_t size = encode(spec, n);
  print_refuse(spec, n, size - 1);
  payload[size] = 0;
  print_refuse(spec, n, size + 1);
  print_refuse(spec, n, 0);
}

/* A payload that is right but for one byte. */
static void print_wrong_byte(const char *spec, size_t n, size_t at, uint8_t byte) {
  size_t size = encode(spec, n);
  payload[at] = byte;
  print_refuse(spec, n, size);
}

int main(void) {
  static const char *const specs[] = {"none",
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
                                      "q:4,round=stochastic",
                                      "q:2,bucket=64",
                                      "q:3,bucket=96",
                                      "q:4,bucket=32,tail=exact",
                                      "qsgd",
                                      "qsgd:7,norm=linf",
                                      "qsgd:1,coding=elias",
                                      "qsgd:15,coding=elias",
                                      "qsgd:127,norm=linf,coding=elias",
                                      "fp8",
                                      "fp8:e5m2,bucket=64",
                                      "lossless",
                                      "mxfp8",
                                      "mx:e5m2",
                                      "mxfp6",
                                      "mx:e3m2",
                                      "mxfp4",
                                      "nvfp4",
                                      "nuq:4",
                                      "nuq:3,norm=l2,round=nearest",
                                      "terngrad",
                                      "natural",
                                      "signsgd",
                                      "signum",
                                      "efsignsgd",
                                      "onebit",
                                      "onebit,means=column",
                                      "u8",
                                      "inceptionn",
                                      "gq:4",
                                      "gq:8",
                                      "drive",
                                      "eden:1",
                                      "eden:2",
                                      "eden:3",
                                      "eden:4",
                                      "hadamard/q:4",
                                      "hadamard:64/q:2,bucket=64",
                                      "topk:0.1",
                                      "topk:0.1,values=fp16",
                                      "topk:0.1,values=bf16",
                                      "topk:0.1,values=q8",
                                      "topk:0.1,select=sampled",
                                      "topk:0.1,select=fit",
                                      "randomk:0.1",
                                      "randomk:0.1,unbiased=1",
                                      "threshold:0.5",
                                      "threshold:0.0001",
                                      "dgc:0.1",
                                      "adaptive:0.1",
                                      "sketchml:16",
                                      "powersgd:1",
                                      "ef/q:4"};
  printf("# The formats, frozen. Written by make_golden; see there.\n");
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    print_decode(specs[i], 150);
    print_decode(specs[i], 1);
    print_wrong_sizes(specs[i], 150);
  }
  print_decode("q:1", 1300);
  print_decode("signsgd", 4000);
  print_decode("terngrad", 1300);
  print_decode("topk:0.01", 4000);
  print_decode("adaptive:0.01", 4000);
  print_decode("powersgd:2", 1300);
  print_wrong_byte("terngrad", 150, 10, 243);          /* five trits make at most 242 */
  print_wrong_byte("natural", 150, 1, 1);              /* the top is not a power of two */
  print_wrong_byte("qsgd:1,coding=elias", 150, 4, 3);  /* no such coding */
  print_wrong_byte("qsgd:1,coding=elias", 150, 8, 0);  /* a run longer than the block */
  print_wrong_byte("qsgd:15,coding=elias", 150, 7, 1); /* more bytes than there are */
  print_wrong_byte("signsgd", 150, 3, 0x40);           /* a vote has the scale 1 */
  print_wrong_byte("inceptionn", 150, 0, 0xff);        /* tags ask for more than is there */
  print_wrong_byte("topk:0.1", 150, 0, 9);             /* no such index coding */
  print_wrong_byte("topk:0.1", 150, 1, 9);             /* no such value coding */
  print_wrong_byte("topk:0.1", 150, 1, 1);             /* another value coding than the spec's */
  print_wrong_byte("topk:0.1", 150, 2, 41);            /* no such Rice parameter */
  print_wrong_byte("topk:0.1", 150, 3, 1);             /* reserved */
  print_wrong_byte("topk:0.1", 150, 8, 14);            /* one value fewer than there are */
  print_wrong_byte("topk:0.1", 150, 15, 0x80);         /* count beyond all bounds */
  print_wrong_byte("sketchml:16", 150, 4, 0);          /* no levels */
  print_wrong_byte("powersgd:1", 150, 0, 0);           /* factors called values */
  print_wrong_byte("powersgd:1", 150, 7, 0xff);        /* rows beyond all bounds */
  return 0;
}
