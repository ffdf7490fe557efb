/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The adapter without a network: several ranks in one thread, whose numbers are added up here, and step times that
 * follow from a link of our own making. So what auto chooses can be tested without a clock.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "adapt/adapt.h"
#include "test.h"

enum { RANKS = 2, LAYERS = 4, N = 64 * 128 };

static const size_t shapes[LAYERS][2] = {{64, 128}, {128, 64}, {64, 128}, {256, 1}};
static const char *const names[LAYERS] = {"one", "two", "three", "bias"};

typedef struct fleet {
  pith_adapter *a[RANKS];
  double compute;   /* seconds */
  double bandwidth; /* bytes per second */
  double codec;     /* seconds for a value that is compressed */
  uint64_t step;
  double scale[LAYERS]; /* of gradients */
} fleet;

static fleet make(const char *spec) {
  fleet f = {.compute = 0.1, .bandwidth = 1e9, .codec = 1e-9, .scale = {1, 1, 1, 1}};
  for (int r = 0; r < RANKS; r++) {
    pith_layer layers[LAYERS];
    for (size_t l = 0; l < LAYERS; l++) {
      layers[l] = (pith_layer){sizeof(pith_layer), names[l], shapes[l], shapes[l][1] == 1 ? 1 : 2, PITH_F32, NULL};
    }
    CHECK_OK(pith_adapter_create(spec, layers, LAYERS, r, RANKS, 3, &f.a[r]));
  }
  return f;
}

static void destroy(fleet *f) {
  for (int r = 0; r < RANKS; r++) {
    pith_adapter_destroy(f->a[r]);
  }
}

/* Nearly of low rank, with a few large values: what gradients are like. */
static void fill(const fleet *f, int rank, size_t layer, float *x) {
  size_t n = shapes[layer][0] * shapes[layer][1], cols = shapes[layer][1];
  uint32_t h = (uint32_t)(f->step * 97 + layer * 31 + (size_t)rank * 7 + 1);
  for (size_t i = 0; i < n; i++) {
    h = h * 1664525u + 1013904223u;
    double noise = (double)(h >> 8) / (1 << 24) - 0.5;
    double wave = sin((double)(i / cols) * 0.7) * cos((double)(i % cols) * 0.3);
    x[i] = (float)(f->scale[layer] * (wave + 0.2 * noise + (h % 97 == 0 ? 3 * noise : 0)));
  }
}

/* What a step would take on that link with the specs in force. */
static double seconds_of(const fleet *f) {
  double bytes = 0, values = 0;
  for (size_t l = 0; l < LAYERS; l++) {
    const char *spec = pith_adapter_spec(f->a[0], l);
    size_t n = shapes[l][0] * shapes[l][1];
    pith_codec *codec;
    CHECK_OK(pith_codec_create(spec, &codec));
    int exact = !strcmp(spec, "none"), lowrank = strstr(spec, "powersgd") != NULL;
    bytes += lowrank                ? 4.0 * (double)(shapes[l][0] + shapes[l][1]) * codec->args[0].i
             : strstr(spec, "topk") ? 6 * codec->args[0].f * (double)n
                                    : (double)pith_codec_bound(codec, n);
    values += exact ? 0 : (double)n;
    pith_codec_destroy(codec);
  }
  return f->compute + bytes / f->bandwidth + values * f->codec;
}

static void add_up(double *const numbers[RANKS], size_t count) {
  for (size_t i = 0; i < count; i++) {
    double sum = 0;
    for (int r = 0; r < RANKS; r++) {
      sum += numbers[r][i];
    }
    for (int r = 0; r < RANKS; r++) {
      numbers[r][i] = sum;
    }
  }
}

static void show_gradients(fleet *f) {
  static float x[N];
  for (int r = 0; r < RANKS; r++) {
    for (size_t l = 0; l < LAYERS; l++) {
      if (pith_adapter_wants(f->a[r], l)) {
        fill(f, r, l, x);
        CHECK_OK(pith_adapter_observe(f->a[r], l, (pith_cspan){x, shapes[l][0] * shapes[l][1], PITH_F32}));
      }
    }
  }
}

static int take_step(fleet *f) {
  double *numbers[RANKS], total = seconds_of(f);
  size_t count[RANKS];
  int changed[RANKS];
  show_gradients(f);
  for (int r = 0; r < RANKS; r++) {
    pith_adapter_step m = {sizeof m, total, total - f->compute / 2, total - f->compute};
    CHECK_OK(pith_adapter_finish(f->a[r], &m, &numbers[r], &count[r]));
    CHECK_EQ(count[r], count[0]);
  }
  add_up(numbers, count[0]);
  for (int r = 0; r < RANKS; r++) {
    double seconds = count[0] ? 1e-5 + (double)count[0] * 8 / f->bandwidth : 0;
    CHECK_OK(pith_adapter_advance(f->a[r], seconds, &changed[r]));
    CHECK_EQ(changed[r], changed[0]);
    for (size_t l = 0; l < LAYERS; l++) {
      CHECK_STR(pith_adapter_spec(f->a[r], l), pith_adapter_spec(f->a[0], l));
      CHECK_STR(pith_adapter_reason(f->a[r], l), pith_adapter_reason(f->a[0], l));
    }
  }
  f->step++;
  return changed[0];
}

static void take_steps(fleet *f, uint64_t until) {
  while (f->step < until) {
    take_step(f);
  }
}

/* ---- auto -------------------------------------------------------------------------------------------------------- */

TEST(candidates_with_one_spec_for_all_layers_are_known) {
  for (size_t i = 0; i < PITH_PLANS; i++) {
    pith_codec *codec = NULL;
    int is_spec = pith_codec_create(pith__shortlist_plans[i].name, &codec) == PITH_OK;
    CHECK_MSG((pith__shortlist_plans[i].method == PITH_PLAN_UNIFORM) == is_spec, "%s", pith__shortlist_plans[i].name);
    pith_codec_destroy(codec);
  }
}

TEST(auto_compresses_on_a_slow_link) {
  fleet f = make("auto");
  f.bandwidth = 1e5;
  take_steps(&f, 19);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), "none");
  take_steps(&f, 150);
  double chosen = seconds_of(&f);
  CHECK_MSG(chosen < 0.25, "%s takes %g s", pith_adapter_reason(f.a[0], 0), chosen);
  CHECK(!strstr(pith_adapter_reason(f.a[0], 0), "trial"));
  CHECK_STR(pith_adapter_spec(f.a[0], 3), "none");
  CHECK_STR(pith_adapter_reason(f.a[0], 3), "one dimension");
  destroy(&f);
}

TEST(auto_does_nothing_on_a_fast_link) {
  fleet f = make("auto");
  f.bandwidth = 1e11;
  f.codec = 1e-6; /* 25 ms for all layers */
  take_steps(&f, 400);
  for (size_t l = 0; l < LAYERS; l++) {
    CHECK_STR(pith_adapter_spec(f.a[0], l), "none");
  }
  destroy(&f);
}

TEST(of_equally_fast_ones_the_most_exact_is_taken) {
  fleet f = make("auto");
  f.bandwidth = 1e8; /* 1 ms of 100 for all that is sent */
  f.codec = 0;
  take_steps(&f, 400);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), "none");
  destroy(&f);
}

TEST(a_link_that_changes_is_followed_within_500_steps) {
  fleet f = make("auto");
  f.bandwidth = 1e11;
  f.codec = 1e-8;
  take_steps(&f, 300);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), "none");
  f.bandwidth = 1e5;
  take_steps(&f, 480);
  CHECK(seconds_of(&f) < 0.25);
  f.bandwidth = 1e11;
  f.codec = 3e-6;
  take_steps(&f, 980);
  CHECK_MSG(!strcmp(pith_adapter_spec(f.a[0], 0), "none"), "%s", pith_adapter_reason(f.a[0], 0));
  destroy(&f);
}

/* Step times from before a change must not decide trials after it: whenever it comes, steps are soon as short as they
 * can be. */
TEST_WITHIN(a_change_at_any_step_before_a_plan_is_followed, 120) {
  for (uint64_t before = 1; before < 40; before += 3) {
    fleet f = make("auto");
    f.bandwidth = 1e7;
    f.codec = 3e-8;
    take_steps(&f, 200);
    while (pith_adapter_next_plan(f.a[0]) < f.step + 40) { /* trials are under way, or about to be */
      take_step(&f);
    }
    take_steps(&f, pith_adapter_next_plan(f.a[0]) - before);
    f.bandwidth = 1e5;
    take_steps(&f, f.step + 300);
    CHECK_MSG(seconds_of(&f) < 0.25 && !strstr(pith_adapter_reason(f.a[0], 0), "trial"),
              "changed %d steps before a plan: %s takes %g s", (int)before, pith_adapter_reason(f.a[0], 0),
              seconds_of(&f));
    destroy(&f);
  }
}

/* A machine that is slower for a while, again and again, as others use it: nothing is to be gained by trying everything
 * every time. */
TEST(a_machine_that_is_never_calm_spends_few_steps_on_trials) {
  fleet f = make("auto");
  unsigned trials = 0;
  uint32_t h = 1;
  f.bandwidth = 1e6;
  for (; f.step < 3000;) {
    h = f.step % 70 ? h : h * 1664525u + 1013904223u;
    f.compute = 0.1 + 0.1 * (double)(h >> 8) / (1 << 24);
    take_step(&f);
    trials += f.step > 300 && strstr(pith_adapter_reason(f.a[0], 0), "trial") != NULL;
  }
  CHECK_MSG(trials <= 1200, "%u of 2700 steps are trials", trials);
  destroy(&f);
}

/* The steps of 1000 that settled training spends with other specs than those it stays with. */
TEST(trials_are_few_once_training_has_settled) {
  fleet f = make("auto");
  f.bandwidth = 3e5;
  take_steps(&f, 300);
  unsigned trials = 0;
  for (; f.step < 1300;) {
    take_step(&f);
    trials += strstr(pith_adapter_reason(f.a[0], 0), "trial") != NULL;
  }
  CHECK_MSG(trials <= 100, "%u of 1000 steps are trials", trials);
  destroy(&f);
}

/* Coding takes far longer here than anybody could predict. */
TEST(a_trial_that_is_much_slower_ends_after_two_steps) {
  fleet f = make("auto,warmup=16");
  unsigned trials = 0, steps = 0;
  f.bandwidth = 1e6;
  f.codec = 1e-4;
  while (f.step < 60) {
    int changed = take_step(&f), is_trial = strstr(pith_adapter_reason(f.a[0], 0), "trial of") != NULL;
    trials += changed && is_trial;
    steps += is_trial;
  }
  CHECK(trials >= 3);
  CHECK_EQ(steps, 2 * trials);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), "none");
  destroy(&f);
}

TEST(without_times_nothing_is_tried) {
  fleet f = make("auto");
  f.compute = f.codec = 0;
  f.bandwidth = INFINITY;
  take_steps(&f, 120);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), "none");
  destroy(&f);
}

TEST(one_rank_does_nothing) {
  pith_adapter *a;
  size_t count;
  double *numbers;
  int changed;
  CHECK_OK(pith_adapter_create("auto", &(pith_layer){sizeof(pith_layer), "one", shapes[0], 2, PITH_F32, NULL}, 1, 0, 1,
                               3, &a));
  for (int step = 0; step < 100; step++) {
    pith_adapter_step m = {sizeof m, 1, 1, 1};
    CHECK(!pith_adapter_wants(a, 0));
    CHECK_OK(pith_adapter_finish(a, &m, &numbers, &count));
    CHECK_EQ(count, 0);
    CHECK_OK(pith_adapter_advance(a, 0, &changed));
    CHECK_EQ(changed, 0);
  }
  CHECK(strstr(pith_adapter_reason(a, 0), "one rank"));
  pith_adapter_destroy(a);
}

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

/* The plan keeps the budget by the statistics that it was made from, and is smaller than the uniform one. */
static void check_budget(const pith_adapter *a, const char *uniform, double alpha, int own_family) {
  double bytes = 0, error = 0, limit = 0, whole = 0;
  size_t reference;
  CHECK_OK(pith__profile_find(a->last, uniform, &reference));
  for (size_t l = 0; l < LAYERS; l++) {
    double b, e;
    CHECK_OK(pith_profile_get(a->last, l, a->in_force[l], &b, &e));
    bytes += b, error += e;
    CHECK_OK(pith_profile_get(a->last, l, reference, &b, &e));
    whole += b, limit += alpha * e;
  }
  CHECK_MSG(error <= limit * (1 + 1e-12), "error %g of %g", error, limit);
  CHECK_MSG(!own_family || bytes <= whole, "%g bytes instead of %g", bytes, whole);
}

/* However slow the link, nothing that loses more than the budget is in force for a single step. */
TEST(auto_keeps_a_budget) {
  static const char *const wrong[] = {"topk", "powersgd"};
  fleet f = make("auto,budget=q:4"), free_to_choose = make("auto");
  f.bandwidth = free_to_choose.bandwidth = 1e4;
  int others = 0, compressed = 0;
  while (f.step < 400) {
    take_step(&f), take_step(&free_to_choose);
    int mixed = strstr(pith_adapter_reason(f.a[0], 0), "mix") != NULL;
    for (size_t l = 0; l < LAYERS; l++) {
      for (size_t i = 0; i < 2; i++) {
        CHECK_MSG(mixed || !strstr(pith_adapter_spec(f.a[0], l), wrong[i]), "%s in step %d",
                  pith_adapter_reason(f.a[0], l), (int)f.step);
        others += strstr(pith_adapter_spec(free_to_choose.a[0], l), wrong[i]) != NULL;
      }
      compressed += strcmp(pith_adapter_spec(f.a[0], l), "none") != 0;
    }
  }
  CHECK(others > 400 && compressed > 1000);
  check_budget(f.a[0], "q:4", 1, 0);
  destroy(&f), destroy(&free_to_choose);
}

/* However slow the link, no layer has a spec whose gradients arrive late for a single step: not in a trial, not in a
 * mix, not after the link has changed. */
TEST(auto_without_delayed_gradients_never_chooses_what_arrives_late) {
  static const char *const specs[] = {"auto,delayed=0", "auto,delayed=0,budget=q:4"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    fleet f = make(specs[i]);
    int compressed = 0;
    while (f.step < 700) {
      f.bandwidth = f.step < 350 ? 1e4 : 1e6;
      take_step(&f);
      for (size_t l = 0; l < LAYERS; l++) {
        int left_out;
        CHECK_OK(pith__adapt_leaves_out(&f.a[0]->options, pith_adapter_spec(f.a[0], l), &left_out));
        CHECK_MSG(!left_out, "%s in step %d", pith_adapter_reason(f.a[0], l), (int)f.step);
        compressed += strcmp(pith_adapter_spec(f.a[0], l), "none") != 0;
      }
    }
    CHECK(compressed > 1500);
    CHECK(strstr(pith_adapter_reason(f.a[0], 0), "delayed=0"));
    destroy(&f);
  }
}

TEST(plans_come_when_they_are_due_and_keep_the_budget) {
  static const struct {
    const char *spec, *uniform;
    double alpha;
    int smaller; /* than the uniform one */
  } tried[] = {
      {"lgreco:q:4,warmup=8,period=32", "q:4", 1, 1},
      {"lgreco:q:4,warmup=8,period=32,alpha=0.01", "q:4", 0.01, 0},
      {"lgreco:ef/topk:0.01,warmup=8,period=32,budget=q:8", "q:8", 1, 0}, /* more than top-k can do: exact layers */
      {"lgreco:mix,budget=q:4,warmup=8,period=32", "q:4", 1, 1},
      {"lgreco:ef/powersgd:4,warmup=8,period=32", "ef/powersgd:4", 1, 1},
      {"kmeans:q:4,warmup=8,period=32", "q:4", 1, 1}};
  for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
    fleet f = make(tried[i].spec);
    f.scale[1] = 10, f.scale[2] = 0.1;
    for (; f.step < 100;) {
      int changed = take_step(&f);
      CHECK_MSG(!changed || (f.step >= 8 && (f.step - 8) % 32 == 0), "%s changed before step %llu", tried[i].spec,
                (unsigned long long)f.step);
    }
    check_budget(f.a[0], tried[i].uniform, tried[i].alpha, tried[i].smaller);
    CHECK(strstr(pith_adapter_reason(f.a[0], 0), "plan of step"));
    destroy(&f);
  }
}

TEST(plans_that_gain_nothing_do_not_replace_the_old_one) {
  fleet f = make("lgreco:q:4,warmup=8,period=32");
  f.scale[1] = 10;
  unsigned changes = 0;
  while (f.step < 200) {
    changes += (unsigned)take_step(&f);
  }
  CHECK_EQ(changes, 1);
  f.scale[1] = 0.1;
  f.scale[2] = 30;
  while (f.step < 260) {
    changes += (unsigned)take_step(&f);
  }
  CHECK_EQ(changes, 2);
  destroy(&f);
}

TEST(accordion_follows_the_norm) {
  fleet f = make("accordion:q:4,q:8,warmup=8,period=32");
  take_steps(&f, 8);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), "q:8"); /* the first phase is critical */
  take_steps(&f, 40);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), "q:4");
  f.scale[0] = 3;
  take_steps(&f, 72);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), "q:8");
  CHECK_STR(pith_adapter_spec(f.a[0], 1), "q:4");
  destroy(&f);
}

TEST(layers_without_a_gradient_stay_exact) {
  fleet f = make("lgreco:q:4,warmup=8,period=32");
  f.scale[1] = NAN;
  take_steps(&f, 10);
  CHECK_STR(pith_adapter_spec(f.a[0], 1), "none");
  CHECK(strcmp(pith_adapter_spec(f.a[0], 0), "none") != 0);
  f.scale[0] = f.scale[2] = NAN; /* nothing to plan with: the old plan stays */
  char *spec = strdup(pith_adapter_spec(f.a[0], 0));
  take_steps(&f, 60);
  CHECK_STR(pith_adapter_spec(f.a[0], 0), spec);
  free(spec);
  destroy(&f);
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static pith_out save(pith_adapter *a) {
  pith_out out = {malloc(pith_adapter_save_size(a)), pith_adapter_save_size(a), 0};
  CHECK_OK(pith_adapter_save(a, &out));
  return out;
}

/* Saved at any step of a cycle, everything goes on in the same way. */
TEST_WITHIN(a_checkpoint_goes_on_with_the_same_plans, 120) {
  static const char *const specs[] = {"lgreco:mix,budget=q:4,warmup=8,period=32", "auto,warmup=12,period=64",
                                      "accordion:q:4,q:8,warmup=4,period=32"};
  for (size_t s = 0; s < 3; s++) {
    for (uint64_t at = 1; at < 60; at += 3) {
      fleet one = make(specs[s]), two = make(specs[s]);
      one.bandwidth = two.bandwidth = 3e5;
      take_steps(&one, at);
      for (int r = 0; r < RANKS; r++) {
        pith_out saved = save(one.a[r]);
        CHECK_OK(pith_adapter_load(two.a[r], (pith_bytes){saved.data, saved.size}));
        free(saved.data);
      }
      two.step = at;
      for (; one.step < at + 75;) {
        memset(one.a[0]->s.own.codec, 0, sizeof one.a[0]->s.own.codec);
        CHECK_EQ(take_step(&one), take_step(&two));
        for (size_t l = 0; l < LAYERS && s != 1; l++) { /* auto measures its codecs by a clock */
          CHECK_STR(pith_adapter_spec(one.a[0], l), pith_adapter_spec(two.a[0], l));
        }
      }
      destroy(&one);
      destroy(&two);
    }
  }
}

TEST(damaged_checkpoints_change_nothing) {
  fleet f = make("lgreco:q:4,warmup=8,period=32"), g = make("lgreco:q:3,warmup=8,period=32");
  take_steps(&f, 20);
  pith_out saved = save(f.a[0]);
  CHECK_STATUS(pith_adapter_load(g.a[0], (pith_bytes){saved.data, saved.size}), PITH_ERR_STATE);
  CHECK_STATUS(pith_adapter_load(f.a[0], (pith_bytes){saved.data, saved.size - 1}), PITH_ERR_CORRUPT);
  CHECK_STATUS(pith_adapter_load(f.a[0], (pith_bytes){saved.data, 3}), PITH_ERR_CORRUPT);
  for (size_t i = 0; i < saved.size; i += 1 + saved.size / 200) {
    ((uint8_t *)saved.data)[i] ^= 0x40;
    pith_status status = pith_adapter_load(f.a[1], (pith_bytes){saved.data, saved.size});
    CHECK(status == PITH_ERR_CORRUPT || status == PITH_ERR_STATE);
    ((uint8_t *)saved.data)[i] ^= 0x40;
  }
  take_steps(&f, 60);
  free(saved.data);
  destroy(&f);
  destroy(&g);
}

TEST(statistics_can_be_written) {
  char path[] = "/tmp/pith-adapt-XXXXXX";
  pith_profile *profile;
  int file = mkstemp(path);
  CHECK(file >= 0);
  fleet f = make("lgreco:q:4,warmup=8,period=32");
  CHECK_STATUS(pith_adapter_profile(f.a[0], path), PITH_ERR_STATE);
  take_steps(&f, 10);
  CHECK_OK(pith_adapter_profile(f.a[0], path));
  CHECK_OK(pith_profile_load(path, &profile));
  CHECK_EQ(pith_profile_layers(profile), LAYERS);
  pith_profile_layer layer = PITH_PROFILE_LAYER_INIT;
  CHECK_OK(pith_profile_layer_get(profile, 0, &layer));
  CHECK_EQ(layer.samples, 2 * RANKS);
  pith_profile_destroy(profile);
  remove(path);
  destroy(&f);
}
