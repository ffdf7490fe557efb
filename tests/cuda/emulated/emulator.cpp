/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs kernels on a CPU: see cuda_runtime.h. Blocks of threads run one after the other. A thread of a block is a
 * context with a stack of its own; it runs until it waits for other lanes of its warp or for its block, then the next
 * one does. PITH_EMULATED_ORDER=backwards begins with the last thread: what a kernel gives must not depend on it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <mutex>
#include <vector>

#include "cuda_runtime.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

/* ---- Contexts ----------------------------------------------------------------------------------------------------
 */

enum { STACK = 128 << 10, WARP = 32, MOST_THREADS = 1024, MASKS = 8, SHARED = 228 << 10, PROCESSORS = 3 };

/* Saves what a function must keep, and goes on where the other context was left. */
extern "C" void pith_switch(void **save, void *to);

#if defined(__x86_64__)
asm(R"(
.text
.globl pith_switch
.hidden pith_switch
.type pith_switch, @function
pith_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size pith_switch, .-pith_switch
)");
enum { KEPT = 6 };

static void *first_frame(uint8_t *top, void (*begin)()) {
  void **frame = (void **)top - 3; /* aligned as behind a call */
  *--frame = (void *)begin;
  for (int i = 0; i < KEPT; i++) {
    *--frame = nullptr;
  }
  return frame;
}
#else
#error "the emulation knows how to switch contexts on x86-64 only"
#endif

/* ---- A block of threads ------------------------------------------------------------------------------------------
 */

struct Exchange { /* of the lanes of a mask; two sets, so that a lane may go on while others still read */
  uint32_t mask, arrived, there[2];
  unsigned turn;
  uint64_t value[2][WARP];
};

struct Warp {
  uint32_t alive;
  unsigned masks;
  Exchange exchange[MASKS];
};

struct Thread : pith_thread {
  void *context;
  uint8_t *stack;
  Warp *warp;
  const unsigned *waits_for; /* until it is no longer this */
  unsigned until;
  bool alive;
#if defined(__SANITIZE_ADDRESS__)
  void *fake_stack;
#endif
};

pith_thread *pith_running;
dim3 blockIdx, blockDim, gridDim;

static Thread *running; /* the same as pith_running */
static std::vector<Thread> threads(MOST_THREADS);
static std::vector<Warp> warps(MOST_THREADS / WARP);
static void *scheduler;
static const std::function<void()> *body;
static unsigned alive, arrived, barriers;
static int any[2];
static std::mutex one_at_a_time; /* kernels, whichever thread of the program launches them */
static __attribute__((aligned(128))) uint8_t dynamic_shared[SHARED];

void *pith_dynamic_shared(void) { return dynamic_shared; }

unsigned long long pith_nanoseconds(void) {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (unsigned long long)t.tv_sec * 1000000000u + (unsigned long long)t.tv_nsec;
}

void pith_emulation_fails(const char *why) {
  fprintf(stderr, "emulated kernel: block %u, thread %u: %s\n", blockIdx.x, running ? running->place.x : 0, why);
  abort();
}

#if defined(__SANITIZE_ADDRESS__)
static const void *scheduler_bottom;
static size_t scheduler_size;
static void *scheduler_fake;
static void leave(void **fake, const void *bottom, size_t size) { __sanitizer_start_switch_fiber(fake, bottom, size); }
static void arrive(void *fake, const void **bottom, size_t *size) { __sanitizer_finish_switch_fiber(fake, bottom, size); }
#endif

static void to_scheduler(bool for_ever) {
#if defined(__SANITIZE_ADDRESS__)
  leave(for_ever ? nullptr : &running->fake_stack, scheduler_bottom, scheduler_size);
#endif
  (void)for_ever;
  pith_switch(&running->context, scheduler);
#if defined(__SANITIZE_ADDRESS__)
  arrive(running->fake_stack, &scheduler_bottom, &scheduler_size);
#endif
}

static void to_thread(Thread &t) {
  pith_running = running = &t;
#if defined(__SANITIZE_ADDRESS__)
  leave(&scheduler_fake, t.stack, STACK);
#endif
  pith_switch(&scheduler, t.context);
#if defined(__SANITIZE_ADDRESS__)
  arrive(scheduler_fake, nullptr, nullptr);
#endif
}

static void wait_while(const unsigned *turn, unsigned is) {
  running->waits_for = turn;
  running->until = is;
  to_scheduler(false);
  running->waits_for = nullptr;
}

/* Once all lanes that are still there have come. */
static void finish(Exchange &e, uint32_t there) {
  if (e.arrived && (e.arrived & there) == (e.mask & there)) {
    e.there[e.turn & 1] = e.arrived;
    e.arrived = 0;
    e.turn++;
  }
}

static Exchange &exchange_of(Warp &w, uint32_t mask) {
  for (unsigned i = 0; i < w.masks; i++) {
    if (w.exchange[i].mask == mask) {
      return w.exchange[i];
    }
  }
  if (w.masks == MASKS) { /* those that nobody waits for are forgotten */
    w.masks = 0;
    for (unsigned i = 0; i < MASKS; i++) {
      if (w.exchange[i].arrived) {
        pith_emulation_fails("too many groups of lanes wait at a time");
      }
    }
  }
  Exchange &e = w.exchange[w.masks++];
  e.mask = mask;
  e.arrived = 0;
  return e;
}

pith_exchanged pith_exchange(uint32_t mask, uint64_t value) {
  Warp &w = *running->warp;
  if (!(mask >> running->lane & 1)) {
    pith_emulation_fails("a lane is not in its own mask");
  }
  Exchange &e = exchange_of(w, mask);
  unsigned turn = e.turn;
  e.value[turn & 1][running->lane] = value;
  e.arrived |= 1u << running->lane;
  finish(e, w.alive);
  if (e.turn == turn) {
    wait_while(&e.turn, turn);
  }
  return {e.value[turn & 1], e.there[turn & 1]};
}

static void finish_barrier() {
  if (arrived && arrived == alive) {
    arrived = 0;
    barriers++;
    any[barriers & 1] = 0;
  }
}

int __syncthreads_or(int predicate) {
  unsigned turn = barriers;
  any[turn & 1] |= predicate != 0;
  arrived++;
  finish_barrier();
  if (barriers == turn) {
    wait_while(&barriers, turn);
  }
  return any[turn & 1];
}

void __syncthreads(void) { __syncthreads_or(0); }

static void begin_thread() {
#if defined(__SANITIZE_ADDRESS__)
  arrive(nullptr, &scheduler_bottom, &scheduler_size);
#endif
  (*body)();
  running->alive = false;
  alive--;
  Warp &w = *running->warp;
  w.alive &= ~(1u << running->lane);
  for (unsigned i = 0; i < w.masks; i++) {
    finish(w.exchange[i], w.alive);
  }
  finish_barrier();
  to_scheduler(true);
}

static void set_up(unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    Thread &t = threads[i];
    if (!t.stack) {
      void *stack = mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (stack == MAP_FAILED) {
        pith_emulation_fails("no memory for its threads");
      }
      t.stack = (uint8_t *)stack;
    }
    t.place = dim3(i, 0, 0);
    t.lane = i % WARP;
    t.warp = &warps[i / WARP];
    t.waits_for = nullptr;
    t.alive = true;
    t.context = first_frame(t.stack + STACK, begin_thread);
  }
  for (unsigned w = 0; w < (count + WARP - 1) / WARP; w++) {
    unsigned lanes = std::min(count - w * WARP, (unsigned)WARP);
    warps[w].alive = lanes == WARP ? 0xffffffffu : (1u << lanes) - 1;
    warps[w].masks = 0;
  }
  alive = count;
  arrived = 0;
}

/* Threads first … first + WARP − 1, until all of them wait for other warps. Says whether any of them could run. */
static bool run_warp(unsigned first, unsigned count, bool backwards) {
  bool ran = false;
  for (bool again = true; again;) {
    again = false;
    for (unsigned i = 0; i < count; i++) {
      Thread &t = threads[first + (backwards ? count - 1 - i : i)];
      if (t.alive && (!t.waits_for || *t.waits_for != t.until)) {
        to_thread(t);
        ran = again = true;
      }
    }
  }
  return ran;
}

static void run_block(unsigned count, bool backwards) {
  set_up(count);
  while (alive) {
    bool ran = false;
    for (unsigned i = 0; i < count; i += WARP) {
      unsigned first = backwards ? (count - 1 - i) / WARP * WARP : i;
      ran |= run_warp(first, std::min(count - first, (unsigned)WARP), backwards);
    }
    if (!ran) {
      pith_emulation_fails("threads wait for others that have taken another way");
    }
  }
}

void pith_run_grid(dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread) {
  std::lock_guard<std::mutex> guard(one_at_a_time);
  const char *order = getenv("PITH_EMULATED_ORDER");
  bool backwards = order && strcmp(order, "backwards") == 0;
  if (block.x > MOST_THREADS || block.y != 1 || block.z != 1 || shared > SHARED || !grid.x || !block.x) {
    pith_emulation_fails("a launch that no device takes");
  }
  body = &thread;
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; z++) {
    for (unsigned y = 0; y < grid.y; y++) {
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = dim3(x, y, z);
        memset(dynamic_shared, 0xee, shared);
        run_block(block.x, backwards);
      }
    }
  }
}

/* ---- The runtime -------------------------------------------------------------------------------------------------
 */

static cudaError_t take(void **memory, size_t size) {
  return posix_memalign(memory, 256, size ? size : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t size) { return take(memory, size); }
cudaError_t cudaHostAlloc(void **memory, size_t size, unsigned) { return take(memory, size); }
cudaError_t cudaFree(void *memory) { return free(memory), cudaSuccess; }
cudaError_t cudaFreeHost(void *memory) { return free(memory), cudaSuccess; }

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? PROCESSORS : SHARED - 1024;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulated");
  properties->major = 9;
  properties->totalGlobalMem = (size_t)1 << 30;
  return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : "an error"; }

/* ---- What is not emulated: messages between the GPUs of one host -------------------------------------------------
 */

#include "ipc_host.h"

static int refuse_ipc(char *text) {
  snprintf(text, 256, "emulated devices have no memory that processes share");
  return 1;
}

int pith__ipc_identify(pith_ipc_device *, char *text) { return refuse_ipc(text); }
int pith__ipc_share(size_t, void **, int *, char *text) { return refuse_ipc(text); }
int pith__ipc_map(int, size_t, void **, char *text) { return refuse_ipc(text); }
void pith__ipc_unmap(void *, size_t) {}
cudaError_t pith__ipc_wait(const pith_ipc_wait *, cudaStream_t) { return cudaErrorInvalidValue; }
cudaError_t pith__ipc_copy(const pith_ipc_copy *, cudaStream_t) { return cudaErrorInvalidValue; }
cudaError_t pith__ipc_combine(const pith_ipc_combine *, cudaStream_t) { return cudaErrorInvalidValue; }
