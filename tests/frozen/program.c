/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses every struct of the C interface which can grow. tests/cli/compatible.sh builds it against the
 * headers of a release and runs it with a library whose structs have a field more, and the other way round.
 *
 *   program PLUGIN        a path of the plug-in float8, built against the same headers
 *
 * What the library fills is followed by a guard that it must not touch. With TAIL (which needs headers with the
 * additional field) the program uses the field that the library does not know, and must be refused.
 */
#include <pith/pith.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 4096

static int failures;

#define EXPECT(condition)                                                                                   \
  do {                                                                                                      \
    if (!(condition)) {                                                                                     \
      fprintf(stderr, "program.c:%d: %s is not so (last error: %s)\n", __LINE__, #condition, pith_error()); \
      failures++;                                                                                           \
    }                                                                                                       \
  } while (0)
#define OK(call) EXPECT((call) == PITH_OK)

/* A struct that the library fills, with a guard behind it. */
#define GUARD 0x5ca1ab1e0ddba11u
#define GUARDED(type, name) \
  struct {                  \
    type it;                \
    uint64_t guard;         \
  } name = {{.size = sizeof(type)}, GUARD}
#define FILLED(name) EXPECT((name).guard == GUARD && (name).it.size == sizeof(name).it)

static float values[N], result[N];

static void use_codecs(const char *plugin) {
  OK(pith_plugin_load(plugin));
  static const char *const specs[] = {"q:4", "ef/topk:0.01", "float8:128"};
  for (int i = 0; i < 3; i++) {
    pith_codec *codec = NULL;
    pith_state *state = NULL;
    struct {
      pith_ctx it;
      uint64_t behind; /* not the library's to read */
    } ctx = {PITH_CTX_INIT, GUARD};
    OK(pith_codec_create(specs[i], &codec));
    OK(pith_state_create(codec, N, 64, &state));
    size_t bound = pith_codec_bound(codec, N);
    pith_out out = {malloc(bound), bound, 0};
    ctx.it.step = 3;
    OK(pith_encode(codec, state, (pith_cspan){values, N, PITH_F32}, &out, &ctx.it));
    OK(pith_decode(codec, (pith_bytes){out.data, out.size}, (pith_span){result, N, PITH_F32}, PITH_SET, &ctx.it));
    EXPECT(i == 1 || (result[7] > values[7] - 1 && result[7] < values[7] + 1));
    free(out.data);
    pith_state_destroy(state);
    pith_codec_destroy(codec);
  }
}

static void list_methods(void) {
  size_t params = 0, found = 0;
  for (size_t i = 0; i < pith_method_count(); i++) {
    GUARDED(pith_method, method);
    OK(pith_method_get(i, &method.it));
    FILLED(method);
    found += strcmp(method.it.name, "float8") == 0;
    const char *at = (const char *)method.it.params;
    for (; at && ((const pith_param *)(const void *)at)->key; at += method.it.params->size) {
      params++;
    }
  }
  EXPECT(found == 1 && params > 20);
  GUARDED(pith_method, adaptive);
  OK(pith_adaptive_get(0, &adaptive.it));
  FILLED(adaptive);
}

static void use_rules(void) {
  pith_rules *rules = NULL;
  GUARDED(pith_match, match);
  OK(pith_rules_create("embed*=none;*=q:4", &rules));
  OK(pith_rules_find(rules, "fc.weight", 2, N, &match.it));
  FILLED(match);
  EXPECT(match.it.rule == 1 && match.it.codec);
  pith_rules_destroy(rules);
}

static void use_rounds(void) {
  pith_codec *codec = NULL;
  pith_state *state = NULL;
  GUARDED(pith_round, round);
  OK(pith_codec_create("powersgd:2", &codec));
  OK(pith_state_create(codec, N, 64, &state));
  OK(pith_round_describe(codec, state, 0, &round.it));
  FILLED(round);
  EXPECT(round.it.count == 128);
  pith_state_destroy(state);
  pith_codec_destroy(codec);
}

static void use_comm(void) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm = NULL;
  config.rank = 0, config.ranks = 1, config.transport = "inproc";
  OK(pith_comm_create(&config, &comm));
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec = NULL;
  OK(pith_codec_create("q:4", &codec));
  call.codec = codec, call.step = 1, call.algorithm = "sra";
  OK(pith_allreduce(comm, (pith_cspan){values, N, PITH_F32}, (pith_span){result, N, PITH_F32}, PITH_MEAN, &call, NULL));
  EXPECT(memcmp(values, result, sizeof values) == 0);
  GUARDED(pith_stats, stats);
  GUARDED(pith_traffic, traffic);
  OK(pith_comm_stats(comm, &stats.it));
  OK(pith_comm_traffic(comm, "allreduce", &traffic.it));
  FILLED(stats);
  FILLED(traffic);
  EXPECT(stats.it.operations == 1 && traffic.it.raw_bytes == sizeof values);

  pith_reducer *reducer = NULL;
  pith_layer layer = {sizeof(pith_layer), "fc.weight", (size_t[]){64, 64}, 2, PITH_F32, NULL};
  size_t index = 9;
  OK(pith_reducer_create(comm, "q:4", 1, &reducer));
  OK(pith_reducer_add(reducer, &layer, &index));
  OK(pith_reducer_start(reducer, index, result));
  OK(pith_reducer_finish(reducer));
  GUARDED(pith_layer_stats, of_layer);
  GUARDED(pith_traffic, layer_traffic);
  OK(pith_reducer_layer_stats(reducer, 0, &of_layer.it));
  OK(pith_reducer_layer_traffic(reducer, 0, &layer_traffic.it));
  FILLED(of_layer);
  FILLED(layer_traffic);
  EXPECT(strcmp(of_layer.it.name, "fc.weight") == 0 && of_layer.it.steps == 1);
  pith_reducer_destroy(reducer);
  pith_codec_destroy(codec);
  pith_comm_destroy(comm);

  GUARDED(pith_launch, launch);
  setenv("RANK", "1", 1), setenv("WORLD_SIZE", "3", 1);
  OK(pith_launch_find(&launch.it));
  FILLED(launch);
  EXPECT(launch.it.rank == 1 && launch.it.ranks == 3);
}

/* Arrays: their elements must be found where the program put them. */
static void use_arrays(void) {
  size_t shape[] = {64, 64};
  pith_layer layers[3] = {{sizeof(pith_layer), "a", shape, 2, PITH_F32, NULL},
                          {sizeof(pith_layer), "b", shape, 2, PITH_F32, NULL},
                          {sizeof(pith_layer), "c", shape, 2, PITH_F32, NULL}};
  pith_profile *profile = NULL;
  OK(pith_profile_create(layers, 3, "q:2;q:4;q:8", &profile));
  pith_ctx ctx = PITH_CTX_INIT;
  for (size_t l = 0; l < 3; l++) {
    GUARDED(pith_profile_layer, layer);
    OK(pith_profile_update(profile, l, (pith_cspan){values, N, PITH_F32}, &ctx));
    OK(pith_profile_layer_get(profile, l, &layer.it));
    FILLED(layer);
    EXPECT(layer.it.name[0] == "abc"[l] && layer.it.samples == 1);
  }
  pith_plan_cost cost = PITH_PLAN_COST_INIT;
  pith_plan_request request = PITH_PLAN_REQUEST_INIT;
  pith_plan *plan = NULL;
  GUARDED(pith_plan_info, info);
  GUARDED(pith_plan_layer, line);
  request.uniform = "q:4", request.objective = PITH_PLAN_TIME, request.cost = &cost;
  OK(pith_plan_make(profile, &request, &plan));
  OK(pith_plan_info_get(plan, &info.it));
  OK(pith_plan_layer_get(plan, 2, &line.it));
  FILLED(info);
  FILLED(line);
  EXPECT(info.it.layers == 3 && strcmp(line.it.name, "c") == 0);

  pith_adapter *adapter = NULL;
  pith_adapter_step step = PITH_ADAPTER_STEP_INIT;
  double *numbers = NULL;
  size_t count = 0;
  OK(pith_adapter_create("lgreco:q:4", layers, 3, 0, 2, 1, &adapter));
  OK(pith_adapter_finish(adapter, &step, &numbers, &count));
  pith_adapter_destroy(adapter);

  pith_plan_destroy(plan);
  pith_profile_destroy(profile);
}

/* A size that was forgotten, in one struct or in one element of an array. */
static void forget_sizes(void) {
  pith_layer layers[2] = {PITH_LAYER_INIT, PITH_LAYER_INIT};
  pith_profile *profile = NULL;
  size_t shape[] = {64, 64};
  layers[0].name = "a", layers[1].name = "b";
  layers[0].shape = layers[1].shape = shape;
  layers[0].dimensions = layers[1].dimensions = 2;
  layers[1].size = 0;
  EXPECT(pith_profile_create(layers, 2, "q:4", &profile) == PITH_ERR_ARGUMENT && strstr(pith_error(), "element 1"));
  pith_match match = {.size = 0};
  pith_rules *rules = NULL;
  OK(pith_rules_create("q:4", &rules));
  EXPECT(pith_rules_find(rules, "x", 2, N, &match) == PITH_ERR_ARGUMENT && !match.codec);
  pith_rules_destroy(rules);
}

#ifdef TAIL
#define REFUSED(call) EXPECT((call) == PITH_ERR_ARGUMENT && strstr(pith_error(), "newer version"))

static void ask_for_more(void) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm = NULL;
  config.rank = 0, config.ranks = 1, config.transport = "inproc";
  config.pith_test_tail = 1;
  REFUSED(pith_comm_create(&config, &comm));
  config.pith_test_tail = 0;
  OK(pith_comm_create(&config, &comm));
  pith_call call = PITH_CALL_INIT;
  call.pith_test_tail = 1;
  REFUSED(
      pith_allreduce(comm, (pith_cspan){values, N, PITH_F32}, (pith_span){result, N, PITH_F32}, PITH_SUM, &call, NULL));
  pith_comm_destroy(comm);
  pith_layer layer = {sizeof(pith_layer), "a", (size_t[]){64, 64}, 2, PITH_F32, NULL, 1};
  pith_profile *profile = NULL;
  REFUSED(pith_profile_create(&layer, 1, "q:4", &profile));
  pith_codec *codec = NULL;
  pith_ctx ctx = PITH_CTX_INIT;
  OK(pith_codec_create("q:4", &codec));
  ctx.pith_test_tail = 1;
  REFUSED(pith_aggregate(codec, (pith_span){values, N, PITH_F32}, &ctx));
  pith_codec_destroy(codec);
}
#endif

int main(int count, char **arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: program PLUGIN\n");
    return 2;
  }
  for (int i = 0; i < N; i++) {
    values[i] = (float)(i % 37) / 37 - 0.5f;
  }
  use_codecs(arguments[1]);
  list_methods();
  use_rules();
  use_rounds();
  use_comm();
  use_arrays();
  forget_sizes();
#ifdef TAIL
  ask_for_more();
#endif
  printf("%s: %d failures\n", pith_version(), failures);
  return failures != 0;
}
