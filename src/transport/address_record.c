/* SPDX-License-Identifier: Apache-2.0 */
/* Address records: who a rank is to the others, and as bytes. Only addresses that are used travel. */
#include "transport/address_record.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"

enum { HEAD = 2 * sizeof(uint64_t) };

static uint64_t hash_file(const char *path, uint64_t start) {
  char text[256];
  ssize_t size = readlink(path, text, sizeof text);
  if (size < 0) {
    int file = open(path, O_RDONLY | O_CLOEXEC);
    do { /* a signal must not make another host of this one */
      size = file >= 0 ? read(file, text, sizeof text) : 0;
    } while (size < 0 && errno == EINTR);
    if (file >= 0) {
      close(file);
    }
  }
  return pith__hash64(text, size > 0 ? (size_t)size : 0, start);
}

static uint64_t host_number(const char *host_id) {
  if (host_id) {
    return pith__hash64(host_id, strlen(host_id), 1);
  }
  return hash_file("/proc/self/ns/net", hash_file("/proc/sys/kernel/random/boot_id", 2));
}

pith_address_record pith__address_record_here(const char *host_id) {
  return (pith_address_record){.host = host_number(host_id), .user = geteuid()};
}

size_t pith__address_record_write(const pith_address_record *record, uint8_t bytes[PITH_ADDRESS_RECORD_MOST]) {
  uint8_t *to = bytes + HEAD;
  memcpy(bytes, &record->host, sizeof record->host);
  memcpy(bytes + sizeof record->host, &record->user, sizeof record->user);
  for (int k = 0; k < PITH_KINDS; k++) {
    uint16_t size = (uint16_t)record->address[k].size;
    memcpy(to, &size, sizeof size);
    memcpy(to + sizeof size, record->address[k].data, size);
    to += sizeof size + size;
  }
  return (size_t)(to - bytes);
}

pith_status pith__address_record_read(const uint8_t *bytes, size_t size, int rank, pith_address_record *record) {
  size_t at = HEAD;
  PITH_REQUIRE(size >= HEAD, PITH_ERR_CORRUPT, "rank %d's address record is malformed", rank);
  memset(record, 0, sizeof *record);
  memcpy(&record->host, bytes, sizeof record->host);
  memcpy(&record->user, bytes + sizeof record->host, sizeof record->user);
  for (int k = 0; k < PITH_KINDS; k++) {
    uint16_t length = 0;
    PITH_REQUIRE(size - at >= sizeof length, PITH_ERR_CORRUPT, "rank %d's address record is malformed", rank);
    memcpy(&length, bytes + at, sizeof length);
    at += sizeof length;
    PITH_REQUIRE(length <= PITH_ADDRESS_MAX && length <= size - at, PITH_ERR_CORRUPT,
                 "rank %d's address record is malformed", rank);
    memcpy(record->address[k].data, bytes + at, length);
    record->address[k].size = length;
    at += length;
  }
  PITH_REQUIRE(at == size, PITH_ERR_CORRUPT, "rank %d's address record is malformed", rank);
  return PITH_OK;
}
