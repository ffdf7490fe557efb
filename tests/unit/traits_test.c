/* SPDX-License-Identifier: Apache-2.0 */
/* What codecs tell about themselves: to GPUs, to the planner. */
#include <pith/cuda.h>
#include <pith/plan.h>
#include <stdlib.h>

#include "codec/registry.h"
#include "codec/shortlist.h"
#include "device/cuda_tasks.h"
#include "laws.h"
#include "solve/methods.h"

/* ---- GPUs -------------------------------------------------------------------------------------------------------- */

/* The codecs that have no kernels, and say so. */
static int is_without_kernels(uint16_t wire_id) {
  return wire_id == PITH_WIRE_INCEPTIONN || wire_id == PITH_WIRE_SKETCHML;
}

TEST(every_codec_has_kernels_or_says_so) {
  for (const pith_codec_ops *const *ops = pith__builtin_codecs; *ops; ops++) {
    pith_codec *codec = law_codec((*ops)->name);
    if (is_without_kernels((*ops)->wire_id)) {
      CHECK_STATUS(pith_cuda_supports(codec), PITH_ERR_UNSUPPORTED);
      CHECK_ERROR_SAYS((*ops)->name);
    } else {
      CHECK_OK(pith_cuda_supports(codec));
    }
  }
  law_sweep();
}

/* A kind without its function would be a call to NULL in the middle of a step. */
TEST(a_row_for_gpus_is_complete) {
  for (const pith_codec_ops *const *ops = pith__builtin_codecs; *ops; ops++) {
    const pith_codec_traits *t = (*ops)->traits;
    uint32_t blocks = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
    pith_gpu_kind kind = t ? t->gpu : PITH_GPU_NO_KERNELS;
    CHECK_MSG((kind == PITH_GPU_SPARSE) == (t && t->gpu_sparse), "%s", (*ops)->name);
    CHECK_MSG((kind == PITH_GPU_LOWRANK) == (t && t->gpu_lowrank), "%s", (*ops)->name);
    CHECK_MSG(kind == PITH_GPU_BLOCKS || !t || !t->gpu_block, "%s", (*ops)->name);
    CHECK_MSG(kind != PITH_GPU_BLOCKS || ((*ops)->caps & blocks) == blocks, "%s", (*ops)->name);
    CHECK_MSG(kind != PITH_GPU_LOWRANK || (*ops)->part_size, "%s", (*ops)->name);
  }
  for (const pith_memory_ops *const *memory = pith__builtin_memories; *memory; memory++) {
    CHECK_MSG((*memory)->blend != NULL, "%s", (*memory)->name);
  }
}

static void check_block_task(const pith_codec *codec, const pith_gpu_task *task) {
  int apart = codec->traits->gpu_tail_apart && codec->traits->gpu_tail_apart(codec->args) && task->n < task->bucket;
  CHECK_EQ(task->kind, apart ? PITH_WIRE_NONE : pith_codec_wire_id(codec));
  CHECK_MSG(task->bits >= 1 && task->bits <= 8, "%s: %u bits", codec->spec, task->bits);
  CHECK_EQ(task->block_size, codec->ops->block_bound(codec->args, task->bucket));
  CHECK_EQ(task->rotation != 0, codec->transform != NULL);
  /* Blocks of the payload are those of the CPU. */
  CHECK_MSG(codec->granule % task->bucket == 0, "%s: buckets of %u", codec->spec, task->bucket);
}

static void check_sparse_task(const pith_codec *codec, const pith_gpu_sparse *task) {
  CHECK_EQ(task->kind, pith_codec_wire_id(codec));
  CHECK_EQ(task->capacity, pith_codec_bound(codec, task->n));
  CHECK_MSG(task->k <= task->n && task->most >= task->k && task->most <= task->n, "%s: %u of %u, at most %u",
            codec->spec, task->k, task->n, task->most);
}

static void check_lowrank_task(const pith_codec *codec, const pith_gpu_lowrank *task) {
  CHECK_MSG(task->rank >= 1 && (size_t)task->rows * task->cols >= task->n, "%s: %u × %u", codec->spec, task->rows,
            task->cols);
  CHECK_EQ(task->dense, pith_cuda_part(codec, task->n, task->rows) == 0);
}

static pith_cuda_item item_of(const pith_codec *codec, size_t n, pith_ctx ctx) {
  return (pith_cuda_item){.size = sizeof(pith_cuda_item),
                          .codec = codec,
                          .dtype = PITH_F32,
                          .n = n,
                          .seed = ctx.seed,
                          .step = ctx.step,
                          .layer = ctx.layer};
}

TEST(every_spec_becomes_a_task_that_fits_its_codec) {
  size_t tasks = 0;
  for (size_t i = 0; i < law_spec_count(); i++) {
    pith_codec *codec = law_codec(law_spec(i));
    static uint8_t payload[1 << 16];
    pith_cuda_item item = item_of(codec, 5000, law_ctx(3));
    item.payload = payload;
    if (pith_cuda_supports(codec) == PITH_OK) {
      if (pith__gpu_is_block(codec)) {
        size_t first = 0;
        CHECK(pith_codec_bound(codec, item.n) <= sizeof payload);
        for (pith_gpu_task task; first < item.n; first += task.n) {
          CHECK_EQ(pith__gpu_next_task(&item, 1, first, &task), task.n);
          CHECK_MSG(task.payload == payload + pith_codec_bound(codec, first), "%s: task at %zu", codec->spec, first);
          check_block_task(codec, &task);
        }
        CHECK_EQ(first, item.n);
      } else if (pith__gpu_is_sparse(codec)) {
        pith_gpu_sparse task = pith__gpu_sparse_task(&item, 1);
        check_sparse_task(codec, &task);
      } else if (pith__gpu_is_lossless(codec)) {
        pith_gpu_lossless task = pith__gpu_lossless_task(&item);
        CHECK_EQ(task.capacity, pith_codec_bound(codec, task.n));
      } else {
        pith_gpu_lowrank task = pith__gpu_lowrank_task(&item, 1);
        check_lowrank_task(codec, &task);
      }
      tasks++;
    }
  }
  CHECK_MSG(tasks > law_spec_count() / 2, "only %zu specs have kernels", tasks);
  law_sweep();
}

/* The number of values that travel is the CPU's, in every step of a warm-up. */
TEST(a_warm_up_is_the_same_on_gpus) {
  enum { N = 10000, WARMUP = 40 };
  pith_codec *codec = law_codec("topk:0.001,warmup=40");
  pith_span x = law_tensor(LAW_NORMAL, N, PITH_F32);
  for (uint64_t step = 0; step <= WARMUP; step += 5) {
    pith_cuda_item item = item_of(codec, N, law_ctx(step));
    pith_gpu_sparse task = pith__gpu_sparse_task(&item, 1);
    pith_bytes payload = law_encode(codec, NULL, x, law_ctx(step));
    uint64_t count;
    memcpy(&count, (const uint8_t *)payload.data + 8, sizeof count);
    CHECK_EQ(task.k, count);
  }
  law_sweep();
}

TEST(what_a_choice_lacks_on_gpus_is_said) {
  pith_codec *codec = law_codec("ef/topk:0.01,select=fit");
  CHECK_STATUS(pith_cuda_supports(codec), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("select=fit has no CUDA kernel");
  codec = law_codec("onebit,means=column");
  CHECK_STATUS(pith_cuda_supports(codec), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("means=column has no CUDA kernel");
  codec = law_codec("qsgd:7,coding=elias");
  CHECK_STATUS(pith_cuda_supports(codec), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("coding=elias has no CUDA kernel");
  codec = law_codec("hadamard/q:4,tail=exact");
  CHECK_STATUS(pith_cuda_supports(codec), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("exact last bucket behind hadamard");
  law_sweep();
}

/* ---- The planner ------------------------------------------------------------------------------------------------- */

/* Whatever is offered around a spec is a spec, and the one that was asked for is among them. */
TEST(candidates_of_every_spec_are_specs) {
  static char text[65536];
  size_t several = 0;
  for (size_t i = 0; i < law_spec_count(); i++) {
    pith_codec *asked = law_codec(law_spec(i));
    size_t count = 0;
    int found = 0;
    CHECK_OK(pith_plan_candidates(law_spec(i), text, sizeof text));
    for (char *rest = text, *spec; (spec = strsep(&rest, ";"));) {
      pith_codec *codec = law_codec(spec);
      found |= pith_codec_fingerprint(codec) == pith_codec_fingerprint(asked);
      count++;
    }
    CHECK_MSG(found || asked->strength == PITH_STRENGTH_RATIO, "%s is not among its candidates", law_spec(i));
    int has_strength = pith__strength_of(asked) > 0; /* a size of nothing has no other sizes around it */
    CHECK_MSG(count > 1 || !has_strength, "%s has a strength and one candidate", law_spec(i));
    several += count > 1;
  }
  CHECK(several > 0);
  law_sweep();
}

/* A codec that sends the largest values tells how many of them, and about how many bytes they take. */
TEST(the_bytes_of_the_largest_values_are_foretold) {
  enum { N = 20000 };
  static const char *const specs[] = {"topk:0.001", "topk:0.01", "topk:0.1", "topk:0.5", "topk:1"};
  pith_span x = law_tensor(LAW_NORMAL, N, PITH_F32);
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    pith_codec *codec = law_codec(specs[i]);
    size_t k;
    double bytes;
    CHECK(codec->traits->largest(codec->args, N, &k, &bytes));
    double real = (double)law_encode(codec, NULL, x, law_ctx(0)).size;
    CHECK_MSG(bytes > 0.95 * real - 8 && bytes < 1.05 * real + 8, "%s: %g bytes, not %g", specs[i], real, bytes);
  }
  static const char *const others[] = {"topk:0.01,values=fp16", "topk:0.01,select=sampled", "topk:0.01,select=fit"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    pith_codec *codec = law_codec(others[i]);
    CHECK_MSG(!codec->traits->largest(codec->args, N, &(size_t){0}, &(double){0}), "%s", others[i]);
  }
  law_sweep();
}

/* Times are taken once for each family, at the parameters that its cost is relative to. */
TEST(the_shortlist_is_timed_at_unit_cost) {
  size_t lossy = 0;
  for (const char *const *spec = pith__shortlist; *spec; spec++) {
    pith_codec *codec = law_codec(*spec);
    int timed = 0;
    for (size_t k = 0; k < PITH_SHORTLIST_TIMED; k++) {
      timed += strcmp(pith__shortlist_timed[k], *spec) == 0;
    }
    CHECK_MSG(timed == !codec->traits->exact, "%s", *spec);
    CHECK_MSG(!codec->traits->cost || codec->traits->cost(codec->args) == 1, "%s", *spec);
    lossy += !codec->traits->exact;
  }
  CHECK_EQ(lossy, PITH_SHORTLIST_TIMED);
  law_sweep();
}

/* A layer keeps one sketch, for one codec. */
TEST(at_most_one_codec_is_nested) {
  size_t nested = 0;
  for (const pith_codec_ops *const *ops = pith__builtin_codecs; *ops; ops++) {
    nested += (*ops)->traits && (*ops)->traits->nested;
  }
  CHECK_EQ(nested, 1);
}
