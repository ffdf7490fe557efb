/* Checkpoints of an allreduce on a device: a head, and what the rank keeps as it lies there. */
#include <string.h>

#include "base/hash.h"
#include "codec/codec.h"
#include "device/device.h"

#define MAGIC 0x434e4850u /* "PHNC" */
#define VERSION 1

typedef struct head {
  uint32_t magic, version;
  uint64_t summary, rank, ranks;
  uint64_t size, checksum; /* of what follows */
} head;

size_t pith__device_size(const pith_device_core *o) { return o ? sizeof(head) + o->kept_size : 0; }

pith_status pith__device_save(const pith_device_core *o, pith_out *out) {
  char text[PITH_DEVICE_TEXT];
  PITH_REQUIRE(o && out && out->data, PITH_ERR_ARGUMENT, "saving: the object and out must not be NULL");
  size_t size = pith__device_size(o);
  PITH_REQUIRE(out->capacity >= size, PITH_ERR_BUFFER, "the checkpoint takes %zu bytes, the buffer has %zu", size,
               out->capacity);
  uint8_t *kept = (uint8_t *)out->data + sizeof(head);
  PITH_REQUIRE(o->kept_size == 0 || !o->gpu->copy(kept, o->memory, o->kept_size, text), PITH_ERR_SYSTEM, "CUDA: %s",
               text);
  head h = {MAGIC,
            VERSION,
            o->summary,
            (uint64_t)o->rank,
            (uint64_t)o->ranks,
            o->kept_size,
            pith__hash64(kept, o->kept_size, 0)};
  memcpy(out->data, &h, sizeof h);
  out->size = size;
  return PITH_OK;
}

static pith_status check(const pith_device_core *o, pith_bytes bytes) {
  head h;
  PITH_REQUIRE(bytes.size >= sizeof h, PITH_ERR_CORRUPT, "the checkpoint ends within its head");
  memcpy(&h, bytes.data, sizeof h);
  PITH_REQUIRE(h.magic == MAGIC && h.version == VERSION, PITH_ERR_CORRUPT,
               "these bytes are no checkpoint of an allreduce on a device");
  PITH_REQUIRE(h.rank == (uint64_t)o->rank && h.ranks == (uint64_t)o->ranks, PITH_ERR_STATE,
               "the checkpoint is of rank %llu of %llu, and this is rank %d of %d", (unsigned long long)h.rank,
               (unsigned long long)h.ranks, o->rank, o->ranks);
  PITH_REQUIRE(h.summary == o->summary && h.size == o->kept_size, PITH_ERR_STATE,
               "the checkpoint is of other layers, specs or another seed");
  PITH_REQUIRE(
      bytes.size == sizeof h + h.size && h.checksum == pith__hash64((const uint8_t *)bytes.data + sizeof h, h.size, 0),
      PITH_ERR_CORRUPT, "the checkpoint is damaged");
  return PITH_OK;
}

pith_status pith__device_load(pith_device_core *o, pith_bytes bytes) {
  char text[PITH_DEVICE_TEXT];
  PITH_REQUIRE(o && bytes.data, PITH_ERR_ARGUMENT, "loading: the object and bytes must not be NULL");
  PITH_TRY(check(o, bytes));
  PITH_REQUIRE(
      o->kept_size == 0 || !o->gpu->copy(o->memory, (const uint8_t *)bytes.data + sizeof(head), o->kept_size, text),
      PITH_ERR_SYSTEM, "CUDA: %s", text);
  return PITH_OK;
}
