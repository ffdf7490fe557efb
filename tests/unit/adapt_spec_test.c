/* SPDX-License-Identifier: Apache-2.0 */
/* Adaptive specs: what can be written, and that mistakes are told at once. */
#include "adapt/adapt.h"
#include "test.h"

static pith_adapt_options o;

TEST(options_follow_the_spec) {
  CHECK_OK(pith__adapt_parse("lgreco:q:4", &o));
  CHECK_EQ(o.kind, PITH_ADAPT_LGRECO);
  CHECK_STR(o.spec, "q:4");
  CHECK_STR(o.budget, "q:4");
  CHECK_EQ(o.period, 256);
  CHECK_EQ(o.warmup, 20);
  CHECK_OK(pith__adapt_parse("  lgreco:ef/q:4,bucket=256,round=stochastic,period=300,warmup=5,alpha=0.5 ", &o));
  CHECK_STR(o.spec, "ef/q:4,bucket=256,round=stochastic");
  CHECK_EQ(o.period, 300);
  CHECK_EQ(o.warmup, 5);
  CHECK(o.alpha == 0.5);
  CHECK_OK(pith__adapt_parse("lgreco:mix,budget=q:4,bucket=256,alpha=2", &o));
  CHECK_STR(o.spec, "mix");
  CHECK_STR(o.budget, "q:4,bucket=256");
  CHECK_OK(pith__adapt_parse("lgreco:q:4,critical=q:8", &o));
  CHECK_STR(o.critical, "q:8");
  CHECK_OK(pith__adapt_parse("accordion:q:4,q:8,threshold=0.25", &o));
  CHECK_STR(o.spec, "q:4");
  CHECK_STR(o.critical, "q:8");
  CHECK(o.threshold == 0.25);
  CHECK_OK(pith__adapt_parse("accordion:q:4,bucket=256,q:8,bucket=128", &o));
  CHECK_STR(o.spec, "q:4,bucket=256");
  CHECK_STR(o.critical, "q:8,bucket=128");
  CHECK_OK(pith__adapt_parse("kmeans:eden:3", &o));
  CHECK_EQ(o.kind, PITH_ADAPT_KMEANS);
  CHECK_OK(pith__adapt_parse("auto,period=100", &o));
  CHECK_EQ(o.kind, PITH_ADAPT_AUTO);
  CHECK_EQ(o.period, 100);
}

TEST(adaptive_specs_are_told_from_others) {
  CHECK(pith_adapter_is("auto") && pith_adapter_is(" lgreco:q:4") && pith_adapter_is("kmeans") &&
        pith_adapter_is("auto,priod=3"));
  CHECK(!pith_adapter_is("q:4") && !pith_adapter_is("automatic") && !pith_adapter_is("") && !pith_adapter_is(NULL));
}

static const struct {
  const char *spec;
  pith_status status;
  const char *says;
} mistakes[] = {
    {"lgreco", PITH_ERR_SPEC, "a spec is missing"},
    {"lgreco:", PITH_ERR_SPEC, "a spec is missing"},
    {"lgreco:q:99", PITH_ERR_RANGE, "lgreco:q:99"},
    {"lgreco:quantum:4", PITH_ERR_SPEC, "quantum"},
    {"lgreco:q:4,period=x", PITH_ERR_SPEC, "period=x"},
    {"lgreco:q:4,period=3", PITH_ERR_SPEC, "from 32"},
    {"lgreco:q:4,period=40.5", PITH_ERR_SPEC, "whole"},
    {"lgreco:q:4,warmup=0", PITH_ERR_SPEC, "from 4"},
    {"lgreco:q:4,period=64,period=65", PITH_ERR_SPEC, "twice"},
    {"lgreco:q:4,alpha=0", PITH_ERR_SPEC, "alpha"},
    {"lgreco:q:4,alpha=", PITH_ERR_SPEC, "no value"},
    {"lgreco:q:4,speed=3", PITH_ERR_SPEC, "speed"},
    {"lgreco:q:4,fast", PITH_ERR_SPEC, "is no option"},
    {"lgreco:q:4,budget=none", PITH_ERR_RANGE, "loses nothing"},
    {"lgreco:none", PITH_ERR_RANGE, "loses nothing"},
    {"lgreco:mix", PITH_ERR_SPEC, "needs a budget"},
    {"kmeans:mix,budget=q:4", PITH_ERR_SPEC, "mix is for lgreco"},
    {"kmeans:q:4,critical=q:8", PITH_ERR_SPEC, "critical"},
    {"accordion:q:4", PITH_ERR_SPEC, "two specs"},
    {"accordion:q:4,q:8,budget=q:2", PITH_ERR_SPEC, "no budget"},
    {"auto:q:4", PITH_ERR_SPEC, "by itself"},
    {"auto,alpha=2", PITH_ERR_SPEC, "by itself"},
    {"auto,budget=none", PITH_ERR_RANGE, "loses nothing"},
    {"auto,budget=quantum", PITH_ERR_SPEC, "the budget"},
    {"auto,delayed=2", PITH_ERR_SPEC, "delayed=2"},
    {"auto,delayed=0.5", PITH_ERR_SPEC, "neither 0 nor 1"},
    {"auto,delayed=no", PITH_ERR_SPEC, "delayed=no"},
    {"auto,delayed=0,delayed=0", PITH_ERR_SPEC, "twice"},
    {"auto,delayed=0,budget=ef/topk:0.01", PITH_ERR_SPEC, "arrive late"},
    {"auto,delayed=0,budget=ef/powersgd:4", PITH_ERR_SPEC, "arrive late"},
    {"lgreco:moment/onebit", PITH_ERR_SPEC, "for gradients"},
    {"lgreco:q:4,delayed=0", PITH_ERR_SPEC, "no option of lgreco"},
    {"greedy:q:4", PITH_ERR_SPEC, "no adaptive spec"},
    {"lgreco:q:4,metric=l3", PITH_ERR_SPEC, "neither l2sq nor l2"},
    {"lgreco:q:4,cap=0.5", PITH_ERR_SPEC, "cap=0.5"},
    {"lgreco:q:4,critical=q:8,cap=2", PITH_ERR_SPEC, "there are two"},
    {"lgreco:q:4,tolerance=0", PITH_ERR_SPEC, "tolerance=0"},
    {"lgreco:q:4,tolerance=0.1,alpha=2", PITH_ERR_SPEC, "give one of them"},
    {"lgreco:q:4,accumulate=0", PITH_ERR_SPEC, "from 1"},
    {"lgreco:q:4,accumulate=5000", PITH_ERR_SPEC, "at most"},
    {"lgreco:q:4,start=-1", PITH_ERR_SPEC, "start=-1"},
    {"auto,accumulate=4", PITH_ERR_SPEC, "no option of auto"},
    {"accordion:q:4,q:8,metric=l2", PITH_ERR_SPEC, "no option of accordion"},
    {"best:q:4,critical=q:8", PITH_ERR_SPEC, "best has no critical"},
    {"linear", PITH_ERR_SPEC, "a spec is missing"},
    {"global:q:4", PITH_ERR_SPEC, "largest values"},
};

TEST(mistakes_are_told) {
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    pith_status status = pith_adapter_check(mistakes[i].spec);
    CHECK_MSG(status == mistakes[i].status, "%s is \"%s\" (%s)", mistakes[i].spec, pith_status_string(status),
              pith_error());
    CHECK_ERROR_SAYS(mistakes[i].says);
  }
  CHECK_STATUS(pith_adapter_check(NULL), PITH_ERR_ARGUMENT);
}

static void check_candidates(const char *spec, int ranks, const char *wanted) {
  char text[4096];
  CHECK_OK(pith__adapt_parse(spec, &o));
  CHECK_OK(pith__adapt_candidates(&o, ranks, text, sizeof text));
  CHECK_STR(text, wanted);
}

TEST(candidates_serve_the_ranks_there_are) {
  check_candidates("lgreco:gq:8", 7, "gq:4;gq:8;none");
  check_candidates("lgreco:gq:8", 8, "gq:8;none");
  check_candidates("lgreco:eden:2", 200, "eden:1;eden:2;eden:3;eden:4;none");
}

/* What error feedback sends later are parts of sparse and low-rank gradients; quantizers send all of it at once. */
TEST(without_delayed_gradients_sparse_and_low_rank_specs_are_no_candidates) {
  static const char *const late[] = {"ef/topk:0.01", "dgc:0.01", "ef/randomk:0.1", "ef/threshold:0.1", "ef/powersgd:4"};
  static const char *const at_once[] = {"none",      "bf16",   "q:4",        "ef/q:2",      "efsignsgd", "ef/gq:8",
                                        "topk:0.01", "eden:2", "powersgd:4", "randomk:0.1", "onebit"};
  int left_out;
  CHECK_OK(pith__adapt_parse("auto,delayed=0", &o));
  for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
    CHECK_OK(pith__adapt_leaves_out(&o, late[i], &left_out));
    CHECK_MSG(left_out, "%s", late[i]);
  }
  for (size_t i = 0; i < sizeof at_once / sizeof *at_once; i++) {
    CHECK_OK(pith__adapt_leaves_out(&o, at_once[i], &left_out));
    CHECK_MSG(!left_out, "%s", at_once[i]);
  }
  char text[8192], all[8192];
  CHECK_OK(pith__adapt_candidates(&o, 2, text, sizeof text));
  CHECK(strstr(text, "q:4") && strstr(text, "eden:2") && strstr(text, "bf16") && strstr(text, "none"));
  CHECK(!strstr(text, "topk") && !strstr(text, "powersgd"));
  CHECK_OK(pith__adapt_parse("auto,delayed=1", &o));
  CHECK_OK(pith__adapt_candidates(&o, 2, all, sizeof all));
  CHECK(strstr(all, "ef/topk:0.01") && strstr(all, "ef/powersgd:4"));
  CHECK_OK(pith__adapt_leaves_out(&o, "ef/topk:0.01", &left_out));
  CHECK(!left_out);
}

/* auto has to know how long exact steps take. */
TEST(training_begins_with_the_spec_whose_error_is_the_budget) {
  static const char *const specs[] = {"auto",
                                      "auto,budget=q:8",
                                      "lgreco:q:4",
                                      "lgreco:ef/topk:0.01,budget=q:8",
                                      "kmeans:ef/powersgd:4",
                                      "accordion:q:4,q:8",
                                      "lgreco:mix,budget=ef/topk:0.02"};
  static const char *const first[] = {"none", "none", "q:4", "q:8", "ef/powersgd:4", "q:8", "ef/topk:0.02"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    pith_adapter *a;
    size_t shape[2] = {64, 64};
    CHECK_OK(pith_adapter_create(specs[i], &(pith_layer){sizeof(pith_layer), "fc", shape, 2, PITH_F32, NULL}, 1, 0, 2,
                                 1, &a));
    CHECK_STR(pith_adapter_spec(a, 0), first[i]);
    CHECK(strstr(pith_adapter_reason(a, 0), "warm-up"));
    pith_adapter_destroy(a);
  }
}

TEST(the_options_of_a_spec_can_be_asked_for) {
  static const struct {
    const char *spec, *key, *value;
  } cases[] = {{"auto", "budget", ""},
               {"auto,budget=q:4", "budget", "q:4"},
               {"auto", "period", "256"},
               {"lgreco:q:4", "spec", "q:4"},
               {"lgreco:q:4", "budget", "q:4"},
               {"lgreco:q:4", "floor", "0.5"},
               {"lgreco:q:4,alpha=2", "alpha", "2"},
               {"accordion:q:4,q:8", "critical", "q:8"},
               {"auto,warmup=5", "warmup", "5"},
               {"lgreco:q:4", "metric", "l2sq"},
               {"best:q:4,metric=l2", "metric", "l2"},
               {"lgreco:q:4,cap=2", "cap", "2"},
               {"linear:q:4,tolerance=0.01", "tolerance", "0.01"},
               {"accordion:q:4,q:8,accumulate=4", "accumulate", "4"},
               {"lgreco:q:4,start=1000", "start", "1000"},
               {"auto", "delayed", "1"},
               {"auto,budget=q:4,delayed=0", "delayed", "0"},
               {"auto,delayed=0", "budget", ""}};
  char text[64];
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    CHECK_OK(pith_adapter_option(cases[i].spec, cases[i].key, text, sizeof text));
    CHECK_STR(text, cases[i].value);
  }
  CHECK_STATUS(pith_adapter_option("auto", "colour", text, sizeof text), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_adapter_option("q:4", "period", text, sizeof text), PITH_ERR_SPEC);
}

/* What is listed is what can be written: every option with its default is one that the parser knows. */
TEST(every_adaptive_spec_is_listed_with_its_options) {
  static const char *const whole[] = {"auto",       "lgreco:q:4", "kmeans:q:4", "accordion:q:4,q:8",  "cgxkmeans:q:4",
                                      "linear:q:4", "best:q:4",   "bayes:q:4",  "global:ef/topk:0.01"};
  pith_method method = PITH_METHOD_INIT;
  size_t i = 0;
  for (; pith_adaptive_get(i, &method) == PITH_OK; i++) {
    char text[64];
    CHECK(pith_adapter_is(method.name));
    CHECK(method.summary && pith_adaptive_use(i));
    for (const pith_param *option = method.params; option->key; option++) {
      CHECK_OK(pith_adapter_option(whole[i], option->key, text, sizeof text));
      if (option->initial) {
        CHECK_STR(text, option->initial);
      }
    }
  }
  CHECK_EQ(i, sizeof whole / sizeof *whole);
  CHECK(!pith_adaptive_use(i));
}
