/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making, checking and mapping segments. memfd_create gives memory without a name: nothing stays in the system however
 * the ranks end, two jobs cannot collide, and the size of /dev/shm does not matter.
 */
#include "transport/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

#define CELLS 64u
#define CELL_SIZE (64u << 10)
#define CELL_SIZE_LEAST (4u << 10)

/* What a peer's shape may be at most; keeps all arithmetic on it far from overflow. */
#define CELLS_MOST 65536u
#define CELL_SIZE_MOST (1u << 20)
#define INBOXES_MOST 65536u
#define SLOTS_MOST 64u

pith_shm_tuning pith__shm_tuning;

static uint32_t largest_power_of_two(uint32_t most) {
  uint32_t power = 1;
  while (power * 2 <= most) {
    power *= 2;
  }
  return power;
}

/* Two cells for each peer at least: one that is kept for it, and one to share. */
static uint32_t cells_for(uint32_t peers) {
  uint32_t wanted = pith__shm_tuning.cells ? pith__shm_tuning.cells : CELLS, least = peers ? 2 * peers : 1;
  return wanted > least ? wanted : least;
}

static uint32_t cell_size_for(uint32_t cells, uint32_t pool) {
  if (pith__shm_tuning.cell_size) {
    return pith__shm_tuning.cell_size;
  }
  uint32_t size = CELL_SIZE;
  while (size > CELL_SIZE_LEAST && (uint64_t)cells * size > pool) {
    size /= 2;
  }
  return size;
}

pith_shm_shape pith__shm_shape(uint32_t peers, uint32_t pool) {
  uint32_t cells = cells_for(peers);
  uint32_t share = peers > 1 ? cells / 2 : cells; /* a slow peer cannot have all of them */
  share = share < SLOTS_MOST ? share : SLOTS_MOST;
  share = peers > 1 && share > SLOTS_MOST / 2 ? SLOTS_MOST / 2 : share;
  return (pith_shm_shape){cells, cell_size_for(cells, pool), peers ? peers : 1, largest_power_of_two(share)};
}

size_t pith__shm_segment_size(const pith_shm_shape *shape) {
  return pith__shm_cells_offset(shape) + (size_t)shape->cells * shape->cell_size;
}

static int is_sane(const pith_shm_shape *shape) {
  return shape->cells > 0 && shape->cells <= CELLS_MOST && shape->cell_size > 0 && shape->cell_size <= CELL_SIZE_MOST &&
         shape->inboxes > 0 && shape->inboxes <= INBOXES_MOST && shape->slots > 0 && shape->slots <= SLOTS_MOST &&
         (shape->slots & (shape->slots - 1)) == 0;
}

static pith_status map(int fd, const pith_shm_shape *shape, pith_shm_segment *segment) {
  size_t size = pith__shm_segment_size(shape);
  void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  PITH_REQUIRE(base != MAP_FAILED, PITH_ERR_SYSTEM, "shm: cannot map %zu bytes of shared memory: %s", size,
               strerror(errno));
  *segment = (pith_shm_segment){base, size, *shape};
  return PITH_OK;
}

/* Pages are allocated here, so that a lack of memory is an error now and not a signal later. */
static pith_status allocate(int fd, size_t size) {
  int error;
  do { /* signals */
    error = ftruncate(fd, (off_t)size) == 0 ? 0 : errno;
  } while (error == EINTR);
  PITH_REQUIRE(error == 0, PITH_ERR_SYSTEM, "shm: cannot size shared memory: %s", strerror(error));
  do { /* a signal may end it early; what was allocated stays */
    error = fallocate(fd, 0, 0, (off_t)size) == 0 ? 0 : errno;
  } while (error == EINTR);
  PITH_REQUIRE(error == 0, PITH_ERR_MEMORY, "shm: no %zu bytes of shared memory: %s", size, strerror(error));
  PITH_REQUIRE(fcntl(fd, F_ADD_SEALS, SEALS) == 0, PITH_ERR_SYSTEM, "shm: cannot seal shared memory: %s",
               strerror(errno));
  return PITH_OK;
}

/* Some systems only allow memory that can never be executed, others have not heard of it. */
static int make_memory(void) {
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  int fd = memfd_create("pith", flags | MFD_NOEXEC_SEAL);
  return fd < 0 && errno == EINVAL ? memfd_create("pith", flags) : fd;
}

pith_status pith__shm_segment_create(const pith_shm_shape *shape, pith_shm_segment *segment, int *fd) {
  PITH_REQUIRE(is_sane(shape), PITH_ERR_RANGE, "shm: no segment of %u cells of %u bytes for %u peers", shape->cells,
               shape->cell_size, shape->inboxes);
  int memory = make_memory();
  PITH_REQUIRE(memory >= 0, PITH_ERR_SYSTEM, "shm: cannot make shared memory (memfd_create): %s", strerror(errno));
  pith_status status = allocate(memory, pith__shm_segment_size(shape));
  if (status == PITH_OK) {
    status = map(memory, shape, segment);
  }
  if (status != PITH_OK) {
    close(memory);
    return status;
  }
  *fd = memory;
  return PITH_OK;
}

pith_status pith__shm_segment_map(int fd, const pith_shm_shape *shape, int rank, pith_shm_segment *segment) {
  PITH_REQUIRE(is_sane(shape), PITH_ERR_PEER, "shm: rank %d describes shared memory that cannot be", rank);
  struct stat file;
  int seals = fcntl(fd, F_GET_SEALS);
  PITH_REQUIRE(seals >= 0 && (seals & F_SEAL_SHRINK), PITH_ERR_PEER, "shm: rank %d sent memory that could shrink",
               rank);
  PITH_REQUIRE(fstat(fd, &file) == 0 && (size_t)file.st_size == pith__shm_segment_size(shape), PITH_ERR_PEER,
               "shm: rank %d sent memory of another size than it says", rank);
  return map(fd, shape, segment);
}

void pith__shm_segment_unmap(pith_shm_segment *segment) {
  if (segment->base) {
    munmap(segment->base, segment->size);
  }
  segment->base = NULL;
}
