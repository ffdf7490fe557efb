/* SPDX-License-Identifier: Apache-2.0 */
/* Codec objects: canonical texts, fingerprints, capabilities, and which parts fit together. */
#include <stdio.h>

#include "test.h"

static pith_codec *make(const char *spec) {
  pith_codec *codec = NULL;
  CHECK_OK(pith_codec_create(spec, &codec));
  return codec;
}

static void check_texts(const char *spec, const char *canonical, const char *parts) {
  pith_codec *codec = make(spec), *again;
  CHECK_STR(pith_codec_spec(codec), canonical);
  CHECK_STR(pith_codec_parts(codec), parts);
  again = make(canonical);
  CHECK_STR(pith_codec_spec(again), canonical);
  CHECK_EQ(pith_codec_fingerprint(again), pith_codec_fingerprint(codec));
  pith_codec_destroy(again);
  again = make(parts);
  CHECK_STR(pith_codec_parts(again), parts);
  CHECK_EQ(pith_codec_fingerprint(again), pith_codec_fingerprint(codec));
  pith_codec_destroy(again);
  pith_codec_destroy(codec);
}

static void check_refused(const char *spec, pith_status status, const char *says) {
  pith_codec *codec = NULL;
  CHECK_STATUS(pith_codec_create(spec, &codec), status);
  CHECK_ERROR_SAYS(says);
  CHECK(codec == NULL);
}

/* ---- Texts ---- */

TEST(texts_are_canonical_and_mean_the_same_when_read_again) {
  check_texts("none", "none", "none");
  check_texts("q:4", "q:4", "q:4");
  check_texts("q,bits=3,round=nearest", "q:3", "q:3");
  check_texts("ef/q:4", "ef/q:4", "ef/q:4");
  check_texts("ef:1.0/hadamard/q:2", "ef/hadamard/q:2", "ef/hadamard/q:2");
  check_texts("ef:0.50/topk:1e-2,values=fp16", "ef:0.5/topk:0.01,values=fp16", "ef:0.5/topk:0.01,values=fp16");
}

TEST(presets_keep_their_name_in_the_spec_and_lose_it_in_the_parts) {
  check_texts("signsgd", "signsgd", "sign");
  check_texts("signum", "signum:0.9", "momentum:0.9/sign");
  check_texts("signum:0.5", "signum:0.5", "momentum:0.5/sign");
  check_texts("efsignsgd", "efsignsgd", "ef/sign:mean");
  check_texts("onebit", "onebit", "ef/signmean");
  check_texts("u8", "u8", "ef/tree8");
  check_texts("dgc:0.01", "dgc:0.01", "dgc:0.9/topk:0.01,select=sampled");
  check_texts("dgc:0.001,momentum=0.5,clip=2,values=fp16,warmup=100",
              "dgc:0.001,momentum=0.5,clip=2,values=fp16,warmup=100",
              "dgc:0.5,clip=2/topk:0.001,select=sampled,values=fp16,warmup=100");
  check_texts("drive", "drive", "hadamard:4096/sign:unbiased");
  check_texts("eden:3,block=1024", "eden:3,block=1024", "hadamard/lloyd:3,bucket=1024");
}

TEST(a_memory_before_a_preset_shows_in_both_texts) {
  check_texts("ef/drive", "ef/drive", "ef/hadamard:4096/sign:unbiased");
}

/* ---- Fingerprints ---- */

static uint64_t fingerprint(const char *spec) {
  pith_codec *codec = make(spec);
  uint64_t result = pith_codec_fingerprint(codec);
  pith_codec_destroy(codec);
  return result;
}

TEST(fingerprints_follow_the_meaning_not_the_spelling) {
  CHECK_EQ(fingerprint("q:4"), fingerprint("q,bits=4,round=nearest"));
  CHECK_EQ(fingerprint("signum:0.9"), fingerprint("momentum:0.9/sign"));
  CHECK_EQ(fingerprint("q:4"), fingerprint("q:04"));
  CHECK_EQ(fingerprint("qsgd"), fingerprint("qsgd:127"));
  CHECK_EQ(fingerprint("adaq:0.05"), fingerprint("ef/adaptive:0.05"));
}

/* All sixteen methods of the survey, as GRACE has them; and what a method has no use for is refused. */
TEST(every_method_of_the_survey_has_the_parameters_of_grace) {
  static const struct {
    const char *method, *parts;
  } wanted[] = {
      {"topk", "ef/topk:0.01"},
      {"randomk", "ef/randomk:0.01"},
      {"threshold", "ef/threshold:0.01"},
      {"dgc", "dgc/topk:0.01,select=sampled"},
      {"adaptive", "ef/adaptive:0.01"},
      {"sketchml", "sketchml:64"},
      {"powersgd", "ef/powersgd:1"},
      {"qsgd", "qsgd:127,bucket=128,encode=once"},
      {"terngrad", "terngrad:2.5,bucket=65536,encode=once"},
      {"natural", "natural,encode=once"},
      {"signsgd", "sign,encode=once"},
      {"signum", "momentum:0.9/sign,encode=once"},
      {"efsignsgd", "ef/sign:mean,bucket=65536,encode=once"},
      {"onebit", "ef/signmean:65536,encode=once"},
      {"u8", "ef/tree8:65536,encode=once"},
      {"inceptionn", "inceptionn,encode=once"},
  };
  size_t survey = 0;
  for (size_t i = 0; i < pith_method_count(); i++) {
    pith_method method = PITH_METHOD_INIT;
    CHECK_OK(pith_method_get(i, &method));
    for (size_t w = 0; method.survey && w < sizeof wanted / sizeof *wanted; w++) {
      survey += strcmp(method.name, wanted[w].method) == 0;
    }
  }
  CHECK_EQ(survey, sizeof wanted / sizeof *wanted);
  CHECK_EQ(survey, 16);
  for (size_t w = 0; w < survey; w++) {
    char spec[64];
    snprintf(spec, sizeof spec, "grace:%s", wanted[w].method);
    CHECK_EQ(fingerprint(spec), fingerprint(wanted[w].parts));
  }
  CHECK_EQ(fingerprint("grace:topk,ratio=0.3"), fingerprint("ef/topk:0.3"));
  CHECK_EQ(fingerprint("grace:powersgd,rank=4"), fingerprint("ef/powersgd:4"));
  check_refused("grace:qsgd,ratio=0.3", PITH_ERR_SPEC, "ratio=0.3 means nothing to this method");
  check_refused("grace:topk,rank=2", PITH_ERR_SPEC, "rank=2 means nothing");
  check_refused("grace:fp16", PITH_ERR_SPEC, "is not one of");
  check_refused("ef/grace:topk", PITH_ERR_UNSUPPORTED, "memory of its own");
}

TEST(cgx_is_q_with_its_rounding) {
  CHECK_EQ(fingerprint("cgx"), fingerprint("q:4,round=stochastic"));
  CHECK_EQ(fingerprint("cgx:3,bucket=1024,tail=exact"), fingerprint("q:3,bucket=1024,round=stochastic,tail=exact"));
}

TEST(different_meanings_have_different_fingerprints) {
  static const char *const specs[] = {
      "none",
      "fp16",
      "bf16",
      "q:4",
      "q:3",
      "q:4,bucket=1024",
      "q:4,round=stochastic",
      "ef/q:4",
      "ef:0.5/q:4",
      "hadamard/q:4",
      "ef/hadamard/q:4",
      "hadamard:64/q:4",
      "momentum/q:4",
      "sign",
      "sign:mean",
      "signmean",
      "topk:0.01",
      "topk:0.02",
      "ef/topk:0.01",
      "dgc/topk:0.01",
      "topk:0.01,values=fp16",
      "signum:0.9",
      "signum:0.8",
  };
  size_t n = sizeof specs / sizeof *specs;
  for (size_t i = 0; i < n; i++) {
    for (size_t j = i + 1; j < n; j++) {
      CHECK_MSG(fingerprint(specs[i]) != fingerprint(specs[j]), "%s and %s", specs[i], specs[j]);
    }
  }
}

/* ---- Fitting ---- */

TEST(parts_that_do_not_fit_are_refused_with_a_reason) {
  check_refused("ef/sign", PITH_ERR_UNSUPPORTED, "a vote has no magnitude");
  check_refused("ef/signsgd", PITH_ERR_UNSUPPORTED, "a vote has no magnitude");
  check_refused("dgc/q:4", PITH_ERR_UNSUPPORTED, "send only some values");
  check_refused("hadamard/topk:0.01", PITH_ERR_UNSUPPORTED, "as a whole");
  check_refused("hadamard/sign", PITH_ERR_UNSUPPORTED, "mixtures");
  check_refused("ef/momentum/q:4", PITH_ERR_UNSUPPORTED, "at most one memory");
  check_refused("hadamard/hadamard/q:4", PITH_ERR_UNSUPPORTED, "at most one transform");
  check_refused("hadamard/ef/q:4", PITH_ERR_UNSUPPORTED, "must stand before the transform hadamard");
}

TEST(a_preset_with_a_memory_or_transform_refuses_a_second_one) {
  check_refused("ef/efsignsgd", PITH_ERR_UNSUPPORTED, "efsignsgd has a memory of its own");
  check_refused("momentum/dgc:0.01", PITH_ERR_UNSUPPORTED, "leave out momentum");
  check_refused("hadamard/drive", PITH_ERR_UNSUPPORTED, "drive has a transform of its own");
  check_refused("hadamard/onebit", PITH_ERR_UNSUPPORTED, "write out the parts");
}

TEST(stages_in_the_wrong_place_are_told_where_they_belong) {
  check_refused("ef", PITH_ERR_SPEC, "needs a codec behind it");
  check_refused("hadamard", PITH_ERR_SPEC, "needs a codec behind it");
  check_refused("q:4/ef", PITH_ERR_SPEC, "q is a codec and comes last");
  check_refused("signsgd/q:4", PITH_ERR_SPEC, "comes last");
}

TEST(bad_values_are_refused_where_the_spec_is_read) {
  check_refused("q:9", PITH_ERR_RANGE, "1 to 8");
  check_refused("q:4,bucket=65", PITH_ERR_RANGE, "multiple of");
  check_refused("q:4,bukket=64", PITH_ERR_SPEC, "did you mean bucket?");
  check_refused("hadamard:100/q:4", PITH_ERR_RANGE, "power of two");
  check_refused("signsgd:100", PITH_ERR_RANGE, "multiple of");
  check_refused("drive:100", PITH_ERR_RANGE, "power of two");
  check_refused("dgc:0", PITH_ERR_RANGE, "dgc: ratio=0");
}

TEST(missing_arguments_are_errors) {
  pith_codec *codec = NULL;
  CHECK_STATUS(pith_codec_create(NULL, &codec), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_codec_create("q:4", NULL), PITH_ERR_ARGUMENT);
  pith_codec_destroy(NULL);
}

/* ---- Capabilities and granules ---- */

static uint32_t caps(const char *spec) {
  pith_codec *codec = make(spec);
  uint32_t result = pith_codec_caps(codec);
  pith_codec_destroy(codec);
  return result;
}

static size_t granule(const char *spec) {
  pith_codec *codec = make(spec);
  size_t result = pith_codec_granule(codec);
  pith_codec_destroy(codec);
  return result;
}

TEST(capabilities_follow_the_parameters_and_the_transform) {
  CHECK(caps("sign") & PITH_CAP_VOTE);
  CHECK(!(caps("sign:mean") & PITH_CAP_VOTE));
  CHECK(!(caps("efsignsgd") & PITH_CAP_VOTE));
  CHECK(!(caps("q:4") & PITH_CAP_SEEDED));
  CHECK(caps("hadamard/q:4") & PITH_CAP_SEEDED);
  CHECK(caps("hadamard/q:4") & PITH_CAP_CHUNKED);
  CHECK(caps("fp16") & PITH_CAP_LINEAR);
  CHECK(!(caps("hadamard/fp16") & PITH_CAP_LINEAR));
  CHECK(caps("topk:0.01") & PITH_CAP_SPARSE);
  CHECK(caps("powersgd") & PITH_CAP_ROUNDS);
}

TEST(a_granule_is_a_multiple_of_both_blocks) {
  CHECK_EQ(granule("q:4,bucket=512"), 512);
  CHECK_EQ(granule("hadamard:4096/q:4,bucket=512"), 4096);
  CHECK_EQ(granule("hadamard:64/q:4,bucket=192"), 192);
  CHECK_EQ(granule("hadamard:4096/q:4,bucket=192"), 12288);
  CHECK_EQ(granule("topk:0.01"), 0);
  check_refused("hadamard:65536/q:4,bucket=65472", PITH_ERR_RANGE, "multiple of the other");
}

TEST(only_codecs_of_several_exchanges_have_rounds) {
  pith_codec *codec = make("powersgd");
  CHECK_EQ(pith_codec_rounds(codec), 2);
  pith_codec_destroy(codec);
  codec = make("ef/q:4");
  CHECK_EQ(pith_codec_rounds(codec), 0);
  pith_codec_destroy(codec);
}

/* ---- encode=once ---- */

static void check_spec(const char *text, const char *spec, uint32_t once) {
  pith_codec *codec = make(text);
  CHECK_STR(pith_codec_spec(codec), spec);
  CHECK_EQ(pith_codec_caps(codec) & PITH_CAP_ONCE, once);
  pith_codec_destroy(codec);
}

TEST(encode_is_a_word_of_every_spec) {
  check_spec("q:4,encode=once,bucket=128", "q:4,bucket=128,encode=once", PITH_CAP_ONCE);
  check_spec("ef/hadamard/q:2,encode=once", "ef/hadamard/q:2,encode=once", PITH_CAP_ONCE);
  check_spec("signsgd,encode=once", "signsgd,encode=once", PITH_CAP_ONCE);
  check_spec("q:4,encode=auto", "q:4", 0);
  check_spec("ef/topk:0.01,encode=once", "ef/topk:0.01", 0); /* it always is */
  pith_codec *once = make("q:4,encode=once"), *plain = make("q:4");
  CHECK(pith_codec_fingerprint(once) != pith_codec_fingerprint(plain));
  pith_codec_destroy(once);
  pith_codec_destroy(plain);
  check_refused("q:4,encode=twice", PITH_ERR_SPEC, "auto|once");
  check_refused("q:4,encode=once,encode=once", PITH_ERR_SPEC, "given twice");
  check_refused("ef,encode=once/q:4", PITH_ERR_SPEC, "ef has no parameter");
  check_refused("powersgd:4,encode=once", PITH_ERR_UNSUPPORTED, "its exchanges are sums");
}
