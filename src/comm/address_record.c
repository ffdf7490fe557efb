/* Address records as bytes: only those that are used travel. */
#include "comm/address_record.h"

#include <string.h>

enum { HEAD = 2 * sizeof(uint64_t) };

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
