/* SPDX-License-Identifier: Apache-2.0 */
/* The event engine on schedules written by hand, whose times a person can compute. */
#include "sim/engine.h"

#include <math.h>
#include <stdlib.h>

#include "sim/events.h"
#include "test.h"

#define RATE 1e6    /* bytes per second */
#define LATENCY 0.5 /* seconds: nothing is lost in rounding */
#define RANKS_MOST 8

/* Work of n values takes n seconds. */
static pith_status payload(const pith_sim_costs *costs, pith_effort effort, size_t n, int passes, size_t bound,
                           size_t *bytes) {
  (void)costs, (void)effort, (void)n, (void)passes;
  *bytes = bound;
  return PITH_OK;
}

static double seconds(const pith_sim_costs *costs, pith_effort effort, int mode, size_t n, int passes) {
  (void)costs, (void)effort, (void)mode;
  return (double)n * (passes ? passes : 1);
}

static const pith_sim_costs costs = {payload, seconds};

typedef struct world {
  int ranks;
  pith_schedule schedule[RANKS_MOST];
  pith_sim_network network;
  pith_layout *layout;
  int pool[RANKS_MOST], cores[RANKS_MOST];
} world;

/* `per_host` ranks on each host, a core for each rank, no cost of messages. */
static void make_world(world *w, int ranks, int per_host) {
  uint64_t host[RANKS_MOST];
  *w = (world){.ranks = ranks};
  for (int r = 0; r < ranks; r++) {
    w->schedule[r].is_dry = 1;
    host[r] = (uint64_t)(r / per_host);
    w->pool[r] = r;
    w->cores[r] = 1;
  }
  CHECK_OK(pith__layout_create(ranks, host, &w->layout));
  w->network = (pith_sim_network){.layout = w->layout,
                                  .rate = RATE,
                                  .latency = LATENCY,
                                  .segment = 32 << 10,
                                  .inside_rate = 4 * RATE,
                                  .inside_latency = LATENCY / 4,
                                  .pools = ranks,
                                  .pool = w->pool,
                                  .cores = w->cores,
                                  .straggler = -1,
                                  .straggler_factor = 1,
                                  .slow_host = -1};
}

static pith_status run(world *w, pith_sim_totals *totals) {
  pith_sim_classes classes = {.count = 0};
  pith_sim_graph graph[RANKS_MOST];
  for (int r = 0; r < w->ranks; r++) {
    CHECK_OK(pith__sim_graph_make(&w->schedule[r], &costs, &classes, &graph[r]));
    pith__schedule_fini(&w->schedule[r]);
  }
  pith_status status = pith__sim_run(&w->network, &classes, graph, totals);
  for (int r = 0; r < w->ranks; r++) {
    pith__sim_graph_free(&graph[r]);
  }
  free(classes.of);
  pith__layout_destroy(w->layout);
  return status;
}

static double time_of(world *w) {
  pith_sim_totals totals;
  CHECK_OK(run(w, &totals));
  return totals.seconds;
}

/* A message of so many bytes with its header; returns the receive. */
static uint32_t message(world *w, int from, int to, uint32_t tag, size_t bytes, uint32_t before) {
  pith_schedule *a = &w->schedule[from], *b = &w->schedule[to];
  pith__schedule_send(a, to, tag, pith__schedule_piece_over(a, NULL, bytes - PITH_SIM_HEADER), before);
  return pith__schedule_receive(b, from, tag, pith__schedule_piece_over(b, NULL, bytes - PITH_SIM_HEADER),
                                PITH_NO_TASK);
}

static uint32_t work(world *w, int rank, size_t n, uint32_t before) {
  return pith__schedule_work(&w->schedule[rank], (pith_task){.effort = PITH_EFFORT_SUM, .n = n}, before);
}

static int is_near(double a, double b) { return fabs(a - b) < 1e-9 * b; }

TEST(a_message_takes_latency_and_its_bytes) {
  world w;
  pith_sim_totals t;
  make_world(&w, 2, 1);
  message(&w, 0, 1, 1, 1000000, PITH_NO_TASK);
  CHECK_OK(run(&w, &t));
  CHECK(is_near(t.seconds, LATENCY + 1));
  CHECK(t.messages == 1 && t.rank_bytes == 1000000 && t.nic_bytes == 1000000 && t.switch_bytes == 1000000);
  CHECK(t.inside_bytes == 0 && t.steps == 1 && t.encodings == 0);
}

TEST(inside_a_host_the_inside_link_counts) {
  world w;
  pith_sim_totals t;
  make_world(&w, 2, 2);
  message(&w, 0, 1, 1, 1000000, PITH_NO_TASK);
  CHECK_OK(run(&w, &t));
  CHECK(is_near(t.seconds, LATENCY / 4 + 0.25));
  CHECK(t.inside_bytes == 1000000 && t.switch_bytes == 0 && t.nic_bytes == 0);
}

/* Both directions of a link are used at once. */
TEST(links_are_full_duplex) {
  world w;
  make_world(&w, 2, 1);
  message(&w, 0, 1, 1, 1000000, PITH_NO_TASK);
  message(&w, 1, 0, 1, 1000000, PITH_NO_TASK);
  CHECK(is_near(time_of(&w), LATENCY + 1));
}

/* Two flows leave one NIC, or enter one: each has half of it. */
TEST(two_flows_share_a_nic) {
  world w;
  make_world(&w, 3, 1);
  message(&w, 0, 1, 1, 1000000, PITH_NO_TASK);
  message(&w, 0, 2, 1, 1000000, PITH_NO_TASK);
  CHECK(is_near(time_of(&w), LATENCY + 2));
  make_world(&w, 3, 1);
  message(&w, 1, 0, 1, 1000000, PITH_NO_TASK);
  message(&w, 2, 0, 1, 1000000, PITH_NO_TASK);
  CHECK(is_near(time_of(&w), LATENCY + 2));
}

/* A short message is not behind a long one of another link: it waits for segments, not for messages. */
TEST(a_nic_serves_its_flows_in_turn) {
  world w;
  make_world(&w, 3, 1);
  message(&w, 0, 1, 1, 1000000, PITH_NO_TASK);
  uint32_t second = message(&w, 0, 2, 1, 32768, PITH_NO_TASK);
  work(&w, 2, 10, second);
  CHECK(is_near(time_of(&w), LATENCY + 2 * 0.032768 + 10));
}

TEST(messages_of_a_link_stay_in_order) {
  world w;
  make_world(&w, 2, 1);
  message(&w, 0, 1, 2, 1000000, PITH_NO_TASK);
  uint32_t second = message(&w, 0, 1, 1, 1000, PITH_NO_TASK);
  work(&w, 1, 10, second);
  CHECK(is_near(time_of(&w), LATENCY + 1.001 + 10));
}

TEST(a_chain_of_messages_adds_up) {
  world w;
  pith_sim_totals t;
  make_world(&w, 3, 1);
  uint32_t first = message(&w, 0, 1, 1, 1000, PITH_NO_TASK);
  message(&w, 1, 2, 1, 1000, first);
  CHECK_OK(run(&w, &t));
  CHECK(is_near(t.seconds, 2 * (LATENCY + 0.001)));
  CHECK(t.steps == 2 && t.messages == 2);
}

/* 4 links of rate 1 behind a switch of rate 2: 4 flows take twice as long. */
TEST(an_oversubscribed_switch_is_shared) {
  world w;
  make_world(&w, 4, 1);
  w.network.switch_rate = 2 * RATE;
  for (int r = 0; r < 4; r++) {
    message(&w, r, (r + 1) % 4, 1, 1000000, PITH_NO_TASK);
  }
  CHECK(fabs(time_of(&w) - (LATENCY + 2)) <
        0.02); /* the last segment leaves the switch at its rate, not at that of a link */
}

TEST(a_slow_link_delays_its_own_flows) {
  world w;
  make_world(&w, 4, 1);
  w.network.slow_host = 1;
  w.network.slow_rate = RATE / 10;
  message(&w, 2, 3, 1, 1000000, PITH_NO_TASK);
  CHECK(is_near(time_of(&w), LATENCY + 1));
  make_world(&w, 4, 1);
  w.network.slow_host = 1;
  w.network.slow_rate = RATE / 10;
  message(&w, 0, 1, 1, 1000000, PITH_NO_TASK);
  CHECK(fabs(time_of(&w) - (LATENCY + 10)) < 0.04); /* a segment at the full rate */
}

/* A slow sender does not keep a fast receiver from hearing others. */
TEST(a_slow_sender_leaves_the_receiver_free) {
  world w;
  make_world(&w, 3, 1);
  w.network.slow_host = 1;
  w.network.slow_rate = RATE / 10;
  message(&w, 1, 0, 1, 1000000, PITH_NO_TASK);
  uint32_t fast = message(&w, 2, 0, 1, 500000, PITH_NO_TASK);
  work(&w, 0, 100, fast);
  CHECK(fabs(time_of(&w) - (LATENCY + 0.5 + 100)) < 0.1);
}

TEST(work_is_done_one_after_another_and_a_straggler_takes_longer) {
  world w;
  make_world(&w, 2, 1);
  for (int i = 0; i < 3; i++) {
    work(&w, 0, 2, PITH_NO_TASK);
    work(&w, 1, 2, PITH_NO_TASK);
  }
  CHECK(is_near(time_of(&w), 6));
  make_world(&w, 2, 1);
  w.network.straggler = 1;
  w.network.straggler_factor = 2.5;
  for (int i = 0; i < 3; i++) {
    work(&w, 0, 2, PITH_NO_TASK);
    work(&w, 1, 2, PITH_NO_TASK);
  }
  CHECK(is_near(time_of(&w), 15));
}

TEST(ranks_share_the_cores_of_a_pool) {
  world w;
  make_world(&w, 4, 1);
  w.network.pools = 1;
  w.cores[0] = 2;
  for (int r = 0; r < 4; r++) {
    w.pool[r] = 0;
    work(&w, r, 3, PITH_NO_TASK);
  }
  CHECK(is_near(time_of(&w), 6));
}

/* Of what can run, messages come first, then the task of the lowest number. */
TEST(the_lowest_task_runs_first) {
  world w;
  make_world(&w, 2, 1);
  uint32_t first = work(&w, 0, 1, PITH_NO_TASK);
  work(&w, 0, 10, PITH_NO_TASK);
  message(&w, 0, 1, 1, 1000, first);
  work(&w, 1, 20, 0);
  CHECK(is_near(time_of(&w), 1 + LATENCY + 0.001 + 20));
}

TEST(messages_cost_both_processors) {
  world w;
  make_world(&w, 2, 1);
  w.network.message = 2;
  w.network.byte = 1e-3;
  message(&w, 0, 1, 1, 1000, PITH_NO_TASK);
  CHECK(is_near(time_of(&w), 2 * (2 + 1) + LATENCY + 0.001));
}

TEST(a_receive_that_is_posted_late_takes_the_message_that_came) {
  world w;
  make_world(&w, 2, 1);
  uint32_t busy = work(&w, 1, 10, PITH_NO_TASK);
  uint32_t received = message(&w, 0, 1, 1, 1000, PITH_NO_TASK);
  pith__schedule_after(&w.schedule[1], received, busy);
  CHECK(is_near(time_of(&w), 10));
}

TEST(a_message_that_nobody_sends_is_an_error) {
  world w;
  pith_sim_totals t;
  make_world(&w, 2, 1);
  pith_schedule *s = &w.schedule[0];
  pith__schedule_receive(s, 1, 1, pith__schedule_piece_over(s, NULL, 8), PITH_NO_TASK);
  CHECK(run(&w, &t) == PITH_ERR_STATE);
  make_world(&w, 2, 1);
  s = &w.schedule[0];
  pith__schedule_send(s, 1, 1, pith__schedule_piece_over(s, NULL, 8), PITH_NO_TASK);
  CHECK(run(&w, &t) == PITH_ERR_STATE);
}

TEST(events_come_in_order_whatever_the_order_they_are_added_in) {
  pith_sim_events events = {.count = 0};
  uint32_t x = 1;
  for (int i = 0; i < 5000; i++) {
    x = x * 1664525u + 1013904223u;
    CHECK(pith__sim_events_push(&events, (double)(x >> 24), x));
  }
  pith_sim_event last = {-1, 0};
  while (events.count) {
    pith_sim_event e = pith__sim_events_pop(&events);
    CHECK(e.time > last.time || (e.time >= last.time && e.what >= last.what));
    last = e;
  }
  free(events.heap);
}

/* Ranks that wait for a core and then need it for nothing leave it to others. */
TEST(a_core_that_is_not_needed_is_passed_on) {
  world w;
  make_world(&w, 4, 1);
  w.network.pools = 1;
  for (int r = 0; r < 4; r++) {
    w.pool[r] = 0;
    uint32_t first = work(&w, r, r == 0 ? 3 : 0, PITH_NO_TASK);
    work(&w, r, r == 3 ? 2 : 0, first);
  }
  CHECK(is_near(time_of(&w), 5));
}
