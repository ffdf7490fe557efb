/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as a rank's tcp address: refused, or a place that is written down as the same bytes. */
#include "fuzz/fuzz.h"
#include "transport/tcp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pith_address address = {.size = size >= 4 ? 0 : (uint32_t)size}, again;
  tcp_place place;
  if (size >= 4) { /* the size is what a peer says, and may be wrong */
    memcpy(&address.size, data, 4);
    size_t rest = size - 4 < sizeof address.data ? size - 4 : sizeof address.data;
    memcpy(address.data, data + 4, rest);
  }
  if (pith__tcp_address_decode(&address, 1, &place) != PITH_OK) {
    FUZZ_REQUIRE(pith_error()[0]);
    return 0;
  }
  FUZZ_REQUIRE(place.count > 0 && place.count <= TCP_ADDRESSES_MOST);
  FUZZ_REQUIRE(place.connections > 0 && place.connections <= TCP_CONNECTIONS_MOST);
  char text[PITH_SOCKADDR_TEXT];
  for (int i = 0; i < place.count; i++) {
    FUZZ_REQUIRE(strlen(pith__sockaddr_text(&place.at[i], text)) < sizeof text);
  }
  pith__tcp_address_encode(&place, pith__sockaddr_port(&place.at[0]), &again);
  FUZZ_REQUIRE(again.size == address.size && memcmp(again.data, address.data, again.size) == 0);
  return 0;
}
