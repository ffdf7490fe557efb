/* SPDX-License-Identifier: Apache-2.0 */
/* Runs graphs in virtual time: engine.h has the model. */
#include "sim/engine.h"

#include <stdlib.h>
#include <string.h>

#include "sim/events.h"

/* ---- Queues of numbers ------------------------------------------------------------------------------------------- */

typedef struct queue {
  uint32_t *item, first, count, room; /* room: a power of two, or 0 */
} queue;

static int queue_put(queue *q, uint32_t item) {
  if (q->count == q->room) {
    uint32_t room = q->room ? 2 * q->room : 16;
    uint32_t *larger = malloc(room * sizeof *larger);
    if (!larger) {
      return 0;
    }
    for (uint32_t i = 0; i < q->count; i++) {
      larger[i] = q->item[(q->first + i) & (q->room - 1)];
    }
    free(q->item);
    *q = (queue){larger, 0, q->count, room};
  }
  q->item[(q->first + q->count++) & (q->room - 1)] = item;
  return 1;
}

static uint32_t queue_take(queue *q) {
  uint32_t item = q->item[q->first];
  q->first = (q->first + 1) & (q->room - 1);
  q->count--;
  return item;
}

/* ---- What there is ----------------------------------------------------------------------------------------------- */

/* The messages from one rank to another. */
typedef struct link {
  uint32_t first, last; /* sends, by pith_sim_task.waits; PITH_NO_TASK: there is none */
  uint32_t left;        /* bytes of the first that have not been sent */
} link;

/* One end of a cable. It earns credit while it is idle, of `credit` seconds at most. */
typedef struct port {
  double rate, latency, credit;
  queue links; /* that have something to send: rank · ranks + peer */
  uint32_t sending;
  int is_busy;
  double paid_at; /* when what it has sent would all have left without credit */
  double free_at; /* when what has been sent to it will all have come, likewise */
  uint64_t sent, received;
} port;

/* What all hosts of a rack share: their way to the others, and back. */
typedef struct rack {
  double out_free_at, in_free_at;
  uint64_t sent, received;
} rack;

typedef struct rank {
  pith_sim_graph *graph;
  link *link;                               /* of each peer; NULL until the first send */
  queue io;                                 /* sends and receives that wait for the processor */
  uint32_t *ready, ready_count, ready_room; /* a heap of work, lowest number on top */
  uint32_t current, unfinished;
  int is_busy, is_queued; /* has a core; waits for one */
  double factor, look;    /* what a turn takes that brings nothing */
  uint64_t sent;
} rank;

typedef struct pool {
  int free, ranks, cores;
  queue waiting; /* ranks */
} pool;

typedef enum event_kind { CPU, PORT, ARRIVAL } event_kind;

typedef struct engine {
  const pith_sim_network *network;
  const pith_sim_classes *classes;
  int ranks;
  rank *rank;
  port *port; /* of hosts, then of ranks, within their host */
  pool *pool;
  rack *rack;
  double switch_free_at;
  pith_sim_events events;
  double now;
  uint32_t unfinished; /* ranks */
  int failed;          /* no memory */
  pith_sim_totals totals;
} engine;

static const pith_sim_class *class_of(const engine *e, const pith_sim_task *t) {
  return &e->classes->of[t->class & ~PITH_SIM_RECEIVED];
}

static void add_event(engine *e, double time, event_kind kind, uint32_t who, uint32_t task) {
  uint64_t what = (uint64_t)kind << 62 | (uint64_t)who << 32 | task;
  e->failed |= !pith__sim_events_push(&e->events, time, what);
}

static int host_of(const engine *e, uint32_t r) { return e->network->layout->host[r]; }

static int is_inside(const engine *e, uint32_t a, uint32_t b) { return host_of(e, a) == host_of(e, b); }

/* Where messages between two ranks leave or come; `whose` of them. */
static port *port_of(engine *e, uint32_t whose, int inside) {
  return &e->port[inside ? e->network->layout->hosts + (int)whose : host_of(e, whose)];
}

/* ---- Work that can run: a heap ----------------------------------------------------------------------------------- */

static void push_ready(engine *e, rank *r, uint32_t task) {
  if (r->ready_count == r->ready_room) {
    uint32_t room = r->ready_room ? 2 * r->ready_room : 16;
    uint32_t *larger = realloc(r->ready, room * sizeof *larger);
    if (!larger) {
      e->failed = 1;
      return;
    }
    r->ready = larger;
    r->ready_room = room;
  }
  uint32_t at = r->ready_count++;
  for (; at && task < r->ready[(at - 1) / 2]; at = (at - 1) / 2) {
    r->ready[at] = r->ready[(at - 1) / 2];
  }
  r->ready[at] = task;
}

static uint32_t pop_ready(rank *r) {
  uint32_t *heap = r->ready, top = heap[0], last = heap[--r->ready_count], at = 0;
  for (uint32_t child; (child = 2 * at + 1) < r->ready_count; at = child) {
    child += child + 1 < r->ready_count && heap[child + 1] < heap[child];
    if (heap[child] >= last) {
      break;
    }
    heap[at] = heap[child];
  }
  heap[at] = last;
  return top;
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

static void make_ready(engine *e, rank *r, uint32_t number) {
  const pith_sim_task *t = &r->graph->task[number];
  if (t->class == PITH_SIM_RECEIVE) {
    return; /* its message will do it */
  }
  if (class_of(e, t)->kind == PITH_TASK_WORK) {
    push_ready(e, r, number);
  } else {
    e->failed |= !queue_put(&r->io, number); /* a send, or a receive whose message was early */
  }
}

static void note_longest(uint16_t *longest, unsigned length) {
  *longest = length > *longest ? (uint16_t)(length < UINT16_MAX ? length : UINT16_MAX) : *longest;
}

static void finish_task(engine *e, rank *r, uint32_t number) {
  pith_sim_graph *g = r->graph;
  const pith_sim_task *t = &g->task[number];
  unsigned encodings = t->encodings + (unsigned)class_of(e, t)->encodes;
  for (uint32_t i = t->edges; i < t[1].edges; i++) {
    pith_sim_task *next = &g->task[g->edge[i]];
    note_longest(&next->steps, t->steps);
    note_longest(&next->encodings, encodings);
    if (--next->waits == 0) {
      make_ready(e, r, g->edge[i]);
    }
  }
  e->totals.steps = t->steps > e->totals.steps ? t->steps : e->totals.steps;
  e->totals.encodings = encodings > e->totals.encodings ? encodings : e->totals.encodings;
  if (--r->unfinished == 0) {
    e->unfinished--;
    e->totals.seconds = e->now;
  }
}

/* ---- Ports and links --------------------------------------------------------------------------------------------- */

static uint32_t bytes_of(const engine *e, const pith_sim_task *send) {
  return (uint32_t)class_of(e, send)->amount + PITH_SIM_HEADER;
}

/* A segment, from its first to its last byte, passes something that all share and that is free from then on. */
static void pass(double *free_at, double rate, uint32_t bytes, double *first, double *last) {
  *first = *free_at > *first ? *free_at : *first;
  *free_at = *first + bytes / rate;
  *last = *free_at > *last ? *free_at : *last;
}

static int rack_of(const engine *e, uint32_t r) { return host_of(e, r) / e->network->rack_hosts; }

/* A segment that comes to the end of a cable, and when its last byte has passed that. */
static double pay(const port *p, double *paid_at, double now, uint32_t bytes) {
  *paid_at = (*paid_at > now - p->credit ? *paid_at : now - p->credit) + bytes / p->rate;
  return *paid_at > now ? *paid_at : now;
}

/* A segment that begins to leave now, and has left at `last`: when its last byte is at the other end. */
static double arrival_of(engine *e, const port *from, uint32_t sender, uint32_t receiver, int inside, uint32_t bytes,
                         double last) {
  const pith_sim_network *n = e->network;
  port *to = port_of(e, receiver, inside);
  double first = e->now, latency = from->latency;
  int crosses = !inside && n->rack_hosts && rack_of(e, sender) != rack_of(e, receiver);
  if (crosses) {
    rack *out = &e->rack[rack_of(e, sender)];
    out->sent += bytes;
    pass(&out->out_free_at, n->rack_rate, bytes, &first, &last);
  }
  if (!inside && n->switch_rate > 0) {
    pass(&e->switch_free_at, n->switch_rate, bytes, &first, &last);
  }
  if (crosses) {
    rack *in = &e->rack[rack_of(e, receiver)];
    in->received += bytes;
    pass(&in->in_free_at, n->rack_rate, bytes, &first, &last);
    latency += n->rack_latency;
  }
  first += latency;
  last += latency;
  to->received += bytes;
  double passed = pay(to, &to->free_at, first, bytes);
  return passed > last ? passed : last;
}

/* The next segment, if the port is free. */
static void serve_port(engine *e, uint32_t index) {
  port *p = &e->port[index];
  if (p->is_busy || p->links.count == 0) {
    return;
  }
  p->sending = queue_take(&p->links);
  p->is_busy = 1;
  uint32_t sender = p->sending / (uint32_t)e->ranks, receiver = p->sending % (uint32_t)e->ranks;
  link *l = &e->rank[sender].link[receiver];
  uint32_t bytes = l->left < e->network->segment ? l->left : e->network->segment;
  double left_at = pay(p, &p->paid_at, e->now, bytes),
         arrival = arrival_of(e, p, sender, receiver, index >= (uint32_t)e->network->layout->hosts, bytes, left_at);
  l->left -= bytes;
  p->sent += bytes;
  if (l->left == 0) {
    add_event(e, arrival, ARRIVAL, sender, l->first);
  }
  add_event(e, left_at, PORT, index, 0);
}

static void begin_message(engine *e, port *p, link *l, uint32_t sender, uint32_t receiver) {
  l->left = bytes_of(e, &e->rank[sender].graph->task[l->first]);
  e->failed |= !queue_put(&p->links, sender * (uint32_t)e->ranks + receiver);
}

static void send_message(engine *e, uint32_t sender, uint32_t number) {
  rank *r = &e->rank[sender];
  pith_sim_task *t = &r->graph->task[number];
  uint32_t receiver = t->peer;
  int inside = is_inside(e, sender, receiver);
  if (!r->link) {
    r->link = malloc((size_t)e->ranks * sizeof *r->link);
    if (!r->link) {
      e->failed = 1;
      return;
    }
    memset(r->link, 0xff, (size_t)e->ranks * sizeof *r->link); /* PITH_NO_TASK */
  }
  link *l = &r->link[receiver];
  t->waits = PITH_NO_TASK;
  e->totals.messages++;
  r->sent += bytes_of(e, t);
  *(inside ? &e->totals.inside_bytes : &e->totals.switch_bytes) += bytes_of(e, t);
  if (l->first != PITH_NO_TASK) {
    r->graph->task[l->last].waits = number;
    l->last = number;
    return;
  }
  l->first = l->last = number;
  port *p = port_of(e, sender, inside);
  begin_message(e, p, l, sender, receiver);
  serve_port(e, (uint32_t)(p - e->port));
}

/* A segment has left. */
static void end_segment(engine *e, uint32_t index) {
  port *p = &e->port[index];
  uint32_t sender = p->sending / (uint32_t)e->ranks, receiver = p->sending % (uint32_t)e->ranks;
  rank *r = &e->rank[sender];
  link *l = &r->link[receiver];
  p->is_busy = 0;
  if (l->left) {
    e->failed |= !queue_put(&p->links, p->sending);
  } else {
    uint32_t sent = l->first;
    l->first = r->graph->task[sent].waits;
    if (l->first != PITH_NO_TASK) {
      begin_message(e, p, l, sender, receiver);
    }
    finish_task(e, r, sent);
  }
  serve_port(e, index);
}

/* ---- Processors -------------------------------------------------------------------------------------------------- */

static double seconds_of(const engine *e, uint32_t who, uint32_t number) {
  const rank *r = &e->rank[who];
  const pith_sim_task *t = &r->graph->task[number];
  const pith_sim_class *class = class_of(e, t);
  if (class->kind == PITH_TASK_WORK) {
    return class->seconds * r->factor;
  }
  const pith_sim_network *n = e->network;
  double bytes = bytes_of(e, t);
  return r->factor *
         (is_inside(e, who, t->peer) ? n->inside_message + bytes * n->inside_byte : n->message + bytes * n->byte);
}

/* What the processor has done for a task. */
static void end_turn(engine *e, uint32_t who, uint32_t number) {
  rank *r = &e->rank[who];
  const pith_sim_task *t = &r->graph->task[number];
  if (class_of(e, t)->kind == PITH_TASK_SEND && !(t->class & PITH_SIM_RECEIVED)) {
    send_message(e, who, number);
  } else {
    finish_task(e, r, number);
  }
}

/* Before each piece of work a rank looks for messages of all that it talks to. */
static double look_of(const engine *e, const rank *r, uint32_t number) {
  const pith_sim_class *class = class_of(e, &r->graph->task[number]);
  return class->kind == PITH_TASK_WORK ? r->look : 0;
}

/* Does what the rank has to do, until that takes time. It has a core, which `handed` seconds pass before it gets.
 * Returns 0 if there is nothing left. */
static int use_core(engine *e, uint32_t who, double handed) {
  rank *r = &e->rank[who];
  while ((r->io.count || r->ready_count) && !e->failed) {
    r->current = r->io.count ? queue_take(&r->io) : pop_ready(r);
    double seconds = seconds_of(e, who, r->current) + look_of(e, r, r->current) + handed;
    handed = 0;
    r->is_busy = 1;
    if (seconds > 0) {
      add_event(e, e->now + seconds, CPU, who, 0);
      return 1;
    }
    end_turn(e, who, r->current);
    r->is_busy = 0;
  }
  return 0;
}

/* Ranks that share cores and have nothing to do look for messages in turn. */
static double hand_over(const engine *e, const pool *p) {
  int idle = p->ranks - (p->cores - p->free) - (int)p->waiting.count;
  return p->cores < p->ranks && idle > 0 ? e->network->poll * idle / p->cores : 0;
}

/* Gives the rank a core, if it has something to do and there is one. What takes no time is done at once. */
static void serve_rank(engine *e, uint32_t who) {
  rank *r = &e->rank[who];
  pool *p = &e->pool[e->network->pool[who]];
  if (r->is_busy || r->is_queued || !(r->io.count || r->ready_count) || e->failed) {
    return;
  }
  if (p->free == 0) {
    r->is_queued = 1;
    e->failed |= !queue_put(&p->waiting, who);
    return;
  }
  p->free--;
  p->free += !use_core(e, who, hand_over(e, p));
}

/* A rank keeps its core while it has something to do. */
static void end_cpu(engine *e, uint32_t who) {
  rank *r = &e->rank[who];
  pool *p = &e->pool[e->network->pool[who]];
  end_turn(e, who, r->current);
  r->is_busy = 0;
  if (use_core(e, who, 0)) {
    return;
  }
  p->free++;
  while (p->free && p->waiting.count) { /* what takes no time leaves the core to the next */
    uint32_t next = queue_take(&p->waiting);
    e->rank[next].is_queued = 0;
    serve_rank(e, next);
  }
}

/* ---- Arrivals ---------------------------------------------------------------------------------------------------- */

static pith_status receive(engine *e, uint32_t sender, uint32_t number) {
  const pith_sim_task *sent = &e->rank[sender].graph->task[number];
  uint32_t receiver = sent->peer;
  rank *r = &e->rank[receiver];
  uint32_t posted = pith__sim_graph_receive(r->graph, (int)sender, sent->tag);
  PITH_REQUIRE(posted != PITH_NO_TASK, PITH_ERR_STATE, "rank %u sends rank %u a message that it does not expect",
               sender, receiver);
  pith_sim_task *t = &r->graph->task[posted];
  note_longest(&t->steps, sent->steps + 1u);
  note_longest(&t->encodings, sent->encodings);
  t->class = sent->class | PITH_SIM_RECEIVED;
  if (t->waits == 0) {
    e->failed |= !queue_put(&r->io, posted);
    serve_rank(e, receiver);
  }
  return PITH_OK;
}

/* ---- From the beginning to the end ------------------------------------------------------------------------------- */

/* Ranks that this one exchanges messages with. */
static pith_status count_peers(const engine *e, const pith_sim_graph *g, int *peers) {
  PITH_FREED char *seen = calloc((size_t)e->ranks, 1);
  PITH_REQUIRE(seen, PITH_ERR_MEMORY, "no memory for the simulation");
  for (uint32_t t = 0; t < g->tasks; t++) {
    if (class_of(e, &g->task[t])->kind != PITH_TASK_WORK && !seen[g->task[t].peer]) {
      seen[g->task[t].peer] = 1;
      ++*peers;
    }
  }
  return PITH_OK;
}

static pith_status make_looks(engine *e) {
  for (int i = 0; i < e->ranks && e->network->look > 0; i++) {
    int peers = 0;
    PITH_TRY(count_peers(e, e->rank[i].graph, &peers));
    e->rank[i].look = e->network->look * peers * e->rank[i].factor;
  }
  return PITH_OK;
}

static pith_status make_engine(engine *e, pith_sim_graph *graphs) {
  const pith_sim_network *n = e->network;
  int hosts = n->layout->hosts;
  e->ranks = n->layout->ranks;
  e->rank = calloc((size_t)e->ranks, sizeof *e->rank);
  e->port = calloc((size_t)hosts + (size_t)e->ranks, sizeof *e->port);
  e->pool = calloc((size_t)n->pools, sizeof *e->pool);
  e->rack = calloc(n->rack_hosts ? (size_t)(hosts / n->rack_hosts) + 1 : 1, sizeof *e->rack);
  PITH_REQUIRE(e->rank && e->port && e->pool && e->rack, PITH_ERR_MEMORY, "no memory for the simulation");
  for (int i = 0; i < hosts + e->ranks; i++) {
    e->port[i].rate = i >= hosts ? n->inside_rate : i == n->slow_host ? n->slow_rate : n->rate;
    e->port[i].latency = i >= hosts ? n->inside_latency : n->latency;
    e->port[i].credit = i >= hosts ? 0 : n->burst / e->port[i].rate;
  }
  for (int i = 0; i < n->pools; i++) {
    e->pool[i].free = e->pool[i].cores = n->cores[i];
  }
  for (int i = 0; i < e->ranks; i++) {
    e->rank[i].graph = &graphs[i];
    e->pool[n->pool[i]].ranks++;
    e->rank[i].unfinished = graphs[i].tasks;
    e->rank[i].factor = i == n->straggler ? n->straggler_factor : 1;
    e->unfinished += graphs[i].tasks > 0;
  }
  return make_looks(e);
}

static void free_engine(engine *e) {
  for (int i = 0; e->rank && i < e->ranks; i++) {
    free(e->rank[i].link);
    free(e->rank[i].io.item);
    free(e->rank[i].ready);
  }
  for (int i = 0; e->port && i < e->network->layout->hosts + e->ranks; i++) {
    free(e->port[i].links.item);
  }
  for (int i = 0; e->pool && i < e->network->pools; i++) {
    free(e->pool[i].waiting.item);
  }
  free(e->rank);
  free(e->port);
  free(e->pool);
  free(e->rack);
  free(e->events.heap);
}

static pith_status step(engine *e) {
  pith_sim_event event = pith__sim_events_pop(&e->events);
  uint32_t who = (uint32_t)(event.what >> 32) & 0x3fffffffu, task = (uint32_t)event.what;
  e->now = event.time;
  e->totals.events++;
  switch ((event_kind)(event.what >> 62)) {
    case CPU:
      end_cpu(e, who);
      return PITH_OK;
    case PORT: {
      uint32_t sender = e->port[who].sending / (uint32_t)e->ranks;
      end_segment(e, who);
      serve_rank(e, sender);
      return PITH_OK;
    }
    case ARRIVAL:
      return receive(e, who, task);
  }
  return PITH_OK;
}

static pith_status run(engine *e) {
  for (int i = 0; i < e->ranks; i++) {
    const pith_sim_graph *g = e->rank[i].graph;
    for (uint32_t t = 0; t < g->tasks; t++) {
      if (g->task[t].waits == 0) {
        make_ready(e, &e->rank[i], t);
      }
    }
  }
  for (int i = 0; i < e->ranks; i++) {
    serve_rank(e, (uint32_t)i);
  }
  while (e->events.count && !e->failed) {
    PITH_TRY(step(e));
  }
  PITH_REQUIRE(!e->failed, PITH_ERR_MEMORY, "no memory for the simulation");
  PITH_REQUIRE(e->unfinished == 0, PITH_ERR_STATE, "%u of %d simulated ranks wait for messages that nobody sends",
               e->unfinished, e->ranks);
  return PITH_OK;
}

static void sum_up(engine *e) {
  for (int i = 0; i < e->ranks; i++) {
    e->totals.rank_bytes = e->rank[i].sent > e->totals.rank_bytes ? e->rank[i].sent : e->totals.rank_bytes;
  }
  for (int i = 0; i < e->network->layout->hosts; i++) {
    uint64_t most = e->port[i].sent > e->port[i].received ? e->port[i].sent : e->port[i].received;
    e->totals.nic_bytes = most > e->totals.nic_bytes ? most : e->totals.nic_bytes;
  }
  for (int i = 0; e->network->rack_hosts && i * e->network->rack_hosts < e->network->layout->hosts; i++) {
    uint64_t most = e->rack[i].sent > e->rack[i].received ? e->rack[i].sent : e->rack[i].received;
    e->totals.rack_bytes = most > e->totals.rack_bytes ? most : e->totals.rack_bytes;
  }
}

pith_status pith__sim_run(const pith_sim_network *network, const pith_sim_classes *classes, pith_sim_graph *graphs,
                          pith_sim_totals *totals) {
  engine e = {.network = network, .classes = classes};
  pith_status status = make_engine(&e, graphs);
  status = status == PITH_OK ? run(&e) : status;
  if (status == PITH_OK) {
    sum_up(&e);
    *totals = e.totals;
  }
  free_engine(&e);
  return status;
}
