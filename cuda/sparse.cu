/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of kernels that sparsifiers take, and how the workspace is cut. All sections of a call go through each
 * kernel together, so that a bucket of layers takes as many launches as one layer. Which kernels have work to do is
 * known on the device only: those that have none end at once.
 */
#include "sparse_host.h"

#include "sparse.cuh"

#define PARTS_OF_A_PROCESSOR 4
#define DIGITS 6 /* of keys and places together, at most */
#define ALIGNMENT 256

/* ---- The workspace ----------------------------------------------------------------------------------------------- */

/* Measures where `base` is NULL. */
struct Cutter {
  uint8_t *base;
  size_t used;

  template <class T>
  T *take(size_t count) {
    T *found = base ? (T *)(base + used) : nullptr;
    used += (count * sizeof(T) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return found;
  }
};

/* As many as the CPU draws where the cut is one of them; half of that is enough for a bracket. */
static uint32_t samples_of(uint32_t n, int select) {
  uint32_t samples = n < SAMPLED_FROM ? 0 : n / 16 < SAMPLES_MOST ? n / 16 : SAMPLES_MOST;
  return (select == PITH_GPU_SELECT_SAMPLED ? samples : samples / 2) / SAMPLE_RUN * SAMPLE_RUN;
}

static void cut_section(const pith_gpu_sparse &task, Cutter &cut, Section &s) {
  s.control = cut.take<Control>(1);
  if (task.clip > 0) {
    s.squares = cut.take<double>(task.n / MEMORY_TILE + 1);
  }
  if (task.kind == PITH_WIRE_RANDOMK) {
    return;
  }
  size_t words = (size_t)s.tiles * TILE_WORDS;
  s.bitmap = cut.take<uint32_t>(words);
  s.stream = cut.take<uint32_t>(words + 4);
  s.tile_count = cut.take<uint32_t>(s.tiles);
  s.tile_last = cut.take<uint32_t>(s.tiles);
  s.tile_rank = cut.take<uint32_t>(s.tiles);
  s.tile_prev = cut.take<uint32_t>(s.tiles);
  s.tile_bits = cut.take<uint64_t>(s.tiles);
  s.tile_ones = cut.take<uint16_t>(32 * (size_t)s.tiles);
  s.maps = cut.take<uint64_t>((size_t)s.stream_blocks * RICE_STATES);
  if (s.select != PITH_GPU_SELECT_ABOVE) {
    s.room = task.n < SAMPLED_FROM ? task.n : task.n / 32 + 4096;
    s.candidates = cut.take<uint2>(s.room);
    s.sample = cut.take<uint32_t>(s.samples);
  }
  if (task.coding == PITH_VALUES_Q8) {
    s.list = cut.take<float>(task.most);
  }
}

static int sides_of(const pith_gpu_sparse &task) { return task.kind == PITH_WIRE_ADAPTIVE ? 2 : 1; }

/* Section `side` of a task: 0, or the positive and negative values of adaptive. */
static Section section_of(const pith_gpu_sparse &task, int side, Cutter &cut) {
  Section s = {};
  s.given = task.values;
  s.dst = task.values;
  s.src = task.memory ? (const void *)task.memory : task.values;
  s.src_type = task.memory ? (uint8_t)PITH_GPU_F32 : task.dtype;
  s.type = task.dtype;
  s.payload = task.payload;
  s.size = task.size;
  s.memory = task.memory;
  s.momentum = task.momentum;
  s.ratio = task.ratio;
  s.clip = task.clip;
  s.capacity = task.capacity;
  s.n = task.n;
  s.k = task.k;
  s.most = task.most;
  s.tiles = task.n / TILE + (task.n % TILE != 0);
  s.stream_blocks = (uint32_t)(task.capacity / STREAM_BLOCK + 1);
  s.key0 = task.key0;
  s.key1 = task.key1;
  s.cut = task.cut;
  s.beta = task.beta;
  s.gamma = task.gamma;
  s.kind = task.kind;
  s.coding = task.coding;
  s.select = task.select;
  s.keeps = task.keeps;
  s.side = task.kind == PITH_WIRE_ADAPTIVE ? (uint8_t)(SIDE_POSITIVE + side) : (uint8_t)SIDE_BOTH;
  s.fused = task.memory && (task.kind == PITH_WIRE_TOPK || task.kind == PITH_WIRE_THRESHOLD);
  s.samples = s.select == PITH_GPU_SELECT_ABOVE ? 0 : samples_of(task.n, s.select);
  cut_section(task, cut, s);
  return s;
}

size_t pith__sparse_space(const pith_gpu_sparse *task) {
  Cutter cut = {nullptr, 0};
  for (int side = 0; side < sides_of(*task); side++) {
    section_of(*task, side, cut);
  }
  return cut.used;
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

typedef cudaError_t (*Launch)(const Sections &batch, cudaStream_t stream);

/* How many blocks a section gets: one, or as many as there is work for and the device takes. */
static void share_out(Sections &batch, bool alone, uint32_t most) {
  batch.blocks = 0;
  for (uint32_t i = 0; i < batch.count; i++) {
    Section &s = batch.section[i];
    s.begin = batch.blocks;
    batch.blocks += alone || s.tiles == 0 ? 1 : s.tiles < most ? s.tiles : most;
    s.end = batch.blocks;
  }
}

static cudaError_t most_parts(uint32_t *most) {
  int device, processors;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  *most = error == cudaSuccess ? (uint32_t)processors * PARTS_OF_A_PROCESSOR : 1;
  return error;
}

/* A run of kernels over one batch; the first error ends it. */
struct Runner {
  Sections &batch;
  cudaStream_t stream;
  uint32_t most;
  cudaError_t error;

  void alone(Launch launch) { run(launch, true, most); }
  void together(Launch launch) { run(launch, false, most); }
  void crowded(Launch launch) { run(launch, false, 3 * most); } /* many small blocks */

  void run(Launch launch, bool one, uint32_t at_most) {
    if (error == cudaSuccess && batch.count) {
      share_out(batch, one, at_most);
      error = launch(batch, stream);
    }
  }
};

template <class Test>
static bool any_of(const Sections &batch, Test test) {
  for (uint32_t i = 0; i < batch.count; i++) {
    if (test(batch.section[i])) {
      return true;
    }
  }
  return false;
}

static bool has_memory(const Section &s) { return s.memory != nullptr; }
static bool is_compensated_before(const Section &s) { return s.memory && !s.fused; }
static bool gives_up_later(const Section &s) {
  return s.memory && s.keeps != PITH_GPU_KEEP_ALL && !takes_out_at_once(s);
}
static bool is_clipped(const Section &s) { return s.clip > 0; }
static bool is_selected(const Section &s) { return s.select != PITH_GPU_SELECT_ABOVE; }

static void compensate(Runner &runner) {
  if (any_of(runner.batch, is_clipped)) {
    runner.together(launch_norm);
  }
  runner.alone(launch_begin);
  if (any_of(runner.batch, is_compensated_before)) {
    runner.together(launch_compensate);
  }
}

/* Tiles are counted up. */
static void clear_tiles(Runner &runner) {
  for (uint32_t i = 0; i < runner.batch.count && runner.error == cudaSuccess; i++) {
    const Section &s = runner.batch.section[i];
    if (s.tiles) {
      size_t bytes = (size_t)((uint8_t *)(s.tile_last + s.tiles) - (uint8_t *)s.tile_count); /* both lie side by side */
      runner.error = cudaMemsetAsync(s.tile_count, 0, bytes, runner.stream);
    }
  }
}

static void select(Runner &runner) {
  bool selected = any_of(runner.batch, is_selected);
  clear_tiles(runner);
  if (selected) {
    runner.alone(launch_sample);
  }
  runner.together(launch_scan);
  if (selected) {
    for (int i = 0; i < DIGITS; i++) {
      runner.together(launch_digit);
    }
    runner.together(launch_mark);
  }
}

static void encode_sections(Runner &runner) {
  compensate(runner);
  select(runner);
  runner.alone(launch_tiles);
  runner.together(launch_values);
  runner.alone(launch_plan);
  runner.together(launch_dense);
  runner.together(launch_write);
  runner.together(launch_finish);
  if (any_of(runner.batch, gives_up_later)) {
    runner.together(launch_keep);
  }
  if (any_of(runner.batch, has_memory)) {
    runner.together(launch_forget);
  }
}

static void decode_sections(Runner &runner, bool add) {
  runner.alone(launch_open);
  runner.crowded(launch_index);
  runner.alone(launch_join);
  runner.alone(launch_tiles);
  runner.crowded(add ? (Launch)[](const Sections &b, cudaStream_t s) { return launch_apply(b, true, s); }
                     : (Launch)[](const Sections &b, cudaStream_t s) { return launch_apply(b, false, s); });
}

/* ---- randomk ----------------------------------------------------------------------------------------------------- */

static Drawing drawing_of(const pith_gpu_sparse &task, const Section &s) {
  Drawing drawing;
  drawing.s = s;
  memcpy(drawing.permute, task.permute, sizeof drawing.permute);
  drawing.factor = task.factor;
  return drawing;
}

static void encode_drawing(Runner &runner, const pith_gpu_sparse &task) {
  Cutter cut = {(uint8_t *)task.space, 0};
  runner.batch.section[0] = section_of(task, 0, cut);
  runner.batch.count = 1;
  compensate(runner);
  if (runner.error == cudaSuccess) {
    runner.error = launch_drawing_encode(drawing_of(task, runner.batch.section[0]), runner.most, runner.stream);
  }
  if (task.memory) {
    runner.together(launch_forget);
  }
  runner.batch.count = 0;
}

static void decode_drawing(Runner &runner, const pith_gpu_sparse &task, bool add) {
  Cutter cut = {(uint8_t *)task.space, 0};
  if (runner.error == cudaSuccess) {
    runner.error = launch_drawing_decode(drawing_of(task, section_of(task, 0, cut)), add, runner.most, runner.stream);
  }
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static void add_sections(Sections &batch, const pith_gpu_sparse &task) {
  Cutter cut = {(uint8_t *)task.space, 0};
  for (int side = 0; side < sides_of(task); side++) {
    Section &s = batch.section[batch.count++];
    s = section_of(task, side, cut);
    if (side == 1) {
      s.before = (&s - 1)->control;
      (&s - 1)->size = nullptr;
    }
  }
}

cudaError_t pith__sparse_encode(const pith_gpu_sparse *tasks, size_t count, cudaStream_t stream) {
  Sections batch;
  batch.count = 0;
  Runner runner = {batch, stream, 1, cudaSuccess};
  runner.error = most_parts(&runner.most);
  for (size_t i = 0; i < count; i++) {
    if (tasks[i].kind == PITH_WIRE_RANDOMK) {
      continue;
    }
    add_sections(batch, tasks[i]);
    if (batch.count + 2 > SECTIONS) {
      encode_sections(runner);
      batch.count = 0;
    }
  }
  encode_sections(runner);
  for (size_t i = 0; i < count; i++) {
    if (tasks[i].kind == PITH_WIRE_RANDOMK) {
      encode_drawing(runner, tasks[i]);
    }
  }
  return runner.error;
}

/* How many earlier tasks have the same destination: each wave is applied when the one before it is done. */
static size_t wave_of(const pith_gpu_sparse *tasks, size_t i) {
  size_t wave = 0;
  for (size_t j = 0; j < i; j++) {
    wave += tasks[j].values == tasks[i].values;
  }
  return wave;
}

static void clear(Runner &runner, const pith_gpu_sparse &task) {
  if (runner.error == cudaSuccess && task.n) {
    runner.error =
        cudaMemsetAsync(task.values, 0, (size_t)task.n * (task.dtype == PITH_GPU_F32 ? 4 : 2), runner.stream);
  }
}

/* All tasks of a wave, `side` by side: where a second section begins is known once the first is decoded. */
static bool decode_wave(Runner &runner, const pith_gpu_sparse *tasks, size_t count, size_t wave, int side, bool add) {
  bool more = false;
  runner.batch.count = 0;
  for (size_t i = 0; i < count; i++) {
    const pith_gpu_sparse &task = tasks[i];
    size_t mine = wave_of(tasks, i);
    more |= mine > wave;
    if (mine != wave || side >= sides_of(task)) {
      continue;
    }
    if (!add && side == 0) {
      clear(runner, task);
    }
    if (task.kind == PITH_WIRE_RANDOMK) {
      decode_drawing(runner, task, add);
      continue;
    }
    Cutter cut = {(uint8_t *)task.space, 0};
    Section first = section_of(task, 0, cut), &s = runner.batch.section[runner.batch.count++];
    s = first;
    if (side == 1) {
      s = section_of(task, 1, cut);
      s.before = first.control;
    }
    if (runner.batch.count == SECTIONS) {
      decode_sections(runner, add);
      runner.batch.count = 0;
    }
  }
  if (runner.batch.count) {
    decode_sections(runner, add);
  }
  return more;
}

cudaError_t pith__sparse_decode(const pith_gpu_sparse *tasks, size_t count, bool add, cudaStream_t stream) {
  Sections batch;
  batch.count = 0;
  Runner runner = {batch, stream, 1, cudaSuccess};
  runner.error = most_parts(&runner.most);
  bool more = true;
  for (size_t wave = 0; more; wave++) {
    more = decode_wave(runner, tasks, count, wave, 0, add);
    decode_wave(runner, tasks, count, wave, 1, add);
  }
  return runner.error;
}
