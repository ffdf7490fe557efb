/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One group of ranks. In every round the group plans some faults, starts the round on all ranks, does the faults when
 * their moment comes, takes them back, and judges: every rank must end in time, every error must name a rank that had a
 * fault, and every result must be right.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "chaos.h"
#include "cli/launch/network.h"

enum { FAULTS_MOST = 3, PAUSE_US = 300 };

#define LINK_RATE 1000000000u /* bits per second */
#define SLOW_RATE 64000u
#define SLACK 10.0 /* seconds beyond the time-outs before a rank counts as hung: the machine may be busy */

typedef struct fault {
  chaos_kind kind;
  int victim;
  chaos_phase phase; /* in which the victim shall be … */
  int progress;      /* … after so many operations … */
  double delay;      /* … and so long after that */
  double duration;   /* 0: until the others have ended */
  double due;        /* 0: the moment has not come yet */
  double done;       /* when it was done; 0: it was not */
  int is_over;
} fault;

typedef struct group {
  const chaos_options *options;
  chaos_totals *totals;
  chaos_board *board; /* of every rank, shared with them */
  cli_network network;
  pid_t pid[RANKS_MOST];
  int pipe[RANKS_MOST];
  chaos_round round;
  fault fault[FAULTS_MOST];
  int faults;
  int is_new[RANKS_MOST];   /* started within the round */
  unsigned stopped, killed; /* ranks */
  double start, last;       /* of the round; the last thing done to it */
} group;

const char *chaos_kind_name(chaos_kind kind) {
  static const char *const names[] = {"kill", "restart", "stop", "cut", "cut-in", "cut-out", "slow"};
  return names[kind];
}

long chaos_failures(const chaos_totals *t) {
  return t->wrong_sums + t->hangs + t->wrong_blames + t->wrong_errors + t->crashes + t->leaks;
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static int start_rank(group *g, int rank) {
  int fd[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0) {
    return 0;
  }
  pid_t parent = getpid(), pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) {
      _exit(1);
    }
    for (int r = 0; r < RANKS_MOST; r++) { /* else the others would not see the end of theirs */
      if (g->pipe[r] >= 0) {
        close(g->pipe[r]);
      }
    }
    close(fd[0]);
    chaos_rank(rank, fd[1], g->network.host, &g->board[rank]);
  }
  close(fd[1]);
  g->pid[rank] = pid;
  g->pipe[rank] = fd[0];
  return pid > 0;
}

static void bury(group *g, int rank) {
  close(g->pipe[rank]);
  g->pipe[rank] = -1;
  g->pid[rank] = 0;
}

static void kill_rank(group *g, int rank) {
  if (g->pid[rank] > 0) {
    kill(g->pid[rank], SIGKILL);
    waitpid(g->pid[rank], NULL, 0);
    bury(g, rank);
  }
}

static void send_round(group *g, int rank) {
  chaos_board *board = &g->board[rank];
  memset(board, 0, sizeof *board);
  if (write(g->pipe[rank], &g->round, sizeof g->round) != sizeof g->round) {
    fprintf(stderr, "chaos: cannot reach rank %d: %s\n", rank, strerror(errno));
    exit(2);
  }
}

static chaos_phase phase_of(const group *g, int rank) { return (chaos_phase)atomic_load(&g->board[rank].phase); }

/* ---- Planning ---------------------------------------------------------------------------------------------------- */

/* Where ranks run: one host for shared memory, four with one or two ranks each for tcp, pairs for auto. */
static void place_ranks(group *g) {
  chaos_round *round = &g->round;
  for (int r = 0; r < RANKS_MOST; r++) {
    round->host[r] = strcmp(round->transport, "shm") == 0   ? 0
                     : strcmp(round->transport, "tcp") == 0 ? (g->network.host ? r % HOSTS : r)
                                                            : r / 2;
  }
}

/* Without a network of its own the group takes any port that is free. */
static int free_port(void) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int good = s >= 0 && bind(s, (struct sockaddr *)&at, size) == 0 && getsockname(s, (struct sockaddr *)&at, &size) == 0;
  if (s >= 0) {
    close(s);
  }
  return good ? ntohs(at.sin_port) : 0;
}

static void plan_round(group *g, uint64_t number) {
  static const char *const transports[] = {"shm", "tcp", "tcp", "auto"};
  chaos_random random = {pith__mix64(g->options->seed ^ (uint64_t)g->options->group << 40 ^ number << 8)};
  chaos_round *round = &g->round;
  *round = (chaos_round){.number = number, .seed = chaos_draw(&random), .timeout = g->options->timeout};
  round->ranks = RANKS_LEAST + (int)chaos_below(&random, RANKS_MOST - RANKS_LEAST + 1);
  round->operations = 4 + (int)chaos_below(&random, OPERATIONS_MOST - 4 + 1);
  round->transport = transports[chaos_below(&random, 4)];
  round->has_secret = (int)chaos_below(&random, 2);
  place_ranks(g);
  if (g->network.host) {
    cli_network_address(0, round->address);
    round->port = 20000 + (int)(number % 30000);
  } else {
    snprintf(round->address, sizeof round->address, "127.0.0.1");
    round->port = free_port();
  }
}

static chaos_kind choose_kind(const group *g, chaos_random *random) {
  uint64_t dice = chaos_below(random, 100);
  int has_links = g->network.host && strcmp(g->round.transport, "shm") != 0;
  if (!has_links) {
    return dice < 60 ? FAULT_KILL : dice < 70 ? FAULT_RESTART : FAULT_STOP;
  }
  return dice < 35   ? FAULT_KILL
         : dice < 41 ? FAULT_RESTART
         : dice < 65 ? FAULT_STOP
         : dice < 81 ? FAULT_CUT
         : dice < 87 ? FAULT_CUT_IN
         : dice < 93 ? FAULT_CUT_OUT
                     : FAULT_SLOW;
}

/* A restart belongs to the rendezvous: later there is no way back into a group. Slow links lose packets, so that is
 * short. Others are short, and the group should live on, or last until all have given up, or about as long as the
 * time-out. */
static fault plan_fault(const group *g, chaos_random *random) {
  fault f = {.kind = choose_kind(g, random), .victim = (int)chaos_below(random, (uint64_t)g->round.ranks)};
  uint64_t dice = chaos_below(random, 100);
  f.phase = f.kind == FAULT_RESTART || dice < 15 ? PHASE_CREATING : dice < 90 ? PHASE_WORKING : PHASE_LEAVING;
  f.progress = (int)chaos_below(random, (uint64_t)g->round.operations);
  f.delay = chaos_unit(random) * (f.phase == PHASE_CREATING ? 0.03 : 0.003);
  dice = f.kind == FAULT_SLOW ? 0 : chaos_below(random, 100);
  f.duration = dice < 70   ? 0.01 + 0.25 * chaos_unit(random)
               : dice < 85 ? g->round.timeout * (0.5 + chaos_unit(random))
                           : 0;
  return f;
}

static void plan_faults(group *g) {
  chaos_random random = {g->round.seed ^ 0x6368616f73u};
  uint64_t dice = chaos_below(&random, 10);
  g->faults = dice < 5 ? 1 : dice < 8 ? 2 : FAULTS_MOST;
  for (int i = 0; i < g->faults; i++) {
    g->fault[i] = plan_fault(g, &random);
  }
}

/* ---- Doing harm -------------------------------------------------------------------------------------------------- */

static int is_link_fault(chaos_kind kind) { return kind >= FAULT_CUT; }

/* The ranks that a fault is about: for a link, all behind it. */
static unsigned ranks_of(const group *g, const fault *f) {
  unsigned bits = 1u << f->victim;
  for (int r = 0; r < g->round.ranks && is_link_fault(f->kind); r++) {
    bits |= g->round.host[r] == g->round.host[f->victim] ? 1u << r : 0;
  }
  return bits;
}

static void set_link(group *g, const fault *f, int is_broken) {
  cli_link_state state = f->kind == FAULT_CUT       ? CLI_LINK_CUT
                         : f->kind == FAULT_CUT_IN  ? CLI_LINK_CUT_IN
                         : f->kind == FAULT_CUT_OUT ? CLI_LINK_CUT_OUT
                                                    : CLI_LINK_WHOLE;
  if (!cli_network_set_link(&g->network, (size_t)g->round.host[f->victim], is_broken ? state : CLI_LINK_WHOLE,
                            is_broken && f->kind == FAULT_SLOW ? SLOW_RATE : 0)) {
    exit(2);
  }
}

static void restart(group *g, int rank) {
  kill_rank(g, rank);
  if (!start_rank(g, rank)) {
    fprintf(stderr, "chaos: cannot start a rank: %s\n", strerror(errno));
    exit(2);
  }
  send_round(g, rank);
  g->is_new[rank] = 1;
}

static void do_fault(group *g, fault *f) {
  chaos_phase phase = phase_of(g, f->victim);
  f->done = g->last = pith__now();
  switch (f->kind) {
    case FAULT_KILL:
      kill_rank(g, f->victim);
      g->killed |= 1u << f->victim;
      f->is_over = 1;
      break;
    case FAULT_RESTART:
      restart(g, f->victim);
      f->is_over = 1;
      break;
    case FAULT_STOP:
      kill(g->pid[f->victim], SIGSTOP);
      g->stopped |= 1u << f->victim;
      break;
    default:
      set_link(g, f, 1);
      break;
  }
  atomic_fetch_add(&g->totals->faults, 1);
  atomic_fetch_add(&g->totals->by_kind[f->kind], 1);
  atomic_fetch_add(&g->totals->by_phase[phase], 1);
}

static void undo_fault(group *g, fault *f) {
  f->is_over = 1;
  g->last = pith__now();
  if (f->kind == FAULT_STOP) {
    kill(g->pid[f->victim], SIGCONT);
    g->stopped &= ~(1u << f->victim);
  } else {
    set_link(g, f, 0);
  }
}

/* Whether its moment has come. Of the creation, whatever the rank does then. */
static int is_due(group *g, fault *f, double now) {
  int is_there = f->phase == PHASE_CREATING ||
                 (phase_of(g, f->victim) >= f->phase && atomic_load(&g->board[f->victim].progress) >= f->progress) ||
                 phase_of(g, f->victim) >= PHASE_LEAVING;
  if (is_there && f->due == 0) {
    f->due = now + f->delay;
  }
  return f->due > 0 && now >= f->due;
}

/* A rank that is gone, stopped or done already cannot be harmed, and a link has one fault at a time. */
static int is_possible(const group *g, const fault *f) {
  if ((g->killed | g->stopped) >> f->victim & 1 || phase_of(g, f->victim) == PHASE_DONE) {
    return 0;
  }
  for (const fault *other = g->fault; other < g->fault + g->faults && is_link_fault(f->kind); other++) {
    if (other->done > 0 && !other->is_over && is_link_fault(other->kind)) {
      return 0;
    }
  }
  return f->kind != FAULT_RESTART || phase_of(g, f->victim) == PHASE_CREATING;
}

/* Whether all have ended, but those that cannot. */
static int have_ended(const group *g, unsigned but) {
  for (int r = 0; r < g->round.ranks; r++) {
    if (!((g->killed | but) >> r & 1) && phase_of(g, r) != PHASE_DONE) {
      return 0;
    }
  }
  return 1;
}

static void attend_faults(group *g, double now) {
  for (fault *f = g->fault; f < g->fault + g->faults; f++) {
    if (f->is_over) {
      continue;
    }
    if (f->done > 0) {
      int is_time = f->duration > 0 ? now > f->done + f->duration : have_ended(g, g->stopped);
      if (is_time) {
        undo_fault(g, f);
      }
    } else if (is_due(g, f, now)) {
      if (is_possible(g, f)) {
        do_fault(g, f);
      } else {
        f->is_over = 1;
      }
    }
  }
}

/* Whether a host reaches the first one, or the first one it: nobody listens at that port, and the answer says so. */
static int is_reached(const group *g, int host) {
  char text[CLI_ADDRESS_SIZE];
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(9)};
  inet_pton(AF_INET, cli_network_address(host == 0, text), &to.sin_addr);
  int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), answered = 0;
  if (setns(g->network.host[host], CLONE_NEWNET) == 0) {
    int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct pollfd ready = {s, POLLOUT, 0};
    (void)connect(s, (struct sockaddr *)&to, sizeof to);
    answered = poll(&ready, 1, 20) > 0;
    close(s);
  }
  setns(home, CLONE_NEWNET);
  close(home);
  return answered;
}

/* The kernel may take a second until a link that is up again lets packets pass. The next round begins after that: it
 * has faults of its own. */
static void settle_links(const group *g) {
  for (const fault *f = g->fault; f < g->fault + g->faults; f++) {
    for (int tries = 0; f->done > 0 && is_link_fault(f->kind) && tries < 200; tries++) {
      if (is_reached(g, g->round.host[f->victim])) {
        break;
      }
    }
  }
}

/* ---- Judging ----------------------------------------------------------------------------------------------------- */

static void describe_faults(const group *g) {
  for (const fault *f = g->fault; f < g->fault + g->faults; f++) {
    if (f->done > 0) {
      fprintf(stderr, "    %s of rank %d at %.3f s for %.3f s\n", chaos_kind_name(f->kind), f->victim,
              f->done - g->start, f->duration);
    }
  }
}

static void complain(const group *g, const char *what, int rank, const char *text) {
  const chaos_board *board = &g->board[rank];
  fprintf(stderr,
          "chaos: %s: rank %d of %d over %s, %.3f s into the round: %s\n    repeat with --seed %llu --only %d:%llu\n",
          what, rank, g->round.ranks, g->round.transport, (board->ended > 0 ? board->ended : pith__now()) - g->start,
          text, (unsigned long long)g->options->seed, g->options->group, (unsigned long long)g->round.number);
  describe_faults(g);
}

/* Ranks that an error may name: those that had a fault. Nobody can tell which end of a link is broken, so there it is
 * enough that the one behind the link is the one who saw it. So it is for a rank that was restarted while the group was
 * made: those that were in touch with its first process do not come a second time. */
static int is_right_blame(const group *g, const chaos_board *board) {
  chaos_blame blame = chaos_read_blame(board->text);
  for (const fault *f = g->fault; f < g->fault + g->faults; f++) {
    unsigned bits = f->done > 0 && f->done <= board->ended ? ranks_of(g, f) : 0;
    int may_tell = is_link_fault(f->kind) || f->kind == FAULT_RESTART;
    if ((blame.named & bits) || (may_tell && (blame.observers & bits))) {
      return 1;
    }
  }
  return 0;
}

static int had_fault(const group *g, int rank) {
  for (const fault *f = g->fault; f < g->fault + g->faults; f++) {
    if (f->done > 0 && ranks_of(g, f) >> rank & 1) {
      return 1;
    }
  }
  return 0;
}

static int was_restarted(const group *g) {
  int any = 0;
  for (int r = 0; r < g->round.ranks; r++) {
    any |= g->is_new[r];
  }
  return any;
}

static int is_expected_status(const group *g, pith_status status) {
  return status == PITH_ERR_PEER || status == PITH_ERR_TIMEOUT || status == PITH_ERR_ABORTED ||
         (status == PITH_ERR_MISMATCH && was_restarted(g)); /* "two processes say they are rank 2" */
}

static void judge_rank(group *g, int rank) {
  const chaos_board *board = &g->board[rank];
  chaos_totals *t = g->totals;
  atomic_fetch_add(&t->operations, atomic_load(&board->progress));
  if (board->wrong) {
    atomic_fetch_add(&t->wrong_sums, 1);
    complain(g, "WRONG SUM", rank, board->wrong_text);
  }
  if ((g->killed >> rank & 1) || phase_of(g, rank) != PHASE_DONE) {
    return;
  }
  if (board->leaked) {
    atomic_fetch_add(&t->leaks, 1);
    complain(g, "DESCRIPTORS LEAKED", rank, board->text);
  }
  if (board->status == PITH_OK) {
    return;
  }
  atomic_fetch_add(&t->errors, 1);
  if (!is_expected_status(g, (pith_status)board->status)) {
    atomic_fetch_add(&t->wrong_errors, 1);
    complain(g, "WRONG ERROR", rank, board->text);
  } else if (!had_fault(g, rank) && !is_right_blame(g, board)) { /* who was cut off or stopped may blame the others */
    atomic_fetch_add(&t->wrong_blames, 1);
    complain(g, "WRONG BLAME", rank, board->text);
  } else if (g->options->verbose) {
    complain(g, "error", rank, board->text);
  }
}

/* Results of an operation are the same bits on all ranks that have them. */
static void judge_digests(group *g) {
  for (int i = 0; i < g->round.operations; i++) {
    int first = -1;
    for (int r = 0; r < g->round.ranks; r++) {
      const chaos_board *board = &g->board[r];
      if (atomic_load(&board->progress) <= i) {
        continue;
      }
      first = first < 0 ? r : first;
      if (board->digest[i] != g->board[first].digest[i]) {
        char text[TEXT_SIZE];
        snprintf(text, sizeof text, "operation %d differs from that of rank %d", i, first);
        atomic_fetch_add(&g->totals->wrong_sums, 1);
        complain(g, "RANKS DIFFER", r, text);
        return;
      }
    }
  }
}

static void judge(group *g) {
  int whole = 1, formed = 0;
  for (int r = 0; r < g->round.ranks; r++) {
    judge_rank(g, r);
    whole &= phase_of(g, r) == PHASE_DONE && g->board[r].status == PITH_OK;
    formed |= atomic_load(&g->board[r].progress) > 0;
  }
  judge_digests(g);
  atomic_fetch_add(&g->totals->rounds, 1);
  atomic_fetch_add(&g->totals->whole, whole);
  atomic_fetch_add(&g->totals->formed, formed);
}

/* ---- A round ----------------------------------------------------------------------------------------------------- */

/* A rank that ended though nobody killed it. */
static void notice_crashes(group *g) {
  for (int r = 0; r < g->round.ranks; r++) {
    int status;
    if (g->pid[r] > 0 && waitpid(g->pid[r], &status, WNOHANG) == g->pid[r]) {
      char text[64];
      snprintf(text, sizeof text, "%s %d", WIFSIGNALED(status) ? "signal" : "exit code",
               WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
      atomic_fetch_add(&g->totals->crashes, 1);
      complain(g, "CRASH", r, text);
      bury(g, r);
      g->killed |= 1u << r;
    }
  }
}

static void end_hangs(group *g) {
  for (int r = 0; r < g->round.ranks; r++) {
    if (!(g->killed >> r & 1) && phase_of(g, r) != PHASE_DONE) {
      static const char *const phases[] = {"idle", "creating", "working", "leaving", "done"};
      char text[128];
      snprintf(text, sizeof text, "still %s after %.1f s, %d of %d operations complete", phases[phase_of(g, r)],
               pith__now() - g->last, atomic_load(&g->board[r].progress), g->round.operations);
      atomic_fetch_add(&g->totals->hangs, 1);
      complain(g, "HANG", r, text);
      kill_rank(g, r);
      g->killed |= 1u << r;
    }
  }
}

static void play_round(group *g) {
  g->killed = g->stopped = 0;
  memset(g->is_new, 0, sizeof g->is_new);
  g->start = g->last = pith__now();
  for (int r = 0; r < RANKS_MOST; r++) {
    if (g->pid[r] <= 0 && !start_rank(g, r)) {
      fprintf(stderr, "chaos: cannot start a rank: %s\n", strerror(errno));
      exit(2);
    }
  }
  for (int r = 0; r < g->round.ranks; r++) {
    send_round(g, r);
  }
  while (!have_ended(g, 0)) {
    attend_faults(g, pith__now());
    notice_crashes(g);
    if (pith__now() > g->last + 4 * g->round.timeout + SLACK) {
      end_hangs(g);
    }
    usleep(PAUSE_US);
  }
  for (fault *f = g->fault; f < g->fault + g->faults; f++) {
    if (f->done > 0 && !f->is_over) {
      undo_fault(g, f);
    }
  }
  judge(g);
  settle_links(g);
}

static int is_enough(const group *g) {
  return atomic_load(&g->totals->faults) >= g->options->faults || pith__now() - g->options->start > g->options->seconds;
}

_Noreturn void chaos_group_run(const chaos_options *options, chaos_totals *totals) {
  group g = {.options = options, .totals = totals};
  g.board = mmap(NULL, RANKS_MOST * sizeof *g.board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  g.network = (cli_network){.hosts = HOSTS, .rate = LINK_RATE, .mtu = 1500, .delay = 50};
  memset(g.pipe, -1, sizeof g.pipe);
  if (g.board == MAP_FAILED || (options->has_network && !cli_network_create(&g.network))) {
    exit(2);
  }
  for (uint64_t number = 0; !is_enough(&g); number++) {
    plan_round(&g, options->only >= 0 ? (uint64_t)options->only : number);
    plan_faults(&g);
    play_round(&g);
  }
  for (int r = 0; r < RANKS_MOST; r++) {
    kill_rank(&g, r);
  }
  cli_network_destroy(&g.network);
  exit(0);
}
